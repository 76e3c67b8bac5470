//! What the log says when a call fails because there is no free file descriptor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weir_device::Errno;

/// The log says it at most this often: a program may try again and again.
const SILENCE: Duration = Duration::from_secs(1);

/// A call of the program fails with this error.
#[inline]
pub fn explain(errno: &Errno) {
    if matches!(errno.0, libc::EMFILE | libc::ENFILE) {
        say(*errno);
    }
}

#[cold]
fn say(errno: Errno) {
    /// When the log said it last (nanoseconds); 0: never.
    static SAID: AtomicU64 = AtomicU64::new(0);
    let now = weir_device::now().0.max(1);
    let last = SAID.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < SILENCE.as_nanos() as u64 {
        return;
    }
    SAID.store(now, Ordering::Relaxed);
    if errno.0 == libc::ENFILE {
        tracing::error!("a call failed: the machine has no free file descriptor. Raise the sysctl fs.file-max");
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure on the stack.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    tracing::error!(
        "a call failed: the process has no free file descriptor, it may have {}. Raise `ulimit -n`, or close files",
        limit.rlim_cur
    );
}
