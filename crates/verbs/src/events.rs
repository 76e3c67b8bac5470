//! Asynchronous events.

use crate::abi::*;
use crate::context::{self, ContextOwn};
use crate::cq::{self, acknowledge};
use crate::ffi::{self, EIO, guard};
use crate::{qp, srq};
use std::ffi::c_int;
use weir_device::{AsyncEvent, PortEvent};
use weir_transport::QpEvent;

/// # Safety
/// `context` is open, `event` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: guaranteed by the caller.
    let (own, fd, inherited) = unsafe { (context::own(context), (*context).async_fd, context::is_inherited(context)) };
    if inherited {
        ffi::set_errno(EIO);
        return -1;
    }
    loop {
        // A cancelled thread unwinds from here: nothing in this function has a destructor.
        // SAFETY: the context's descriptor.
        if unsafe { ffi::read_event(fd) } != 0 {
            return -1;
        }
        let outcome = guard(Some(-1), || {
            let taken = take(own)?;
            // SAFETY: guaranteed by the caller.
            unsafe { *event = taken };
            Some(0)
        });
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
}

/// Takes the oldest event and counts it as handed out. `None` if its object no longer exists.
fn take(own: &ContextOwn) -> Option<ibv_async_event> {
    let (element, event_type) = match own.device.pop_async_event()? {
        AsyncEvent::Qp { cookie, event } => {
            let mut qps = own.registry.qps();
            let entry = qps.get(cookie)?;
            entry.async_events = entry.async_events.wrapping_add(1);
            (ibv_async_event_element { qp: entry.object().cast() }, qp_event(event))
        }
        AsyncEvent::CqError { cookie } => {
            let mut cqs = own.registry.cqs();
            let entry = cqs.get(cookie)?;
            entry.async_events = entry.async_events.wrapping_add(1);
            (ibv_async_event_element { cq: entry.object().cast() }, IBV_EVENT_CQ_ERR)
        }
        AsyncEvent::SrqLimit { cookie } => {
            let mut srqs = own.registry.srqs();
            let entry = srqs.get(cookie)?;
            entry.async_events = entry.async_events.wrapping_add(1);
            (ibv_async_event_element { srq: entry.object().cast() }, IBV_EVENT_SRQ_LIMIT_REACHED)
        }
        AsyncEvent::Port(event) => (ibv_async_event_element { port_num: 1 }, port_event(event)),
        AsyncEvent::DeviceFatal => (ibv_async_event_element { port_num: 0 }, IBV_EVENT_DEVICE_FATAL),
    };
    Some(ibv_async_event { element, event_type })
}

/// # Safety
/// `event` was filled by `ibv_get_async_event` and not acknowledged before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the type says which member is valid; the thread that destroys the object waits for this call.
    guard((), || unsafe {
        let ibv_async_event { element, event_type } = *event;
        match event_type {
            IBV_EVENT_CQ_ERR => {
                let cq = element.cq;
                if cq::own_checked(cq).is_err() {
                    return;
                }
                let completed = &raw mut (*cq).async_events_completed;
                acknowledge(&raw mut (*cq).mutex, &raw mut (*cq).cond, completed, 1);
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => {
                let qp = element.qp;
                if qp::own_checked(qp).is_err() {
                    return;
                }
                let completed = &raw mut (*qp).events_completed;
                acknowledge(&raw mut (*qp).mutex, &raw mut (*qp).cond, completed, 1);
            }
            IBV_EVENT_SRQ_LIMIT_REACHED => srq::acknowledge_event(element.srq),
            // Events of the port or the device: no thread waits for them.
            _ => {}
        }
    })
}

fn port_event(event: PortEvent) -> c_int {
    match event {
        PortEvent::Active => IBV_EVENT_PORT_ACTIVE,
        PortEvent::Error => IBV_EVENT_PORT_ERR,
        PortEvent::GidChange => IBV_EVENT_GID_CHANGE,
    }
}

fn qp_event(event: QpEvent) -> c_int {
    match event {
        QpEvent::CommunicationEstablished => IBV_EVENT_COMM_EST,
        QpEvent::Fatal => IBV_EVENT_QP_FATAL,
        QpEvent::RequestError => IBV_EVENT_QP_REQ_ERR,
        QpEvent::AccessError => IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::SendQueueDrained => IBV_EVENT_SQ_DRAINED,
        QpEvent::LastWqeReached => IBV_EVENT_QP_LAST_WQE_REACHED,
    }
}
