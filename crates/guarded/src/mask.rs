//! SIGSEGV and SIGBUS are unblocked while the guarded copy touches application memory: the kernel kills a process
//! when a thread faults while it blocks the signal of that fault.
//!
//! The first copy of an engine turn unblocks them, which is a system call, and the end of the turn blocks again what
//! was blocked. If the program's calls that change a thread's mask are reported (`watch`), a thread that never
//! blocked them is not checked again. A thread that did is checked in every turn: a jump out of a handler, or a
//! change of contexts, may restore an old mask. Two cases are missed: raw system calls that block them for the first
//! time, and signal handlers that block them and use the adapter.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// SIGSEGV and SIGBUS as bits of the kernel's signal mask.
const FAULTS: u64 = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);

/// What glibc cancels threads and changes their users with.
const LIBRARY: u64 = 3 << 31;

static WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static THREAD: Thread = const {
        Thread {
            unblocked: Cell::new(false),
            known_unblocked: Cell::new(false),
            was_blocked: Cell::new(false),
            in_turn: Cell::new(false),
            to_block: Cell::new(0),
        }
    };
}

struct Thread {
    /// Both are unblocked, at least for the rest of this turn.
    unblocked: Cell<bool>,
    /// Both stay unblocked until [`changed`] is called.
    known_unblocked: Cell<bool>,
    /// One of them was blocked at some time.
    was_blocked: Cell<bool>,
    in_turn: Cell<bool>,
    /// The signals that the end of the turn blocks again.
    to_block: Cell<u64>,
}

/// Declares that the program's calls that change masks are reported by [`changes`].
pub fn watch() {
    WATCHED.store(true, Ordering::Release);
}

/// This thread may have blocked SIGSEGV or SIGBUS.
fn changed() {
    THREAD.with(|thread| {
        thread.unblocked.set(false);
        thread.known_unblocked.set(false);
        thread.was_blocked.set(true);
    });
}

/// Calls [`changed`] if such a change of the mask may block SIGSEGV or SIGBUS.
pub fn changes(how: libc::c_int, set: &libc::sigset_t) {
    // SAFETY: a valid set of the caller, and valid signal numbers.
    let blocks = how != libc::SIG_UNBLOCK
        && unsafe { libc::sigismember(set, libc::SIGSEGV) == 1 || libc::sigismember(set, libc::SIGBUS) == 1 };
    if blocks {
        changed();
    }
}

/// Called by a thread of Weir, which runs no code of the program and has both signals unblocked.
pub fn assume_unblocked() {
    THREAD.with(|thread| {
        thread.unblocked.set(true);
        thread.known_unblocked.set(true);
    });
}

/// Runs `copy` with both signals unblocked.
#[inline]
pub fn with_faults_unblocked<T>(copy: impl FnOnce() -> T) -> T {
    let ready = THREAD.with(|thread| thread.unblocked.get());
    if ready { copy() } else { unblock_for(copy) }
}

#[cold]
#[inline(never)]
fn unblock_for<T>(copy: impl FnOnce() -> T) -> T {
    let were_blocked = change(libc::SIG_UNBLOCK, FAULTS) & FAULTS;
    let in_turn = THREAD.with(|thread| {
        thread.was_blocked.set(thread.was_blocked.get() || were_blocked != 0);
        let known_unblocked = WATCHED.load(Ordering::Relaxed) && !thread.was_blocked.get();
        thread.known_unblocked.set(known_unblocked);
        thread.unblocked.set(known_unblocked || thread.in_turn.get());
        if thread.in_turn.get() {
            thread.to_block.set(thread.to_block.get() | were_blocked);
        }
        thread.in_turn.get()
    });
    let result = copy();
    if !in_turn && were_blocked != 0 {
        change(libc::SIG_BLOCK, were_blocked);
    }
    result
}

/// Begins a turn: signals that its first copy unblocks stay unblocked until the turn ends.
#[inline]
pub fn turn_begins() {
    THREAD.with(|thread| thread.in_turn.set(true));
}

/// Ends a turn and restores the mask.
#[inline]
pub fn turn_ends() {
    THREAD.with(|thread| {
        thread.in_turn.set(false);
        thread.unblocked.set(thread.known_unblocked.get());
        if thread.to_block.get() != 0 {
            change(libc::SIG_BLOCK, thread.to_block.replace(0));
        }
    });
}

/// Runs `work` with all signals blocked.
pub fn with_all_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = change(libc::SIG_SETMASK, u64::MAX);
    let result = work();
    change(libc::SIG_SETMASK, before);
    result
}

/// Runs `work` with all signals blocked but SIGSEGV and SIGBUS, and those of the C library: a thread that it starts inherits
/// that, and runs no handler of the program.
pub fn with_others_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = change(libc::SIG_SETMASK, !(FAULTS | LIBRARY));
    let result = work();
    change(libc::SIG_SETMASK, before);
    result
}

/// Changes this thread's mask by the raw system call, because the library function leads back to [`changes`]. Returns
/// the mask before.
fn change(how: libc::c_int, set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two sets of the size that is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set, &raw mut before, size_of::<u64>()) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of SIGSEGV and SIGBUS this thread blocks.
    fn blocked() -> u64 {
        change(libc::SIG_BLOCK, 0) & FAULTS
    }

    #[test]
    fn a_turn_unblocks_signals_once_and_restores_the_mask() {
        change(libc::SIG_BLOCK, FAULTS);
        turn_begins();
        assert_eq!(blocked(), FAULTS, "no copy, no change");
        assert_eq!(with_faults_unblocked(blocked), 0);
        assert_eq!(blocked(), 0);
        assert_eq!(with_faults_unblocked(blocked), 0);
        turn_ends();
        assert_eq!(blocked(), FAULTS);
        assert_eq!(with_faults_unblocked(blocked), 0, "without a turn");
        assert_eq!(blocked(), FAULTS);
        change(libc::SIG_UNBLOCK, FAULTS);
        change(libc::SIG_BLOCK, 1 << (libc::SIGBUS - 1));
        turn_begins();
        assert_eq!(with_faults_unblocked(blocked), 0, "this thread is checked again");
        turn_ends();
        assert_eq!(blocked(), 1 << (libc::SIGBUS - 1));
        change(libc::SIG_UNBLOCK, FAULTS);
    }

    #[test]
    fn after_a_reported_change_of_the_mask_the_thread_is_checked_again() {
        watch();
        assert_eq!(with_faults_unblocked(blocked), 0);
        assert!(THREAD.with(|thread| thread.unblocked.get()), "this thread is not checked again");
        // SAFETY: sets on the stack.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            changes(libc::SIG_SETMASK, &set);
            assert!(THREAD.with(|thread| thread.unblocked.get()), "blocks neither of them");
            libc::sigaddset(&mut set, libc::SIGBUS);
            changes(libc::SIG_UNBLOCK, &set);
            assert!(THREAD.with(|thread| thread.unblocked.get()), "unblocks one of them");
            changes(libc::SIG_BLOCK, &set);
        }
        change(libc::SIG_BLOCK, FAULTS);
        assert_eq!(with_faults_unblocked(blocked), 0);
        assert_eq!(blocked(), FAULTS);
        change(libc::SIG_UNBLOCK, FAULTS);
    }
}
