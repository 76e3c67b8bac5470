//! The C library's functions that set handlers and masks of signals.
//!
//! Handlers of SIGSEGV and SIGBUS that the program sets come after the adapter's own, whenever they are set
//! (`weir_device::signals`). Masks are the program's; the adapter has to know when one may close these two.

use super::next::Next;
use libc::{c_int, c_void, sighandler_t, sigset_t};
use std::mem::MaybeUninit;
use weir_device::signals;

type Action = libc::sigaction;
type Mask = unsafe extern "C" fn(c_int, *const sigset_t, *mut sigset_t) -> c_int;

static SIGACTION: Next<unsafe extern "C" fn(c_int, *const Action, *mut Action) -> c_int> = Next::new(c"sigaction");
static SIGNAL: Next<unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t> = Next::new(c"signal");
static SYSV_SIGNAL: Next<unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t> = Next::new(c"__sysv_signal");
static SIGPROCMASK: Next<Mask> = Next::new(c"sigprocmask");
static PTHREAD_SIGMASK: Next<Mask> = Next::new(c"pthread_sigmask");

/// Looks for the next ones, and whether programs come here before them.
pub fn look() {
    SIGACTION.look();
    SIGNAL.look();
    SYSV_SIGNAL.look();
    SIGPROCMASK.look();
    PTHREAD_SIGMASK.look();
    // A program that opens the library later finds the C library's first.
    // SAFETY: names that end with a zero.
    let first = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let process: *mut c_void = sigprocmask as *const () as *mut c_void;
    let thread: *mut c_void = weir_pthread_sigmask as *const () as *mut c_void;
    if first(c"sigprocmask") == process && same_code(first(c"pthread_sigmask"), thread) {
        signals::watch();
    }
}

/// `pthread_sigmask` is a name of two versions, which `versions.c` gives to functions that call ours.
fn same_code(found: *mut c_void, ours: *mut c_void) -> bool {
    // SAFETY: structures to fill, about addresses of any kind.
    let library = |address: *mut c_void| unsafe {
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        (libc::dladdr(address, info.as_mut_ptr()) != 0).then(|| info.assume_init().dli_fbase)
    };
    !found.is_null() && library(found) == library(ours)
}

/// As sigaction(2).
///
/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's own structures. Both may be the same one: `change` reads before it writes.
    unsafe {
        let copy = new.as_ref().copied();
        if signals::change(signal, copy.as_ref(), old.as_mut()).is_some() {
            return 0;
        }
        match SIGACTION.found_or_look() {
            Some(next) => next(signal, new, old),
            None => super::refused(),
        }
    }
}

/// As signal(3).
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call; signals that there are.
    unsafe {
        let mut action = plain(handler, libc::SA_RESTART);
        if number == libc::SIGSEGV || number == libc::SIGBUS {
            libc::sigaddset(&mut action.sa_mask, number);
        }
        set(number, action)
            .unwrap_or_else(|| SIGNAL.found_or_look().map_or(libc::SIG_ERR, |next| next(number, handler)))
    }
}

/// Another name of it.
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe { signal(number, handler) }
}

/// Another name of it.
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe { signal(number, handler) }
}

/// As sysv_signal(3): the handler is for one signal, which it does not block.
///
/// # Safety
/// As sysv_signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe {
        set(number, plain(handler, libc::SA_RESETHAND | libc::SA_NODEFER))
            .unwrap_or_else(|| SYSV_SIGNAL.found_or_look().map_or(libc::SIG_ERR, |next| next(number, handler)))
    }
}

/// Another name of it.
///
/// # Safety
/// As sysv_signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe { __sysv_signal(number, handler) }
}

/// As sigprocmask(2).
///
/// # Safety
/// As sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's own call.
    unsafe {
        if let Some(set) = set.as_ref() {
            signals::changes(how, set);
        }
        match SIGPROCMASK.found_or_look() {
            Some(next) => next(how, set, old),
            None => super::refused(),
        }
    }
}

/// As pthread_sigmask(3). Exported as `pthread_sigmask` in two versions, by `versions.c`.
///
/// # Safety
/// As pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: the caller's own call.
    unsafe {
        if let Some(set) = set.as_ref() {
            signals::changes(how, set);
        }
        match PTHREAD_SIGMASK.found_or_look() {
            Some(next) => next(how, set, old),
            None => libc::ENOSYS,
        }
    }
}

fn plain(handler: sighandler_t, flags: c_int) -> Action {
    // SAFETY: zero is a valid value of each member.
    let zero: Action = unsafe { std::mem::zeroed() };
    Action { sa_sigaction: handler, sa_flags: flags, ..zero }
}

/// Sets a handler that comes after ours; the one before. `None` where ours has no part in it.
fn set(number: c_int, action: Action) -> Option<sighandler_t> {
    let mut old = plain(libc::SIG_DFL, 0);
    signals::change(number, Some(&action), Some(&mut old)).map(|()| old.sa_sigaction)
}
