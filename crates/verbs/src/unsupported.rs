//! Public calls that no adapter here serves yet. They exist all the same, and say EOPNOTSUPP: a call that is missing
//! here would be answered by the distribution's library, which would take our objects for its own.

use crate::abi::*;
use crate::ffi::{EOPNOTSUPP, object, status};
use std::ffi::c_int;

/// Exports that return a NULL pointer and EOPNOTSUPP.
macro_rules! no_object {
    ($($name:ident($($arg:ident: $type:ty),*) -> $object:ty;)*) => {$(
        #[doc = "NULL, with errno EOPNOTSUPP."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> *mut $object {
            $(let _ = $arg;)*
            object(|| Err(EOPNOTSUPP))
        }
    )*};
}

/// Exports that return EOPNOTSUPP.
macro_rules! no_status {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = "EOPNOTSUPP."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> c_int {
            $(let _ = $arg;)*
            status(|| Err(EOPNOTSUPP))
        }
    )*};
}

no_object! {
    ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> ibv_mr;
}

no_status! {
    ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16);
    ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16);
}
