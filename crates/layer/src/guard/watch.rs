//! The thread that acts when a request is open for too long. It sleeps while no request is open.

use super::prefetch::forget_pages;
use super::{again, work};
use crate::clock::steady_ns;
use crate::objects::QPS;
use crate::qp::Qp;
use crate::quiet::observe;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::Duration;
use weir_guard::Action;

/// The longest and the shortest sleep while requests are open.
const TICK: Duration = Duration::from_millis(2);
const SHORTEST: Duration = Duration::from_micros(200);
/// So many ticks without an open request the thread waits, because a wake-up costs the posting thread a system call.
const LINGER: u32 = 50;

static STARTED: AtomicBool = AtomicBool::new(false);
/// 1: the thread sleeps until a request is posted.
static ASLEEP: AtomicU32 = AtomicU32::new(0);

/// Starts the thread, unless it runs. Without it guards do not act.
pub fn start() {
    if STARTED.swap(true, AcqRel) {
        return;
    }
    crate::clock::start();
    // The thread must not take signals that are for the program's threads.
    let before = mask(!0);
    let made = std::thread::Builder::new().name("weir-guard".into()).stack_size(256 << 10).spawn(run);
    mask(before);
    if made.is_err() {
        STARTED.store(false, Release);
    }
}

/// Sets this thread's signal mask; returns the one before. The C library's function would tell Weir's that the program
/// blocks signals, after which Weir would look at the mask for each message.
fn mask(set: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two sets of the size that is passed.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &set, &raw mut before, size_of::<u64>()) };
    before
}

/// In a forked child, which has no such thread.
pub fn forget() {
    STARTED.store(false, Relaxed);
    ASLEEP.store(0, Relaxed);
}

/// The QP has an open request.
#[inline]
pub fn look_at(own: &Qp) {
    if own.guard.set_busy() && ASLEEP.load(SeqCst) != 0 {
        wake();
    }
}

#[cold]
fn wake() {
    ASLEEP.store(0, SeqCst);
    // SAFETY: an aligned number that is never freed.
    unsafe { libc::syscall(libc::SYS_futex, ASLEEP.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

fn run() {
    let mut idle = 0;
    loop {
        let now = steady_ns();
        // After a panic nothing is watched any more.
        let Some(next) = observe(|| look(now)) else { return };
        idle = if next.is_some() { 0 } else { idle + 1 };
        if idle < LINGER {
            let until = next.unwrap_or(u64::MAX).saturating_sub(steady_ns());
            std::thread::sleep(Duration::from_nanos(until).clamp(SHORTEST, TICK));
            continue;
        }
        ASLEEP.store(1, SeqCst);
        let mut busy = false;
        QPS.each(|own| busy |= own.guard.is_busy());
        if busy {
            ASLEEP.store(0, SeqCst);
            continue;
        }
        // SAFETY: an aligned number that is never freed.
        unsafe {
            let (wait, none) = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, ptr::null::<libc::timespec>());
            libc::syscall(libc::SYS_futex, ASLEEP.as_ptr(), wait, 1, none)
        };
        idle = 0;
    }
}

/// Acts on all QPs with open requests; returns when one of them needs it next.
fn look(now: u64) -> Option<u64> {
    let mut next = None;
    QPS.each(|own| {
        if own.guard.is_on() && own.guard.is_busy() && !own.is_inherited() {
            let due = act(own, now).unwrap_or(now + TICK.as_nanos() as u64);
            next = Some(next.map_or(due, |next: u64| next.min(due)));
        }
    });
    next
}

/// Acts on a QP, if it is time; returns when to look again.
fn act(own: &Qp, now: u64) -> Option<u64> {
    let _acting = own.guard.acting();
    let action = own.guard.with(|state| {
        if state.connection.is_idle() {
            own.guard.set_idle();
        }
        state.connection.poll(now)
    });
    match action? {
        None => {}
        Some(Action::Dummy { kind, remote, signaled }) => {
            forget_pages();
            post_dummy(own, kind, remote, signaled);
        }
        Some(Action::StartAgain) => {
            forget_pages();
            again::start(own);
        } // The layer posts all requests at once.
    }
    own.guard.with(|state| state.connection.next()).flatten()
}

fn post_dummy(own: &Qp, kind: weir_guard::Kind, remote: weir_guard::Remote, signaled: bool) {
    // A thread of the program that builds requests holds it: another time.
    let Some(_posting) = own.posting.try_hold() else { return };
    own.guard.with(|state| {
        if state.take_entry() {
            let signaled = signaled || state.signal_all;
            let dummy = || work::dummy(kind, remote, signaled);
            let request = dummy();
            state.connection.posted_dummy(steady_ns(), dummy());
            // SAFETY: the QP exists, because `acting` is held; so is `posting`.
            if unsafe { work::post(&request, state.qp, own.context()) } != 0 {
                state.connection.refused(kind, 0, signaled);
                state.settle();
            }
        }
    });
}
