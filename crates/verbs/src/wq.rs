//! Receive work queues, their indirection tables, and raw packet QPs that spread what they receive over them. Behind a
//! work queue is a raw QP that only receives.

use crate::abi::*;
use crate::buried::bury;
use crate::ffi::{EBUSY, EINVAL, EIO, EOPNOTSUPP, allocating, guard_hot, status, zeroed};
use crate::living::{check, leave, object};
use crate::post::sge_list;
use crate::refused_post;
use crate::registry::{new_cookie, new_handle};
use crate::tables::{MAX_LOG_TABLE, TableUser};
use crate::{context, cq, pd};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_device::steering::spread::{HashFields, Spread};
use weir_device::{Errno, QpCreate, Receives};
use weir_transport::{AttrMask, QpAttr, QpCaps, QpState, RecvWr, Service};

/// An `ibv_wq` and Weir's part of it.
#[repr(C)]
struct Wq {
    ibv: ibv_wq,
    device: Arc<weir_device::Qp>,
    max_sge: u32,
    /// Tables with it.
    users: Arc<AtomicU32>,
}

/// An `ibv_rwq_ind_table` and Weir's part of it.
#[repr(C)]
struct Table {
    ibv: ibv_rwq_ind_table,
    queues: Vec<u32>,
    /// The CQ of the first queue.
    cq: *mut ibv_cq,
    /// The counts of the tables of each queue.
    counted: Vec<Arc<AtomicU32>>,
    /// QPs with it.
    users: Arc<AtomicU32>,
}

/// Called through `verbs_context`. EOPNOTSUPP for flags and other types of queue, EINVAL beyond the limits, EPERM
/// without CAP_NET_RAW.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_wq(context: *mut ibv_context, init: *mut ibv_wq_init_attr) -> *mut ibv_wq {
    object(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            context::own_checked(context)?;
            let init = &mut *init;
            if init.comp_mask != 0 && init.create_flags != 0 || init.wq_type != IBV_WQT_RQ {
                return Err(context::refuse(
                    context,
                    EOPNOTSUPP,
                    "WQ: create: only IBV_WQT_RQ without create_flags is supported",
                ));
            }
            if init.pd.is_null() || init.cq.is_null() {
                return Err(context::refuse(context, EINVAL, "WQ: create: there is no pd or no cq"));
            }
            let caps = QpCaps { max_recv_wr: init.max_wr, max_recv_sge: init.max_sge, ..QpCaps::default() };
            let create = QpCreate { service: Service::Raw, caps, sq_sig_all: false, cookie: new_cookie() };
            let cq = &cq::own(init.cq).device;
            let device = pd::own(init.pd).device.create_qp_with(&create, cq, cq, Receives::Own)?;
            let given = device.caps();
            (init.max_wr, init.max_sge) = (given.max_recv_wr, given.max_recv_sge);
            // SAFETY: integers and pointers; the header's inline function initialises mutex and condition.
            let mut ibv: ibv_wq = zeroed();
            (ibv.context, ibv.pd, ibv.cq) = (context, init.pd, init.cq);
            (ibv.wq_num, ibv.handle) = (device.num(), new_handle());
            ibv.post_recv = Some(post_recv);
            let wq = Wq { ibv, device, max_sge: given.max_recv_sge, users: Arc::default() };
            Ok(Box::into_raw(Box::new(wq)).cast())
        }
    })
}

