//! The guards of `weir run --guard` in this process: `weir_guard` decides, this folder posts.
//!
//! [`qp`] is a QP's state, [`post`] enters its requests ([`prefetch`]: after their pages have come), [`poll`] hides the completions of dummies, [`watch`] is the
//! thread that acts on time, [`again`] starts a QP again, with [`pinned`] memory for its READs. [`attributes`] has what
//! the program has set, and [`rnr`] sets some of it differently.
//!
//! Locks are taken in this order: `acting` of a QP (the thread acts on it), the CQ's stash, `posting` of the QP, the
//! guard's state of a QP.

pub mod again;
pub mod attributes;
pub mod cq;
pub mod pinned;
pub mod poll;
pub mod post;
pub mod prefetch;
pub mod qp;
pub mod rnr;
pub mod watch;
pub mod work;

use std::ffi::CStr;
use std::sync::OnceLock;
use weir_guard::Guards;

/// The guards of this process, by the environment variable of `weir run --guard`. A list with an unknown word is none:
/// `weir run` has checked it.
#[inline]
pub fn list() -> Guards {
    static LIST: OnceLock<Guards> = OnceLock::new();
    *LIST.get_or_init(|| {
        unsafe extern "C" {
            // NULL for a program that has gained privileges.
            fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
        }
        // SAFETY: a NUL-terminated name; the value is read before the program can change the environment.
        let text = unsafe {
            let value = secure_getenv(c"WEIR_GUARD".as_ptr());
            if value.is_null() { return Guards::default() } else { CStr::from_ptr(value) }
        };
        text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or_default()
    })
}
