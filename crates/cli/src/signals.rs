//! SIGPIPE. The commands of `weir` end at a closed pipe as cat does, without a word; the program of `weir run` gets
//! the disposition and the signal mask that `weir` itself was started with, as it would from env(1).

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was started with SIGPIPE ignored.
static IGNORED: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`; what was inherited can be seen only before that.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: all zeros is a valid sigaction.
    let mut inherited: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is given, and the old one goes into a local that outlives the call.
    let rc = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut inherited) };
    IGNORED.store(rc == 0 && inherited.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// From now on a write to a pipe that is not read any more ends this process.
pub fn end_on_closed_pipes() {
    // It cannot fail: SIGPIPE may be set.
    let _ = set(SigHandler::SigDfl);
}

/// The program gets what we got: `Command` would give it the default action and an empty mask.
pub fn as_inherited(command: &mut Command) -> &mut Command {
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
