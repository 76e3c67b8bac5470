//! Functions of libraries, looked up at run time.

use std::ffi::{CStr, c_void};

/// A library that the process has loaded already, perhaps out of reach of the default search; null, if it has not.
pub fn library(name: &CStr) -> *mut c_void {
    // SAFETY: opens what is loaded.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
}

/// A function of a library, of a version or the default one.
///
/// # Safety
/// The library is open, or null. `F` is the type of the function.
pub unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr, version: Option<&CStr>) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library, and strings.
    let found = unsafe {
        match version {
            Some(version) => libc::dlvsym(library, name.as_ptr(), version.as_ptr()),
            None => libc::dlsym(library, name.as_ptr()),
        }
    };
    // SAFETY: the caller's type is that of the function's pointer.
    (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
}
