//! Creation of queue pairs, and further handles of XRC target QPs.

use crate::abi::*;
use crate::batch::Builder;
use crate::domain::{self, Resource};
use crate::ffi::{EINVAL, EOPNOTSUPP, zeroed};
use crate::living::{check, object};
use crate::qp::{Qp, QpOwn, own};
use crate::registry::{new_cookie, new_handle};
use crate::{attr, builder, context, cq, pd, srq, wq, xrc};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use weir_device::{Errno, OwnerProcess, QpCreate, Receives};
use weir_transport::Service;

/// # Safety
/// `pd` is alive, `init` as in verbs.h; it may be the first 64 bytes of an `ibv_qp_init_attr_ex`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { create(pd, init) })
}

/// The header's inline function calls this for every `comp_mask` beyond IBV_QP_INIT_ATTR_PD. EOPNOTSUPP for
/// attributes, flags and send operations that are not supported; EINVAL without a PD.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    object(|| {
        const SUPPORTED: u32 = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
            | IBV_QP_INIT_ATTR_IND_TABLE
            | IBV_QP_INIT_ATTR_RX_HASH
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        // SAFETY: guaranteed by the caller; members that the mask does not select are not read.
        unsafe {
            let mask = (*init).comp_mask;
            if (*init).qp_type == IBV_QPT_XRC_RECV {
                return create_xrc_target(context, init);
            }
            if mask & IBV_QP_INIT_ATTR_PD == 0 {
                return Err(context::refuse(context, EINVAL, "QP: create: comp_mask has no IBV_QP_INIT_ATTR_PD"));
            }
            let selects = |bit| mask & bit != 0;
            let built = selects(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then(|| (*init).send_ops_flags);
            let flags = if selects(IBV_QP_INIT_ATTR_CREATE_FLAGS) { (*init).create_flags } else { 0 };
            if mask & !SUPPORTED != 0
                || flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0
                || (selects(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && (*init).max_tso_header != 0)
                || built.is_some_and(|operations| !builder::offers((*init).qp_type, operations))
            {
                return Err(EOPNOTSUPP);
            }
            if mask & SPREADS != 0 {
                if mask & SPREADS != SPREADS || built.is_some() {
                    let why = "QP: create: IBV_QP_INIT_ATTR_IND_TABLE and IBV_QP_INIT_ATTR_RX_HASH need each other, and no \
                               send_ops_flags";
                    return Err(context::refuse(context, EINVAL, why));
                }
                return create_spread(init);
            }
            if let Some(operations) = built {
                let inline = &mut (*init).cap.max_inline_data;
                *inline = (*inline).max(builder::inline_bytes(operations));
            }
            if flags != 0 && (*init).qp_type != IBV_QPT_UD {
                let why = "QP: create: IBV_QP_CREATE_BLOCK_SELF_MCAST_LB needs IBV_QPT_UD";
                return Err(context::refuse(context, EINVAL, why));
            }
            let qp = create((*init).pd, init.cast())?;
            if flags != 0 {
                own(qp).device.block_own_multicast();
            }
            if let Some(operations) = built {
                (*qp.cast::<Qp>()).own.extended = true;
                builder::install(&mut (*qp.cast::<Qp>()).ex, operations);
            }
            Ok(qp)
        }
    })
}

/// # Safety
/// As for `ibv_create_qp`.
unsafe fn create(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    check(pd, "ibv_create_qp")?;
    // SAFETY: guaranteed by the caller. A reference would cover the padding, which is `comp_mask` in the longer
    // structure.
    let (context, send_cq, recv_cq, srq, cap, qp_type, qp_context, sq_sig_all) = unsafe {
        (
            (*pd).context,
            (*init).send_cq,
            (*init).recv_cq,
            (*init).srq,
            (*init).cap,
            (*init).qp_type,
            (*init).qp_context,
            (*init).sq_sig_all != 0,
        )
    };
    // SAFETY: the context of a living PD is open.
    let device = &unsafe { context::own_checked(context)? }.device;
    // An XRC initiator receives nothing and needs no receive CQ; the target uses the CQs of its SRQs.
    let recv_cq = if qp_type == IBV_QPT_XRC_SEND && recv_cq.is_null() { send_cq } else { recv_cq };
    if send_cq.is_null() || recv_cq.is_null() {
        return Err(device.refuse(libc::EINVAL, format_args!("QP: create: there is no send_cq or no recv_cq")));
    }
    check(send_cq, "ibv_create_qp")?;
    check(recv_cq, "ibv_create_qp")?;
    let receives = if srq.is_null() {
        Receives::Own
    } else {
        check(srq, "ibv_create_qp")?;
        // SAFETY: the caller guarantees that it is alive.
        Receives::Shared(unsafe { srq::own(srq) }.device.clone())
    };
    let cookie = new_cookie();
    let service = service(qp_type, device)?;
    let create = QpCreate { service, caps: attr::caps(&cap), sq_sig_all, cookie };
    // SAFETY: the caller guarantees that PD and CQs are alive.
    let device = unsafe {
        let (send_cq, recv_cq) = (&cq::own(send_cq).device, &cq::own(recv_cq).device);
        pd::own(pd).device.create_qp_with(&create, send_cq, recv_cq, receives)?
    };
    // SAFETY: the PD outlives its QPs; `init` is writable.
    unsafe {
        let qp = enter(context, pd, device, service, cookie, sq_sig_all)?;
        let public = qp.cast::<ibv_qp>();
        (*public).qp_context = qp_context;
        (*public).send_cq = send_cq;
        (*public).recv_cq = recv_cq;
        (*public).srq = srq;
        (*public).qp_type = qp_type;
        (*init).cap = attr::from_caps(&(*qp).own.device.caps());
        Ok(public)
    }
}

