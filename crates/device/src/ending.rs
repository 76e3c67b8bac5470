//! The end of a process that the library is told of: what is owed to peers leaves before it.
//!
//! A QP that answers each message holds an ACK back for up to 200 µs, and another thread may be about to send one. A
//! process that ends by `_exit` or becomes another program by `execve` would take them along. These calls may come from
//! a signal handler, which may have interrupted this library with a lock in its hands. So the engine's thread does the
//! work, and the caller waits for a limited time.

use crate::cancel::Uncancelled;
use crate::{adapter, clock};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The process that opened an adapter. A child of vfork shares this memory and is another process.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Longest that the end of a process waits. A thread that a signal handler interrupted may hold what is needed.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two looks.
const LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000 };

/// This process has an adapter.
pub(crate) fn begin() {
    OWNER.store(own_pid(), Ordering::Relaxed);
}

/// Sends what is owed to peers, before the process ends or becomes another program. Children of the process that opened
/// the device do nothing. Allocates nothing.
pub fn flush() {
    if OWNER.load(Ordering::Relaxed) != own_pid() {
        return;
    }
    // Waiting and waking are cancellation points.
    let _uncancelled = Uncancelled::new();
    adapter::each_open(|adapter| {
        let ticket = adapter.pace.ask_flush();
        let began = clock::now();
        while !adapter.pace.has_flushed(ticket) && clock::now() - began < PATIENCE {
            // SAFETY: one timespec that is read.
            unsafe { libc::nanosleep(&LOOK, std::ptr::null_mut()) };
        }
    });
}

fn own_pid() -> i32 {
    // SAFETY: asks for a number.
    unsafe { libc::getpid() }
}
