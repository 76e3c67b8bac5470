//! What functions return that fail: errno, and a text.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use weir_edge::Error;

thread_local! {
    static LATEST: RefCell<CString> = RefCell::default();
}

/// Runs a function for C: `failed` is what it returns on failure, or after a panic.
pub fn guarded<T>(failed: T, work: impl FnOnce() -> Result<T, Error>) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            note(&error);
            failed
        }
        Err(_) => {
            note(&Error::System { what: "a fault of libweir-edge; please report it", errno: libc::EIO });
            failed
        }
    }
}

/// Sets errno and the text.
pub fn note(error: &Error) {
    let text = CString::new(error.to_string()).unwrap_or_default();
    // A thread that ends may have no such variable any more.
    let _ = LATEST.try_with(|latest| latest.replace(text));
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = error.errno() };
}

/// The text of the latest failure of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn edge_error() -> *const c_char {
    LATEST.try_with(|latest| latest.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
