//! Protection domains and memory regions.

use crate::abi::*;
use crate::context;
use crate::ffi::{EBUSY, EINVAL, EOPNOTSUPP, object, status};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use weir_device::Errno;
use weir_transport::Access;

/// An `ibv_pd` and our part of it.
#[repr(C)]
pub struct Pd {
    pub ibv: ibv_pd,
    pub own: PdOwn,
}

/// Our part of a PD.
pub struct PdOwn {
    pub device: Arc<weir_device::Pd>,
    /// Address handles, which are ours alone.
    pub address_handles: AtomicUsize,
}

#[repr(C)]
struct Mr {
    ibv: ibv_mr,
    device: Arc<weir_device::Mr>,
}

/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        // SAFETY: the caller's promise.
        let device = unsafe { context::own(context) }.device.alloc_pd()?;
        let own = PdOwn { device, address_handles: AtomicUsize::new(0) };
        let pd = Pd { ibv: ibv_pd { context, handle: new_handle() }, own };
        Ok(Box::into_raw(Box::new(pd)).cast())
    })
}

/// # Safety
/// `pd` is from `ibv_alloc_pd`; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: the caller's promise; made from a Box.
        unsafe {
            let own = own(pd);
            if own.address_handles.load(Ordering::Relaxed) != 0 {
                return Err(EBUSY);
            }
            own.device.dealloc()?;
            drop(Box::from_raw(pd.cast::<Pd>()));
        }
        Ok(())
    })
}

/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    object(|| unsafe { register(pd, addr, length, addr as u64, access as u32) })
}

/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    object(|| unsafe { register(pd, addr, length, iova, access as u32) })
}

/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    object(|| unsafe { register(pd, addr, length, iova, access) })
}

/// # Safety
/// `mr` is from one of the calls above; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        // SAFETY: the caller's promise; made from a Box.
        unsafe {
            (*mr.cast::<Mr>()).device.dereg()?;
            drop(Box::from_raw(mr.cast::<Mr>()));
        }
        Ok(())
    })
}

/// Our part of a PD.
///
/// # Safety
/// `pd` is alive for `'a`.
pub unsafe fn own<'a>(pd: *const ibv_pd) -> &'a PdOwn {
    // SAFETY: every `ibv_pd` of ours is the start of a `Pd`.
    unsafe { &(*pd.cast::<Pd>()).own }
}

/// A number for `handle` members, which programs only print.
pub fn new_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// # Safety
/// `pd` is alive.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    let access = access_flags(access)?;
    // SAFETY: the caller's promise.
    let (own, context) = unsafe { (own(pd), (*pd).context) };
    let device = own.device.reg_mr(addr as u64, length as u64, iova, access)?;
    let ibv = ibv_mr { context, pd, addr, length, handle: new_handle(), lkey: device.lkey(), rkey: device.rkey() };
    Ok(Box::into_raw(Box::new(Mr { ibv, device })).cast())
}

/// Optional flags and the hint at huge pages ask for nothing that would be visible here.
fn access_flags(bits: u32) -> Result<Access, Errno> {
    const NOT_YET: u32 = IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND;
    let bits = bits & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB);
    if bits & NOT_YET != 0 {
        return Err(EOPNOTSUPP);
    }
    Access::from_bits(bits).ok_or(EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_flags_are_taken_and_unknown_ones_are_not() {
        assert_eq!(access_flags(1 | 1 << 20 | IBV_ACCESS_HUGETLB), Ok(Access::LOCAL_WRITE));
        assert_eq!(access_flags(IBV_ACCESS_ON_DEMAND), Err(EOPNOTSUPP));
        assert_eq!(access_flags(1 << 12), Err(EINVAL));
    }
}
