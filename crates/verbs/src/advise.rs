//! Advice about regions that are paged on demand.

use crate::abi::*;
use crate::context;
use crate::ffi::{EINVAL, EOPNOTSUPP, allocating};
use crate::pd_mr;
use std::ffi::c_int;
use weir_device::Advice;
use weir_transport::Sge;

/// Through `verbs_context`. EOPNOTSUPP for an adapter without memory on demand and for unknown advice, EINVAL for unknown flags and an empty list, and what
/// [`weir_device::Pd::advise_mr`] says.
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
        // SAFETY: the caller's promise.
        let (own, device) = unsafe { (pd_mr::own(pd), &context::own((*pd).context).device) };
        if !device.has_on_demand() {
            // What rdma-core says for a provider that has no such function.
            return Err(EOPNOTSUPP);
        }
        let advice = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Advice::Prefetch,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Advice::PrefetchWrite,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Advice::PrefetchNoFault,
            _ => return Err(EOPNOTSUPP),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 || list.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let list: Vec<Sge> =
            list.iter().map(|sge| Sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }).collect();
        own.device.advise_mr(advice, flags & IBV_ADVISE_MR_FLAG_FLUSH != 0, &list)
    })
}
