//! The verbs of protection domains and memory regions.

use crate::abi::*;
use crate::context;
use crate::ffi::status;
use crate::living::{check, leave, object};
use crate::pd::{Pd, PdOwn, own};
use crate::registry::new_handle;
use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::sync::Arc;
use weir_device::Errno;
use weir_transport::Access;

/// An `ibv_mr` and Weir's part of it.
#[repr(C)]
pub struct Mr {
    pub ibv: ibv_mr,
    pub device: Arc<weir_device::Mr>,
    /// Created by `ibv_import_mr`.
    pub imported: bool,
}

/// # Safety
/// `context` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    object(|| {
        check(context, "ibv_alloc_pd")?;
        // SAFETY: guaranteed by the caller.
        let own = unsafe { context::own_checked(context)? };
        let (device, handle) = (own.device.alloc_pd()?, new_handle());
        own.exports.pds.insert(handle, device.clone())?;
        let pd = Pd { ibv: ibv_pd { context, handle }, own: PdOwn::new(device) };
        Ok(Box::into_raw(Box::new(pd)).cast())
    })
}

/// # Safety
/// `pd` is from `ibv_alloc_pd`; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        let leaving = leave(pd, "ibv_dealloc_pd")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*pd).context) {
                return Ok(());
            }
            let own = own(pd);
            if let Some(domain) = &own.domain {
                domain.check()?;
            }
            own.device.dealloc()?;
            if own.domain.is_none() {
                context::own((*pd).context).exports.pds.remove((*pd).handle);
            }
            let _left = leaving.done();
            drop(Box::from_raw(pd.cast::<Pd>()));
        }
        Ok(())
    })
}

/// # Safety
/// `pd` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { register(pd, addr, length, iova, access) })
}

/// Called through `verbs_context`: a region that reads as zeros and discards writes, for local keys only.
///
/// # Safety
/// `pd` is alive.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: guaranteed by the caller.
    object(|| unsafe { make(pd, std::ptr::null_mut(), own(pd).device.alloc_null_mr()?) })
}

/// # Safety
/// `mr` is from one of the functions above; after success it is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        let leaving = leave(mr, "ibv_dereg_mr")?;
        // SAFETY: guaranteed by the caller; created from a Box.
        unsafe {
            if context::is_inherited((*mr).context) {
                return Ok(());
            }
            (*mr.cast::<Mr>()).device.dereg()?;
            context::own((*mr).context).exports.mrs.remove((*mr).handle);
            let _left = leaving.done();
            drop(Box::from_raw(mr.cast::<Mr>()));
        }
        Ok(())
    })
}

/// Registers memory of this process. EINVAL for unknown flags.
///
/// # Safety
/// `pd` is alive.
pub unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    check(pd, "ibv_reg_mr")?;
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { &own(pd).device };
    let Flags { access, on_demand, huge } = access_flags(access, |errno, why| domain.refuse(errno, why))?;
    // The kernel's rule: memory is mapped by pages, so both addresses need the same offset in their page.
    let in_page = |address: u64| address % PAGE;
    if !access.contains(Access::ZERO_BASED) && in_page(addr as u64) != in_page(iova) {
        let why = format_args!("MR: address {addr:p} and iova {iova:#x} have different offsets in their pages");
        return Err(domain.refuse(libc::EINVAL, why));
    }
    let mr = if on_demand {
        domain.reg_on_demand_mr(addr as u64, length as u64, iova, access, huge)?
    } else {
        domain.reg_mr(addr as u64, length as u64, iova, access)?
    };
    // SAFETY: as above.
    unsafe { make(pd, addr, mr) }
}

pub const PAGE: u64 = 4096;

/// Creates the `ibv_mr` of a new region. ENOMEM if memory is short.
///
/// # Safety
/// `pd` is alive.
pub unsafe fn make(pd: *mut ibv_pd, addr: *mut c_void, device: Arc<weir_device::Mr>) -> Result<*mut ibv_mr, Errno> {
    let handle = new_handle();
    // SAFETY: guaranteed by the caller.
    let ibv = unsafe {
        context::own((*pd).context).exports.mrs.insert(handle, device.clone())?;
        describe(pd, addr, handle, &device)
    };
    Ok(Box::into_raw(Box::new(Mr { ibv, device, imported: false })).cast())
}

/// # Safety
/// `pd` is alive.
pub unsafe fn describe(pd: *mut ibv_pd, addr: *mut c_void, handle: u32, device: &weir_device::Mr) -> ibv_mr {
    // SAFETY: guaranteed by the caller.
    let context = unsafe { (*pd).context };
    let (length, lkey, rkey) = (device.length() as usize, device.lkey(), device.rkey());
    ibv_mr { context, pd, addr, length, handle, lkey, rkey }
}

/// The flags of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    pub access: Access,
    pub on_demand: bool,
    /// The memory consists of huge pages; this affects ODP regions only.
    pub huge: bool,
}

/// Parses access flags. Optional flags have no visible effect here. EINVAL for unknown flags and for
/// persistent memory, of which `refuse` tells.
pub fn access_flags(bits: u32, refuse: impl Fn(c_int, fmt::Arguments<'_>) -> Errno) -> Result<Flags, Errno> {
    let known = bits & !(IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB | IBV_ACCESS_ON_DEMAND);
    let unknown = known & !Access::all().bits();
    let is_unknown = || refuse(libc::EINVAL, format_args!("MR: access flags {unknown:#x} are unknown"));
    let access = Access::from_bits(known).ok_or_else(is_unknown)?;
    // The memory is not known to be persistent; Soft-RoCE refuses it in the same way.
    if access.contains(Access::FLUSH_PERSISTENT) {
        let why = format_args!("MR: IBV_ACCESS_FLUSH_PERSISTENT: the memory is not known to be persistent");
        return Err(refuse(libc::EINVAL, why));
    }
    Ok(Flags { access, on_demand: bits & IBV_ACCESS_ON_DEMAND != 0, huge: bits & IBV_ACCESS_HUGETLB != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(bits: u32) -> Result<Flags, Errno> {
        access_flags(bits, |errno, _| Errno(errno))
    }

    #[test]
    fn optional_flags_are_accepted_and_unknown_flags_refused() {
        let flags = |access, on_demand, huge| Ok(Flags { access, on_demand, huge });
        assert_eq!(parsed(1 | 1 << 20 | IBV_ACCESS_HUGETLB), flags(Access::LOCAL_WRITE, false, true));
        let both = Access::MW_BIND | Access::ZERO_BASED;
        assert_eq!(parsed(IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED), flags(both, false, false));
        assert_eq!(parsed(IBV_ACCESS_ON_DEMAND), flags(Access::empty(), true, false));
        assert_eq!(parsed(1 << 12), Err(crate::ffi::EINVAL));
    }
}
