//! Public functions that no adapter supports yet. They are exported and return EOPNOTSUPP: if a function were missing
//! here, the loader would take the distribution's, which would treat Weir's objects as its own.

use crate::abi::*;
use crate::ffi::{EOPNOTSUPP, number, object, status};
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

no_object! {
    ibv_alloc_dmah(context: *mut ibv_context, attr: *mut Opaque) -> Opaque;
    ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> ibv_mr;
}

/// EOPNOTSUPP: there is no handle.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dealloc_dmah(dmah: *mut Opaque) -> c_int {
    let _ = dmah;
    status(|| Err(EOPNOTSUPP))
}

/// -1, with errno EOPNOTSUPP: device memory is ordinary memory of this process.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    let _ = dm;
    number(|| Err(EOPNOTSUPP))
}