/// What a raw packet QP needs that spreads what it receives over work queues.
const SPREADS: u32 = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;

/// Creates a raw packet QP that spreads what it receives over work queues.
///
/// # Safety
/// `init` is as in verbs.h, with a PD and [`SPREADS`].
unsafe fn create_spread(init: *mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    let cookie = new_cookie();
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (pd, context) = ((*init).pd, (*(*init).pd).context);
        context::own_checked(context)?;
        let (device, table) = wq::create_spread(&*init, cookie)?;
        let qp = enter(context, pd, device, Service::Raw, cookie, false)?;
        (*qp).own.table = Some(table);
        (*qp).ex.qp_base.qp_context = (*init).qp_context;
        (*qp).ex.qp_base.qp_type = IBV_QPT_RAW_PACKET;
        Ok(qp.cast())
    }
}

/// Creates an XRC target QP, which only responds, for the SRQs of a domain.
///
/// # Safety
/// `context` is open, `init` as in verbs.h.
unsafe fn create_xrc_target(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp, Errno> {
    let cookie = new_cookie();
    // SAFETY: guaranteed by the caller.
    unsafe {
        context::own_checked(context)?;
        if (*init).comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            let why = "QP: create: IBV_QPT_XRC_RECV needs an xrcd and IBV_QP_INIT_ATTR_XRCD";
            return Err(context::refuse(context, EINVAL, why));
        }
        let device = xrc::own((*init).xrcd).create_target(cookie)?;
        let qp = enter(context, std::ptr::null_mut(), device, Service::Xrc, cookie, false)?;
        (*qp).ex.qp_base.qp_context = (*init).qp_context;
        (*qp).ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
        Ok(qp.cast())
    }
}

/// Opens a further handle of an XRC target QP of the domain.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    object(|| {
        const NEEDED: u32 = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let attr = &*attr;
            if attr.comp_mask & !(NEEDED | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
                return Err(EOPNOTSUPP);
            }
            context::own_checked(context)?;
            if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != IBV_QPT_XRC_RECV {
                let why =
                    "QP: open: it needs qp_num, xrcd and the qp_type IBV_QPT_XRC_RECV, and their bits in comp_mask";
                return Err(context::refuse(context, EINVAL, why));
            }
            let device = xrc::own(attr.xrcd).target(attr.qp_num)?;
            device.open();
            let qp = enter(context, std::ptr::null_mut(), device, Service::Xrc, new_cookie(), false)?;
            if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
                (*qp).ex.qp_base.qp_context = attr.qp_context;
            }
            (*qp).ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
            Ok(qp.cast())
        }
    })
}

/// Creates the structure of a QP and adds it to the registry, where events find it.
///
/// # Safety
/// `context` is open, `pd` alive or NULL.
unsafe fn enter(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    device: Arc<weir_device::Qp>,
    service: Service,
    cookie: u64,
    sq_sig_all: bool,
) -> Result<*mut Qp, Errno> {
    let given = device.caps();
    // SAFETY: integers and pointers; mutex and condition are initialised below.
    let mut ibv: ibv_qp = unsafe { zeroed() };
    ibv.context = context;
    ibv.pd = pd;
    ibv.handle = new_handle();
    ibv.qp_num = device.num();
    // SAFETY: the context of a living PD is open.
    let registry = unsafe { context::own_checked(context)? }.registry.clone();
    let own = QpOwn {
        device,
        service,
        builder: Builder::default(),
        extended: false,
        max_send_wr: given.max_send_wr,
        max_send_sge: given.max_send_sge,
        max_recv_sge: given.max_recv_sge,
        max_inline: given.max_inline_data as usize,
        sq_sig_all,
        table: None,
        registry: registry.clone(),
        cookie,
        owner_process: OwnerProcess::current(),
    };
    // SAFETY: integers, pointers and optional functions.
    let ex = ibv_qp_ex { qp_base: ibv, ..unsafe { zeroed() } };
    // SAFETY: the PD outlives its QPs.
    let qp = unsafe { domain::allocate_in(pd, Resource::Qp, Qp { ex, own })? };
    // SAFETY: just created, at its final address.
    unsafe {
        libc::pthread_mutex_init(&raw mut (*qp).ex.qp_base.mutex, std::ptr::null());
        libc::pthread_cond_init(&raw mut (*qp).ex.qp_base.cond, std::ptr::null());
    }
    registry.qps().insert(cookie, NonNull::new(qp.cast()).ok_or(EINVAL)?);
    Ok(qp)
}

fn service(qp_type: c_int, device: &weir_device::Context) -> Result<Service, Errno> {
    match qp_type {
        IBV_QPT_RC => Ok(Service::Rc),
        IBV_QPT_UC => Ok(Service::Uc),
        IBV_QPT_UD => Ok(Service::Ud),
        IBV_QPT_RAW_PACKET => Ok(Service::Raw),
        IBV_QPT_XRC_SEND => Ok(Service::Xrc),
        _ => Err(device.refuse(libc::EOPNOTSUPP, format_args!("QP: create: qp_type {qp_type} is not supported"))),
    }
}
