//! Fork support. It needs no work: the adapter uses the process's own page tables, so that a page copied after a fork
//! stays at the addresses that were registered.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

const IBV_FORK_DISABLED: c_int = 0;
const IBV_FORK_ENABLED: c_int = 1;

/// Always succeeds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    REQUESTED.store(true, Ordering::Relaxed);
    0
}

/// As programs expect it: enabled after the first `ibv_fork_init`.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    if REQUESTED.load(Ordering::Relaxed) { IBV_FORK_ENABLED } else { IBV_FORK_DISABLED }
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
