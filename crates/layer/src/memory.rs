//! Registration of memory: the functions pass the address to which they return, which tells the calling library.

use crate::control::{adopt, registered};
use crate::next::{REG_MR, REG_MR_EX, REG_MR_IOVA, REG_MR_IOVA2, call};
use crate::quiet::{Uncancelled, observe};
use std::ffi::{c_int, c_uint, c_void};
use weir_abi::{IBV_REG_MR_MASK_IOVA, ibv_mr, ibv_mr_init_attr, ibv_pd};

/// A function that jumps to another, with the return address as one more argument.
macro_rules! with_caller {
    ($name:ident($($argument:ident: $type:ty),*), $to:ident, $x86_64:literal, $aarch64:literal) => {
        /// # Safety
        /// As in verbs.h.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut ibv_mr {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("mov ", $x86_64, ", [rsp]"), "jmp {to}", to = sym $to);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("mov ", $aarch64, ", x30"), "b {to}", to = sym $to);
        }
    };
}

with_caller!(ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int), reg_mr, "r8", "x4");
with_caller!(
    ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int),
    reg_mr_iova, "r9", "x5"
);
with_caller!(
    ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint),
    reg_mr_iova2, "r9", "x5"
);
with_caller!(ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr), reg_mr_ex, "rdx", "x2");

/// Calls the next definition, then notes the region.
/// `iova`: the region's first address for the adapter.
macro_rules! register {
    ($next:ident($pd:expr, $($argument:expr),*), $implicit:expr, $iova:expr, $access:expr, $caller:expr) => {{
        let _uncancelled = Uncancelled::new();
        // SAFETY: the caller's PD.
        unsafe { adopt((*$pd).context) };
        let mr = call!($next, std::ptr::null_mut(), $pd, $($argument),*);
        observe(|| registered(mr, $implicit, $iova, $access as u32, $caller));
        mr
    }};
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
    caller: *const c_void,
) -> *mut ibv_mr {
    register!(REG_MR(pd, addr, length, access), is_implicit(addr, length), addr as u64, access, caller)
}

unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
    caller: *const c_void,
) -> *mut ibv_mr {
    register!(REG_MR_IOVA(pd, addr, length, iova, access), is_implicit(addr, length), iova, access, caller)
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
    caller: *const c_void,
) -> *mut ibv_mr {
    register!(REG_MR_IOVA2(pd, addr, length, iova, access), is_implicit(addr, length), iova, access, caller)
}

unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr, caller: *const c_void) -> *mut ibv_mr {
    // SAFETY: the caller's attributes.
    let (access, implicit, iova) = unsafe {
        let has_iova = (*attr).comp_mask & IBV_REG_MR_MASK_IOVA != 0;
        let iova = if has_iova { (*attr).iova } else { (*attr).addr as u64 };
        ((*attr).access, is_implicit((*attr).addr, (*attr).length), iova)
    };
    register!(REG_MR_EX(pd, attr), implicit, iova, access, caller)
}

/// All memory of the process.
fn is_implicit(addr: *mut c_void, length: usize) -> bool {
    addr.is_null() && length == usize::MAX
}
