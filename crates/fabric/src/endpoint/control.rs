//! Opening endpoints, binding, enabling and closing.

use crate::address_vector::AddressVector;
use crate::counter::Counter;
use crate::domain::Domain;
use crate::endpoint::bindings::{Bindings, Bound};
use crate::endpoint::engine::Engine;
use crate::endpoint::object::{EndpointObject, State};
use crate::endpoint::report::Reports;
use crate::endpoint::{atomic, message, options, remote, tagged};
use crate::guard::guarded;
use crate::info::{name_of, source_of};
use crate::objects::{self, table};
use crate::progress::Progress;
use crate::queue::Queue;
use crate::settings;
use crate::unsupported::{no1, no2, no3, no4, no5};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use weir_fabric_abi::*;
use weir_msg::Settings;

/// A receive for several messages ends when fewer bytes are left, unless the program says otherwise.
const MIN_MULTI_RECV: u64 = 64;

/// Opens an endpoint.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the program's objects.
        let (domain, info) = unsafe { (objects::borrow::<Domain>(domain), &*info) };
        // SAFETY: attributes of the info, or none.
        let (attr, tx, rx) = unsafe { (info.ep_attr.as_ref(), info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
        if attr.is_some_and(|attr| attr.tx_ctx_cnt > 1 || attr.rx_ctx_cnt > 1 || attr.r#type != FI_EP_RDM) {
            return -FI_ENOSYS;
        }
        let address = match source_of(info) {
            Ok(address) => address,
            Err(error) => return -error,
        };
        let header = fid_ep {
            fid: objects::fid(FI_CLASS_EP, context, &FID),
            ops: table(&OPS),
            cm: table(&CM),
            msg: table(&message::OPS),
            rma: table(&remote::OPS),
            tagged: table(&tagged::OPS),
            atomic: table(&atomic::OPS),
            collective: std::ptr::null_mut(),
        };
        let bound = |flags| Bound { default_flags: flags, ..Bound::default() };
        let bindings = Bindings {
            transmit: bound(tx.map_or(0, |attr| attr.op_flags)),
            receive: bound(rx.map_or(0, |attr| attr.op_flags)),
            ..Bindings::default()
        };
        let remote_writes = info.caps & FI_RMA != 0 && info.caps & FI_REMOTE_WRITE != 0;
        let reports = Reports::new(remote_writes);
        let (engine, peers, min_multi_recv) = (None, Vec::new(), MIN_MULTI_RECV);
        let scheme = domain.settings.scheme;
        let state = Mutex::new(State { bindings, engine, peers, min_multi_recv, scheme, reports });
        // SAFETY: the program's domain is that of an Arc.
        let domain = unsafe { objects::share(domain) };
        let endpoint = EndpointObject { header, domain, address, caps: info.caps, state };
        // SAFETY: the program's place for the result.
        unsafe { *ep = objects::into_raw(Arc::new(endpoint)) };
        0
    })
}

static FID: fi_ops = objects::calls(close, bind, control);

static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(options::getopt),
    setopt: Some(options::setopt),
    tx_ctx: Some(no5),
    rx_ctx: Some(no5),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
};

static CM: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(no3),
    getname: Some(getname),
    getpeer: Some(no3),
    connect: Some(no4),
    listen: Some(no1),
    accept: Some(no3),
    reject: Some(no4),
    shutdown: Some(no2),
    join: Some(no5),
};

