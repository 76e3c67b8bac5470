//! The C library's functions that set signal handlers and signal masks.
//!
//! The program's handlers of SIGSEGV and SIGBUS run after the adapter's own, whenever the program sets them
//! (`weir_device::signals`). Masks belong to the program; the adapter tracks when a mask may block these two
//! signals.

use super::errno::fail_enosys;
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

/// Looks up the next definitions, and starts to watch masks if programs call the functions of this library first.
pub fn look_up() {
    SIGACTION.look_up();
    SIGNAL.look_up();
    SYSV_SIGNAL.look_up();
    SIGPROCMASK.look_up();
    PTHREAD_SIGMASK.look_up();
    // In a program that opens the library later, the C library's functions come first.
    // SAFETY: NUL-terminated names.
    let first = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let process: *mut c_void = sigprocmask as *const () as *mut c_void;
    let thread: *mut c_void = weir_pthread_sigmask as *const () as *mut c_void;
    if first(c"sigprocmask") == process && same_code(first(c"pthread_sigmask"), thread) {
        signals::watch();
    }
}

/// `pthread_sigmask` has two versions; `versions.c` exports both and calls `weir_pthread_sigmask`. So the comparison
/// is by library, not by address.
fn same_code(found: *mut c_void, ours: *mut c_void) -> bool {
    // SAFETY: the call fills the structure and accepts any address.
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
    // SAFETY: the caller's structures. Both pointers may be equal: the new action is copied before the old one is
    // written.
    unsafe {
        let copy = new.as_ref().copied();
        if signals::change(signal, copy.as_ref(), old.as_mut()).is_some() {
            return 0;
        }
        match SIGACTION.found_or_look_up() {
            Some(next) => next(signal, new, old),
            None => fail_enosys(),
        }
    }
}

/// As signal(3).
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call; both signals exist.
    unsafe {
        let mut action = plain(handler, libc::SA_RESTART);
        if number == libc::SIGSEGV || number == libc::SIGBUS {
            libc::sigaddset(&mut action.sa_mask, number);
        }
        set(number, action)
            .unwrap_or_else(|| SIGNAL.found_or_look_up().map_or(libc::SIG_ERR, |next| next(number, handler)))
    }
}

/// Another name of `signal`.
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsd_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe { signal(number, handler) }
}

/// Another name of `signal`.
///
/// # Safety
/// As signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ssignal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe { signal(number, handler) }
}

/// As sysv_signal(3): the handler is reset after one signal, and the signal is not blocked while it runs.
///
/// # Safety
/// As sysv_signal(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sysv_signal(number: c_int, handler: sighandler_t) -> sighandler_t {
    // SAFETY: the caller's own call.
    unsafe {
        set(number, plain(handler, libc::SA_RESETHAND | libc::SA_NODEFER))
            .unwrap_or_else(|| SYSV_SIGNAL.found_or_look_up().map_or(libc::SIG_ERR, |next| next(number, handler)))
    }
}

/// Another name of `__sysv_signal`.
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
        match SIGPROCMASK.found_or_look_up() {
            Some(next) => next(how, set, old),
            None => fail_enosys(),
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
        match PTHREAD_SIGMASK.found_or_look_up() {
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

/// Sets a handler that runs after the adapter's and returns the previous one. `None` if the adapter does not handle
/// this signal.
fn set(number: c_int, action: Action) -> Option<sighandler_t> {
    let mut old = plain(libc::SIG_DFL, 0);
    signals::change(number, Some(&action), Some(&mut old)).map(|()| old.sa_sigaction)
}
