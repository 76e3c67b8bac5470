//! SIGSEGV and SIGBUS are open while the guarded copy touches application memory: the kernel kills a process whose thread
//! blocks the signal of its own fault.
//!
//! The first copy of a turn opens them, which is a system call, and the end of the turn closes again what was closed.
//! Where calls of the program that change a thread's mask are seen (`watched`), a thread that was never seen to block
//! them is not asked again. A thread that did is asked in every turn: a jump out of a handler, or a change of contexts,
//! may bring an old mask back. Not seen are raw system calls that close them for the first time, and handlers of signals
//! that block them and use the adapter.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// SIGSEGV and SIGBUS, as the kernel counts.
const FAULTS: u64 = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);

static WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD: Thread = const {
        Thread {
            open: Cell::new(false),
            trusted: Cell::new(false),
            suspect: Cell::new(false),
            in_turn: Cell::new(false),
            to_close: Cell::new(0),
        }
    };
}

struct Thread {
    /// They are open, for the rest of this turn at least.
    open: Cell<bool>,
    /// They stay open until [`changed`] says otherwise.
    trusted: Cell<bool>,
    /// They were closed once.
    suspect: Cell<bool>,
    in_turn: Cell<bool>,
    /// What the end of the turn closes again.
    to_close: Cell<u64>,
}

/// Calls that change masks are told of from now on.
pub fn watch() {
    WATCHED.store(true, Ordering::Release);
}

/// This thread may have closed one of them.
fn changed() {
    THREAD.with(|thread| {
        thread.open.set(false);
        thread.trusted.set(false);
        thread.suspect.set(true);
    });
}

/// As [`changed`], if such a change may close one of them.
pub fn changes(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: a set of the caller, and signals that there are.
    let closes = how != libc::SIG_UNBLOCK
        && unsafe { libc::sigismember(set, libc::SIGSEGV) == 1 || libc::sigismember(set, libc::SIGBUS) == 1 };
    if closes {
        changed();
    }
}

/// A thread of ours, which runs no code of the program and has them open.
pub fn is_open() {
    THREAD.with(|thread| {
        thread.open.set(true);
        thread.trusted.set(true);
    });
}

/// Copies with them open.
#[inline]
pub fn opened<T>(copy: impl FnOnce() -> T) -> T {
    let ready = THREAD.with(|thread| thread.open.get());
    if ready { copy() } else { opening(copy) }
}

#[cold]
#[inline(never)]
fn opening<T>(copy: impl FnOnce() -> T) -> T {
    let closed = change(libc::SIG_UNBLOCK, FAULTS) & FAULTS;
    let in_turn = THREAD.with(|thread| {
        thread.suspect.set(thread.suspect.get() || closed != 0);
        let trusted = WATCHED.load(Ordering::Relaxed) && !thread.suspect.get();
        thread.trusted.set(trusted);
        thread.open.set(trusted || thread.in_turn.get());
        if thread.in_turn.get() {
            thread.to_close.set(thread.to_close.get() | closed);
        }
        thread.in_turn.get()
    });
    let result = copy();
    if !in_turn && closed != 0 {
        change(libc::SIG_BLOCK, closed);
    }
    result
}

/// A turn begins: what its first copy opens stays open until it ends.
#[inline]
pub fn turn_begins() {
    THREAD.with(|thread| thread.in_turn.set(true));
}

/// It ends.
#[inline]
pub fn turn_ends() {
    THREAD.with(|thread| {
        thread.in_turn.set(false);
        thread.open.set(thread.trusted.get());
        if thread.to_close.get() != 0 {
            change(libc::SIG_BLOCK, thread.to_close.replace(0));
        }
    });
}

/// Works with all signals blocked.
pub fn with_all_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = change(libc::SIG_SETMASK, u64::MAX);
    let result = work();
    change(libc::SIG_SETMASK, before);
    result
}

/// Changes this thread's mask by the system call itself, for the library's own function leads back to [`changes`]. The
/// mask before.
fn change(how: libc::c_int, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two sets of the size that is given.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut before, size_of::<u64>()) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this thread blocks of the two.
    fn blocked() -> u64 {
        change(libc::SIG_BLOCK, 0) & FAULTS
    }

    #[test]
    fn a_turn_opens_them_once_and_closes_what_was_closed() {
        change(libc::SIG_BLOCK, FAULTS);
        turn_begins();
        assert_eq!(blocked(), FAULTS, "no copy, no change");
        assert_eq!(opened(blocked), 0);
        assert_eq!(blocked(), 0);
        assert_eq!(opened(blocked), 0);
        turn_ends();
        assert_eq!(blocked(), FAULTS);
        assert_eq!(opened(blocked), 0, "without a turn");
        assert_eq!(blocked(), FAULTS);
        change(libc::SIG_UNBLOCK, FAULTS);
        change(libc::SIG_BLOCK, 1 << (libc::SIGBUS - 1));
        turn_begins();
        assert_eq!(opened(blocked), 0, "this thread is asked again");
        turn_ends();
        assert_eq!(blocked(), 1 << (libc::SIGBUS - 1));
        change(libc::SIG_UNBLOCK, FAULTS);
    }

    #[test]
    fn a_change_that_is_told_of_ends_trust() {
        watch();
        assert_eq!(opened(blocked), 0);
        assert!(THREAD.with(|thread| thread.open.get()), "it is not asked again");
        // SAFETY: sets on the stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            changes(libc::SIG_SETMASK, &set);
            assert!(THREAD.with(|thread| thread.open.get()), "that closes neither");
            libc::sigaddset(&mut set, libc::SIGBUS);
            changes(libc::SIG_UNBLOCK, &set);
            assert!(THREAD.with(|thread| thread.open.get()), "that opens one");
            changes(libc::SIG_BLOCK, &set);
        }
        change(libc::SIG_BLOCK, FAULTS);
        assert_eq!(opened(blocked), 0);
        assert_eq!(blocked(), FAULTS);
        change(libc::SIG_UNBLOCK, FAULTS);
    }
}