/// Called through `verbs_context`: RESET to RDY, RDY to ERR, and both back to RESET. EINVAL for another transition,
/// EOPNOTSUPP for flags.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    allocating(|| {
        check(wq, "ibv_modify_wq")?;
        // SAFETY: guaranteed by the caller.
        unsafe {
            context::own_checked((*wq).context)?;
            let (own, attr) = (&*wq.cast::<Wq>(), &*attr);
            if attr.attr_mask & !(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE) != 0 {
                let why = "WQ: modify: only IBV_WQ_ATTR_STATE and IBV_WQ_ATTR_CURR_STATE are supported";
                return Err(context::refuse((*wq).context, EOPNOTSUPP, why));
            }
            if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != (*wq).state {
                return Err(context::refuse(
                    (*wq).context,
                    EINVAL,
                    "WQ: modify: curr_wq_state is not the state of this WQ",
                ));
            }
            if attr.attr_mask & IBV_WQ_ATTR_STATE == 0 {
                return Ok(());
            }
            let states: &[QpState] = match ((*wq).state, attr.wq_state) {
                (IBV_WQS_RESET, IBV_WQS_RDY) => &[QpState::Init, QpState::Rtr],
                (IBV_WQS_RDY, IBV_WQS_ERR) => &[QpState::Error],
                (_, IBV_WQS_RESET) => &[QpState::Reset],
                (from, to) if from == to => &[],
                _ => {
                    let why = "WQ: modify: the ways are RESET to RDY, RDY to ERR, and both back to RESET";
                    return Err(context::refuse((*wq).context, EINVAL, why));
                }
            };
            for state in states {
                let port = if *state == QpState::Init { AttrMask::PORT } else { AttrMask::empty() };
                let attr = QpAttr { qp_state: *state, port_num: 1, ..QpAttr::default() };
                own.device.modify(&attr, AttrMask::STATE | port)?;
            }
            (*wq).state = attr.wq_state;
        }
        Ok(())
    })
}

/// Called through `verbs_context`. EBUSY while a table has it.
///
/// # Safety
/// `wq` is from [`create_wq`]; after success it is not used again.
pub unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    status(|| {
        let leaving = leave(wq, "ibv_destroy_wq")?;
        // SAFETY: guaranteed by the caller; created from a Box, mutex and condition by the header's inline function.
        unsafe {
            if context::is_inherited((*wq).context) {
                return Ok(());
            }
            let own = &*wq.cast::<Wq>();
            if own.users.load(Ordering::Acquire) > 0 {
                let why = "WQ: destroy: indirection tables have it: ibv_destroy_rwq_ind_table first";
                return Err(context::refuse((*wq).context, EBUSY, why));
            }
            own.device.destroy()?;
            libc::pthread_mutex_destroy(&raw mut (*wq).mutex);
            libc::pthread_cond_destroy(&raw mut (*wq).cond);
            let _left = leaving.done();
            bury(wq.cast::<Wq>());
        }
        Ok(())
    })
}

/// `ibv_post_wq_recv`, through the queue itself.
///
/// # Safety
/// As `ibv_post_recv`.
unsafe extern "C" fn post_recv(wq: *mut ibv_wq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    let mut next = wr;
    let outcome = guard_hot(EIO.0, || {
        // SAFETY: guaranteed by the caller; each `next` is NULL or points to the next work request.
        unsafe {
            if let Err(errno) = context::own_checked((*wq).context) {
                return errno.0;
            }
            let own = &*wq.cast::<Wq>();
            let mut refused = None;
            while let Some(request) = next.as_ref() {
                let posted = sge_list(request.sg_list, request.num_sge, own.max_sge)
                    .and_then(|sges| own.device.post_recv(&RecvWr { wr_id: request.wr_id, sges }));
                if let Err(error) = posted {
                    refused = Some((request, error));
                    break;
                }
                next = request.next;
            }
            own.device.doorbell_receive();
            refused
                .map_or(0, |(request, error)| refused_post::queue_receive(&own.device, own.max_sge, request, error).0)
        }
    });
    if outcome != 0 && !bad_wr.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { *bad_wr = next };
    }
    outcome
}

