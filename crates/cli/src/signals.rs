//! Signals. A command of `weir` that writes to a closed pipe ends silently, as cat does. The program of `weir run` gets
//! the SIGPIPE disposition and the signal mask that `weir` itself was started with, as from env(1). After Ctrl-C, a
//! command that watches ends with its report.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was started with SIGPIPE ignored.
static IGNORED: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`; the inherited disposition is visible only before that.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_INHERITED: extern "C" fn() = record_inherited;

extern "C" fn record_inherited() {
    // SAFETY: all zeros is a valid sigaction.
    let mut inherited: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is set, and the old one is stored in a local that outlives the call.
    let rc = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut inherited) };
    IGNORED.store(rc == 0 && inherited.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Sets SIGPIPE to its default action: a write to a pipe without a reader ends this process.
pub fn reset_sigpipe() {
    // It cannot fail: the action of SIGPIPE can be set.
    let _ = set(SigHandler::SigDfl);
}

/// Whether SIGINT or SIGTERM has come.
static END_REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on the first SIGINT or SIGTERM only sets [`end_requested`]; the second ends the command.
pub fn note_end_requests() {
    extern "C" fn note(_: libc::c_int) {
        END_REQUESTED.store(true, Ordering::Relaxed);
    }
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESETHAND, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler stores to an atomic.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

/// Whether the user has asked for the end.
pub fn end_requested() -> bool {
    END_REQUESTED.load(Ordering::Relaxed)
}

/// Gives the program the disposition and the mask that `weir` inherited: `Command` would give it the default action and
/// an empty mask.
pub fn restore_signals(command: &mut Command) -> &mut Command {
    let ignored = IGNORED.load(Ordering::Relaxed);
    let mask = SigSet::thread_get_mask();
    let restore = move || -> io::Result<()> {
        mask?.thread_set_mask()?;
        set(if ignored { SigHandler::SigIgn } else { SigHandler::SigDfl })?;
        Ok(())
    };
    // SAFETY: two system calls, no allocation and no lock.
    unsafe { command.pre_exec(restore) }
}

fn set(handler: SigHandler) -> nix::Result<()> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: no handler is installed.
    unsafe { sigaction(Signal::SIGPIPE, &action) }.map(drop)
}
