//! Registration by attributes, and buffers that the library allocates for registration.

use crate::abi::*;
use crate::context;
use crate::ffi::{EINVAL, EOPNOTSUPP, guard, object};
use crate::living;
use crate::pd_mr::{self, PAGE};
use std::ffi::{c_int, c_void};
use weir_device::Errno;

/// `ibv_reg_mr_ex`: memory of this process only. EOPNOTSUPP for a file descriptor (dmabuf) and for a DMA handle; EINVAL
/// for members that contradict each other.
///
/// # Safety
/// As in verbs.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    // SAFETY: guaranteed by the caller; members that the mask does not select are not read.
    living::object(|| unsafe {
        let mask = (*attr).comp_mask;
        let mut iova = None;
        if mask & IBV_REG_MR_MASK_IOVA != 0 {
            iova = Some((*attr).iova);
        }
        let (addr, length, access) = (memory(pd, attr)?, (*attr).length, (*attr).access);
        pd_mr::register(pd, addr, length, iova.unwrap_or(addr as u64), access as u32)
    })
}

/// The memory that a registration names.
///
/// # Safety
/// As in verbs.h.
unsafe fn memory(pd: *mut ibv_pd, attr: *const ibv_mr_init_attr) -> Result<*mut c_void, Errno> {
    const KNOWN: u64 = (IBV_REG_MR_MASK_BUF << 1) - 1;
    // SAFETY: guaranteed by the caller; members that the mask does not select are not read.
    unsafe {
        let (mask, length) = ((*attr).comp_mask, (*attr).length);
        let has = |bit| mask & bit != 0;
        if mask & !KNOWN != 0 {
            return Err(EOPNOTSUPP);
        }
        if has(IBV_REG_MR_MASK_FD) && !has(IBV_REG_MR_MASK_BUF) {
            let complete = has(IBV_REG_MR_MASK_FD_OFFSET) && has(IBV_REG_MR_MASK_IOVA) && !has(IBV_REG_MR_MASK_ADDR);
            return Err(if complete { EOPNOTSUPP } else { EINVAL });
        }
        if has(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) || !has(IBV_REG_MR_MASK_ADDR) {
            return Err(EINVAL);
        }
        if has(IBV_REG_MR_MASK_DMAH) {
            return Err(EOPNOTSUPP);
        }
        let addr = (*attr).addr;
        if has(IBV_REG_MR_MASK_BUF) {
            let buf = &*(*attr).buf;
            let offset = (addr as usize).checked_sub(buf.addr as usize).ok_or(EINVAL)?;
            if pd != buf.pd || offset > buf.size || length > buf.size - offset {
                return Err(EINVAL);
            }
        }
        Ok(addr)
    }
}

/// `ibv_reg_buf_mr`: registers a range of a buffer.
///
/// # Safety
/// `pd` and `buf` are alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let mut attr = ibv_mr_init_attr {
        length,
        access,
        comp_mask: IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR,
        iova: 0,
        addr,
        fd: -1,
        fd_offset: 0,
        dmah: std::ptr::null_mut(),
        buf,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { ibv_reg_mr_ex(pd, &raw mut attr) }
}

/// `ibv_alloc_buf`: ordinary memory, aligned to a page; its handle enters `buf`. EINVAL for a size of 0, ENOMEM without
/// memory.
///
/// # Safety
/// `pd` is alive and stays so until the buffer is freed; `buf` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    object(|| {
        // SAFETY: guaranteed by the caller.
        unsafe {
            context::own_checked((*pd).context)?;
            if size == 0 {
                return Err(EINVAL);
            }
            let mut addr = std::ptr::null_mut();
            match libc::posix_memalign(&raw mut addr, PAGE as usize, size) {
                0 => {}
                error => return Err(Errno(error)),
            }
            *buf = Box::into_raw(Box::new(ibv_buf { addr, size, pd }));
            Ok(addr)
        }
    })
}

/// # Safety
/// `buf` is from `ibv_alloc_buf` and not used again; no region has its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    // SAFETY: guaranteed by the caller; created from a Box.
    guard((), || unsafe {
        libc::free(Box::from_raw(buf).addr);
    })
}
