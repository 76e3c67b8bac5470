//! The end of the process, where the library is notified of it: owed ACKs leave before it.
//!
//! A QP that answers each message by a send holds an ACK back for up to 200 µs, and another thread may be about to
//! send one. A process that ends by `_exit`, or becomes another program by `execve`, would lose them. These calls may
//! come from a signal handler that interrupted a thread while it held a lock of this library. So the engine's thread
//! does the work, and the caller waits for a limited time.

use crate::adapter::registry;
use crate::os::cancel::Uncancelled;
use crate::os::clock;
use crate::os::deaths;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The pid of the process that opened an adapter. A child of vfork shares this memory but has another pid.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Longest wait at the end of a process. A thread that a signal handler interrupted may hold a needed lock.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Time between two checks.
const LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 10_000 };

/// This process has an adapter.
pub(crate) fn begin() {
    OWNER.store(own_pid(), Ordering::Relaxed);
}

/// Sends owed ACKs, and completes captures, before the process ends or becomes another program. Does nothing in children of the process that
/// opened the device. Allocates nothing.
pub fn flush() {
    if OWNER.load(Ordering::Relaxed) != own_pid() {
        return;
    }
    // Waiting and waking are cancellation points.
    let _uncancelled = Uncancelled::new();
    registry::each_open(|adapter| {
        let ticket = adapter.pace.ask_flush();
        let began = clock::now();
        while !adapter.pace.has_flushed(ticket) && clock::now() - began < LONGEST_WAIT {
            // SAFETY: reads one timespec.
            unsafe { libc::nanosleep(&LOOK, std::ptr::null_mut()) };
        }
    });
    deaths::complete_captures();
}

fn own_pid() -> i32 {
    // SAFETY: a call without arguments that cannot fail.
    unsafe { libc::getpid() }
}
