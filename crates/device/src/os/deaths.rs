//! Signals that end the process by default: what captures hold is written before.
//!
//! The handlers are installed only where there is a capture, and only for signals with the default action; a program
//! that sets its own action replaces them. SIGSEGV and SIGBUS have Weir's handler already (`handlers.rs`).

use crate::os::handlers;
use crate::os::per_process::OnceInherited;
use libc::{c_int, c_void, siginfo_t};
use std::mem::MaybeUninit;
use weir_link::capture::flush_captures;

const DEADLY: [c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGFPE,
    libc::SIGTERM,
];

/// Time between two checks whether the captures are written.
const LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };

unsafe extern "C" {
    /// The C library's internal name: `sigaction` may be interposed.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Writes what the captures of this process hold; waits half a second at most. May be called in a signal handler.
pub fn complete_captures() {
    // SAFETY: reads one timespec.
    flush_captures(|| _ = unsafe { libc::nanosleep(&LOOK, std::ptr::null_mut()) });
}

/// Installs the handlers, once per process.
pub fn install() {
    static ONCE: OnceInherited = OnceInherited::new();
    ONCE.call_once(|| {
        handlers::before_death(complete_captures);
        for signal in DEADLY {
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: fills the struct, which is valid when zeroed; the new action is a function of the right type.
            unsafe {
                let read = __sigaction(signal, std::ptr::null(), before.as_mut_ptr()) == 0;
                if read && before.assume_init_ref().sa_sigaction == libc::SIG_DFL {
                    set(signal, on_death as *const () as usize);
                }
            }
        }
    });
}

extern "C" fn on_death(signal: c_int, _: *mut siginfo_t, _: *mut c_void) {
    complete_captures();
    set(signal, libc::SIG_DFL);
    // Sent again to this thread, it ends the process when the handler returns, before any instruction. A signal of the
    // terminal would not come again by itself, and a breakpoint's instruction is not executed again.
    // SAFETY: sends a signal to this thread.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal);
    }
}

fn set(signal: c_int, handler: usize) {
    // SAFETY: a zeroed sigaction is valid; the handler is SIG_DFL or a function of the right type.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        __sigaction(signal, &action, std::ptr::null_mut());
    }
}
