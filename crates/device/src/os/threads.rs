//! Threads of the library.

use std::cell::Cell;

/// The calling thread's next timed waits may end up to `wait` nanoseconds late, together with another timer of the
/// core. 0: as the kernel does by default, 50 µs or what the process has set.
pub fn let_timers_wait(wait: u64) {
    thread_local! {
        static SET: Cell<u64> = const { Cell::new(0) };
    }
    // A system call for each eighth is enough.
    let slack = if wait == 0 { 0 } else { wait - wait % (1 << wait.ilog2().saturating_sub(3)) };
    if SET.replace(slack) != slack {
        // It cannot fail, and changes this thread only.
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack, 0, 0, 0) };
    }
}

/// Runs `work` with signals blocked; threads that it creates inherit the mask.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: masks on the stack. SIGSEGV and SIGBUS stay unblocked, because the guarded copy needs them.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slack() -> i32 {
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) }
    }

    #[test]
    fn timers_wait_in_the_calling_thread_only() {
        let before = slack();
        std::thread::spawn(move || {
            let_timers_wait(4_000_000);
            assert!((3_500_000..=4_000_000).contains(&slack()), "{}", slack());
            let_timers_wait(0);
            assert_eq!(slack(), before);
            let_timers_wait(4_000_000);
        })
        .join()
        .unwrap();
        assert_eq!(slack(), before);
    }
}
