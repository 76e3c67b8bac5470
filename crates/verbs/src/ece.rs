//! Enhanced connection establishment: what two adapters of one vendor agree on beyond the standard. There is nothing
//! yet that Weir peers would have to agree on this way: no option is offered, and none is asked for.

use crate::abi::*;
use crate::ffi::{EINVAL, EOPNOTSUPP, status};
use crate::query::NO_VENDOR;

/// EOPNOTSUPP: no vendor; EINVAL: another vendor's options, or ones that are not of rdma-core 44. Options that we do
/// not know are not taken: [`ibv_query_ece`] tells what holds.
///
/// # Safety
/// `ece` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> std::ffi::c_int {
    status(|| {
        // SAFETY: the caller's promise.
        match unsafe { &*ece } {
            ibv_ece { vendor_id: 0, .. } => Err(EOPNOTSUPP),
            ibv_ece { vendor_id: NO_VENDOR, comp_mask: 0, .. } => Ok(()),
            _ => Err(EINVAL),
        }
    })
}

/// # Safety
/// `ece` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> std::ffi::c_int {
    // SAFETY: the caller's promise.
    unsafe { ece.write(ibv_ece { vendor_id: NO_VENDOR, options: 0, comp_mask: 0 }) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_queried_can_be_set_and_another_vendors_cannot() {
        let mut ece = ibv_ece { vendor_id: 1, options: 2, comp_mask: 3 };
        // SAFETY: a structure of this test; the QP is not looked at.
        unsafe {
            assert_eq!(ibv_query_ece(std::ptr::null_mut(), &mut ece), 0);
            assert_eq!(ece.options, 0);
            ece.options = 5;
            assert_eq!(ibv_set_ece(std::ptr::null_mut(), &mut ece), 0);
            ece.comp_mask = 1;
            assert_eq!(ibv_set_ece(std::ptr::null_mut(), &mut ece), libc::EINVAL);
            ece = ibv_ece { vendor_id: 0x02c9, options: 0, comp_mask: 0 };
            assert_eq!(ibv_set_ece(std::ptr::null_mut(), &mut ece), libc::EINVAL);
            ece.vendor_id = 0;
            assert_eq!(ibv_set_ece(std::ptr::null_mut(), &mut ece), libc::EOPNOTSUPP);
        }
    }
}