/// Called through `verbs_context`. EINVAL for a comp_mask and beyond the limit.
///
/// # Safety
/// As in verbs.h.
pub unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    object(|| {
        // SAFETY: guaranteed by the caller: the table has 2^log_ind_tbl_size living queues.
        unsafe {
            context::own_checked(context)?;
            let init = &*init;
            if init.comp_mask != 0 || init.log_ind_tbl_size > MAX_LOG_TABLE || init.ind_tbl.is_null() {
                let (given, mask) = (init.log_ind_tbl_size, init.comp_mask);
                let why = format!(
                    "indirection table: log_ind_tbl_size is {given} and comp_mask is {mask}: they must be {MAX_LOG_TABLE} at \
                     most and 0, and ind_tbl not NULL"
                );
                return Err(context::refuse(context, EINVAL, &why));
            }
            let wqs = std::slice::from_raw_parts(init.ind_tbl.cast::<*const Wq>(), 1 << init.log_ind_tbl_size);
            let counted: Vec<_> = wqs.iter().map(|wq| (**wq).users.clone()).collect();
            for users in &counted {
                users.fetch_add(1, Ordering::AcqRel);
            }
            let number = new_handle() as c_int;
            let ibv = ibv_rwq_ind_table { context, ind_tbl_handle: number, ind_tbl_num: number, comp_mask: 0 };
            let queues = wqs.iter().map(|wq| (**wq).ibv.wq_num).collect();
            let table = Table { ibv, queues, cq: (*wqs[0]).ibv.cq, counted, users: Arc::default() };
            Ok(Box::into_raw(Box::new(table)).cast())
        }
    })
}

/// Called through `verbs_context`. EBUSY while a QP has it.
///
/// # Safety
/// `table` is from [`create_rwq_ind_table`]; after success it is not used again.
pub unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    status(|| {
        let leaving = leave(table, "ibv_destroy_rwq_ind_table")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            let own = &*table.cast::<Table>();
            if own.users.load(Ordering::Acquire) > 0 {
                let why = "indirection table: destroy: QPs have it: destroy them first";
                return Err(context::refuse((*table).context, EBUSY, why));
            }
            for users in &own.counted {
                users.fetch_sub(1, Ordering::AcqRel);
            }
            let _left = leaving.done();
            bury(table.cast::<Table>());
        }
        Ok(())
    })
}

/// Creates the device's part of a raw packet QP that spreads what it receives over a table's queues. EOPNOTSUPP for
/// other hashes and fields, EINVAL for another type of QP.
///
/// # Safety
/// `init` is as in verbs.h, with a PD, a table and a hash.
pub unsafe fn create_spread(
    init: &ibv_qp_init_attr_ex,
    cookie: u64,
) -> Result<(Arc<weir_device::Qp>, TableUser), Errno> {
    let hash = &init.rx_hash_conf;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let context = (*init.pd).context;
        if init.qp_type != IBV_QPT_RAW_PACKET || init.rwq_ind_tbl.is_null() {
            let why = "QP: create: IBV_QP_INIT_ATTR_RX_HASH needs IBV_QPT_RAW_PACKET and a rwq_ind_tbl";
            return Err(context::refuse(context, EINVAL, why));
        }
        let fields = HashFields::from_bits(hash.rx_hash_fields_mask);
        let Some(fields) = fields.filter(|_| hash.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ) else {
            let why = "QP: create: only IBV_RX_HASH_FUNC_TOEPLITZ over addresses and ports of IPv4, IPv6, TCP and UDP is supported";
            return Err(context::refuse(context, EOPNOTSUPP, why));
        };
        let table = &*init.rwq_ind_tbl.cast::<Table>();
        let key = match hash.rx_hash_key.is_null() {
            true => Vec::new(),
            false => std::slice::from_raw_parts(hash.rx_hash_key, hash.rx_hash_key_len.into()).to_vec(),
        };
        let create = QpCreate { service: Service::Raw, caps: QpCaps::default(), sq_sig_all: false, cookie };
        let cq = &cq::own(table.cq).device;
        let device = pd::own(init.pd).device.create_qp_with(&create, cq, cq, Receives::Own)?;
        device.spread_over(Spread { queues: table.queues.clone(), key, fields })?;
        Ok((device, TableUser::new(&table.users)))
    }
}
