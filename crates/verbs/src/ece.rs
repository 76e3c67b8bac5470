//! Enhanced connection establishment: options beyond the standard on which two adapters of one vendor agree. Weir
//! peers have no such options yet, so none is offered and none is accepted.

use crate::abi::*;
use crate::ffi::{EINVAL, EOPNOTSUPP, status};
use crate::query::NO_VENDOR;

/// EOPNOTSUPP without a vendor; EINVAL for another vendor's options or for a comp_mask that rdma-core 44 does not
/// have. Unknown options are ignored: [`ibv_query_ece`] reports what is in effect.
///
/// # Safety
/// `ece` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> std::ffi::c_int {
    status(|| {
        // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
    unsafe { ece.write(ibv_ece { vendor_id: NO_VENDOR, options: 0, comp_mask: 0 }) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queried_options_can_be_set_and_another_vendors_cannot() {
        let mut ece = ibv_ece { vendor_id: 1, options: 2, comp_mask: 3 };
        // SAFETY: a structure of this test; the functions do not access the QP.
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
