//! A forked child has its parent's memory but not its adapter: the child closes the descriptors, and every call on an
//! object of the parent fails before it touches a lock of the parent. [`crate::os::per_process`] handles state that
//! belongs to no object.

use crate::os::per_process::OnceInherited;
use crate::os::{descriptors, handlers, process};
use crate::paging::invalidate;
use crate::userfault;

/// Installs the fork handlers, which increment the generation in a child. Runs once per process.
pub fn install_handlers() {
    static ONCE: OnceInherited = OnceInherited::new();
    // SAFETY: the handlers use only atomics, yield and close.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
    });
}

/// Installs the handlers when the code is loaded. No thread is inside a call of the library yet, so that no fork can
/// interrupt a call before the handlers exist.
#[used]
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install_at_load;

extern "C" fn install_at_load() {
    install_handlers();
}

extern "C" fn before() {
    descriptors::before_fork();
}

extern "C" fn in_parent() {
    descriptors::after_fork();
}

extern "C" fn in_child() {
    process::count_fork();
    invalidate::forget_in_child();
    userfault::forget_in_child();
    handlers::inherited();
    descriptors::close_in_child();
}
