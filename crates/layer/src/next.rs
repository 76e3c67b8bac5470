//! The next definitions of the functions that this library defines.

use crate::real::Next;
use std::ffi::{c_int, c_uint, c_void};
use weir_abi::*;

/// Declares exported functions with the next definitions that they call.
macro_rules! next {
    ($($name:ident $export:literal: fn($($type:ty),*) -> $result:ty;)*) => {
        $(pub static $name: Next<unsafe extern "C" fn($($type),*) -> $result> = Next::new($export);)*
    };
}

next! {
    OPEN_DEVICE c"ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context;
    IMPORT_DEVICE c"ibv_import_device": fn(c_int) -> *mut ibv_context;
    CLOSE_DEVICE c"ibv_close_device": fn(*mut ibv_context) -> c_int;
    ALLOC_PD c"ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd;
    CREATE_CQ c"ibv_create_cq":
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    RESIZE_CQ c"ibv_resize_cq": fn(*mut ibv_cq, c_int) -> c_int;
    DESTROY_CQ c"ibv_destroy_cq": fn(*mut ibv_cq) -> c_int;
    CREATE_QP c"ibv_create_qp": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    MODIFY_QP c"ibv_modify_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    QUERY_QP c"ibv_query_qp": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    DESTROY_QP c"ibv_destroy_qp": fn(*mut ibv_qp) -> c_int;
    DEALLOC_PD c"ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int;
    DEREG_MR c"ibv_dereg_mr": fn(*mut ibv_mr) -> c_int;
    REG_MR c"ibv_reg_mr": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    REG_MR_IOVA c"ibv_reg_mr_iova": fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    REG_MR_IOVA2 c"ibv_reg_mr_iova2": fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    REG_MR_EX c"ibv_reg_mr_ex": fn(*mut ibv_pd, *mut ibv_mr_init_attr) -> *mut ibv_mr;
}

/// The next definition, or the call fails with ENOSYS.
macro_rules! call {
    ($next:ident, $failed:expr, $($argument:expr),*) => {{
        let Some(real) = $next.get() else {
            // SAFETY: the calling thread's own variable.
            unsafe { *libc::__errno_location() = libc::ENOSYS };
            return $failed;
        };
        // SAFETY: the caller's own call.
        unsafe { real($($argument),*) }
    }};
}

pub(crate) use call;