/// The endpoint that C means.
///
/// # Safety
/// It is open.
unsafe fn of<'a>(fid: *mut fid) -> &'a EndpointObject {
    // SAFETY: the caller's endpoint.
    unsafe { objects::borrow(fid.cast()) }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guarded(|| {
        // SAFETY: the program's endpoint.
        let endpoint = unsafe { objects::close::<EndpointObject>(fid) };
        // Queues and counters find no endpoint from now on.
        let Ok(mut state) = endpoint.state.lock() else { return 0 };
        if let Some(mut engine) = state.engine.take() {
            engine.close();
            if let Ok(settings) = settings::get()
                && let Some(summary) = &settings.summary
            {
                summary.give(&engine.protocol, &endpoint.domain);
            }
        }
        0
    })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    guarded(|| {
        // SAFETY: the program's objects.
        let endpoint = unsafe { of(fid) };
        let Ok(mut state) = endpoint.state.lock() else { return -FI_EOTHER };
        if state.engine.is_some() {
            return -FI_EOPBADSTATE;
        }
        let bindings = &mut state.bindings;
        // SAFETY: the program's object; its class says what it is, and it is that of an Arc.
        unsafe {
            if let Some(vector) = objects::borrow_fid::<AddressVector>(other) {
                bindings.vector = Some(objects::share(vector));
            } else if let Some(queue) = objects::borrow_fid::<Queue>(other) {
                if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0
                    || flags & (FI_TRANSMIT | FI_RECV) == 0
                {
                    return -FI_EBADFLAGS;
                }
                for (direction, bound) in [(FI_TRANSMIT, &mut bindings.transmit), (FI_RECV, &mut bindings.receive)] {
                    if flags & direction != 0 {
                        bound.queue = Some(objects::share(queue));
                        bound.selective = flags & FI_SELECTIVE_COMPLETION != 0;
                    }
                }
            } else if let Some(counter) = objects::borrow_fid::<Counter>(other) {
                bindings.counters.push((flags, objects::share(counter)));
            } else if (*other).fclass != FI_CLASS_EQ {
                return -FI_ENOSYS;
            }
        }
        0
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    guarded(|| {
        // SAFETY: the program's endpoint.
        let endpoint = unsafe { of(fid) };
        if command == FI_ENABLE { enable(endpoint) } else { -FI_ENOSYS }
    })
}

fn enable(endpoint: &EndpointObject) -> c_int {
    // SAFETY: the program's endpoint is that of an Arc.
    let shared = unsafe { objects::share(endpoint) };
    let (queues, counters) = {
        let Ok(mut state) = endpoint.state.lock() else { return -FI_EOTHER };
        if state.engine.is_some() {
            return 0;
        }
        let Bindings { vector, transmit, receive, counters } = &state.bindings;
        if vector.is_none() {
            return -FI_ENOAV;
        }
        let messages = endpoint.caps & (FI_MSG | FI_TAGGED) != 0;
        let counts = |kind| counters.iter().any(|(counts, _)| counts & kind != 0);
        if transmit.queue.is_none() && !counts(FI_SEND | FI_READ | FI_WRITE)
            || messages && receive.queue.is_none() && !counts(FI_RECV)
        {
            return -FI_ENOCQ;
        }
        let counters: Vec<Arc<Counter>> = counters.iter().map(|(_, counter)| counter.clone()).collect();
        let queues = [transmit.queue.clone(), receive.queue.clone()];
        let Domain { adapter, settings, keys, .. } = &*endpoint.domain;
        let settings = Settings { scheme: state.scheme, ..*settings };
        match Engine::new(adapter, endpoint.address, settings, keys) {
            Ok(engine) => state.engine = Some(engine),
            Err(error) => {
                crate::core::warn(FI_LOG_EP_CTRL, &format!("cannot listen at {}: {error}", endpoint.address));
                return -error.0;
            }
        }
        (queues, counters)
    };
    let progress: Arc<dyn Progress> = shared.clone();
    // The queues ask for the endpoint's descriptors, so its state is not locked.
    queues.iter().flatten().for_each(|queue| queue.bind(&progress));
    counters.iter().for_each(|counter| counter.bind(&progress));
    endpoint.domain.keys.listen(&shared);
    0
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    guarded(|| {
        // SAFETY: the program's endpoint.
        let endpoint = unsafe { of(fid) };
        let Ok(mut state) = endpoint.state.lock() else { return -FI_EOTHER as isize };
        if let Some(engine) = &mut state.engine {
            engine.protocol.cancel(&mut engine.port, context as u64);
            EndpointObject::report(&mut state);
        }
        0
    })
}

unsafe extern "C" fn size_left(_: *mut fid_ep) -> isize {
    crate::info::QUEUE as isize
}

unsafe extern "C" fn getname(fid: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    guarded(|| {
        // SAFETY: the program's endpoint.
        let endpoint = unsafe { of(fid) };
        let Ok(state) = endpoint.state.lock() else { return -FI_EOTHER };
        let Some(engine) = &state.engine else { return -FI_EOPBADSTATE };
        let name = name_of(engine.address());
        // SAFETY: the program's buffer, and its length.
        if unsafe { objects::write_bytes(name.as_bytes(), addr, len) } { 0 } else { -FI_ETOOSMALL }
    })
}
