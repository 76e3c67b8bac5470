//! `ibv_advise_mr`: advice about ODP regions.

use crate::abi::*;
use crate::context;
use crate::ffi::{EINVAL, EOPNOTSUPP, allocating};
use crate::pd;
use std::ffi::c_int;
use weir_device::Advice;
use weir_transport::Sge;

/// Called through `verbs_context`. EOPNOTSUPP for an adapter without ODP and for unknown advice; EINVAL for unknown
/// flags and an empty list; otherwise the errors of [`weir_device::Pd::advise_mr`].
///
/// # Safety
/// `pd` is alive, `list` has `count` elements.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    allocating(|| {
        // SAFETY: guaranteed by the caller.
        let (own, device) = unsafe { (pd::own(pd), &context::own((*pd).context).device) };
        if !device.has_on_demand() {
            // rdma-core returns this for a provider without the function.
            return Err(EOPNOTSUPP);
        }
        let advice = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
            _ => return Err(EOPNOTSUPP),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 || list.is_null() {
            let why =
                "ibv_advise_mr: flags must be 0 or IBV_ADVISE_MR_FLAG_FLUSH, and the list must have an SGE at least";
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { context::refuse((*pd).context, EINVAL, why) });
        }
        // SAFETY: guaranteed by the caller.
        let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let list: Vec<Sge> =
            list.iter().map(|sge| Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }).collect();
        own.device.advise_mr(advice, flags & IBV_ADVISE_MR_FLAG_FLUSH != 0, &list)
    })
}
