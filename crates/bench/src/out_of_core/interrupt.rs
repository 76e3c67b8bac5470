//! Turns SIGINT, SIGTERM and SIGHUP into a flag, and writes to closed pipes into errors, so that this process can
//! remove the cgroup and the swap file that it has made.

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set when a signal asks this process to end.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Blocks these signals in this thread and sets the flag instead. The caller must call it before it starts other
    /// threads, which inherit the mask. Programs that this process starts do not inherit it.
    pub fn watch() -> Result<Interrupt> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block()?;
        let flag = Arc::new(AtomicBool::new(false));
        let raise = flag.clone();
        std::thread::spawn(move || {
            while signals.wait().is_err() {}
            raise.store(true, Ordering::Relaxed);
        });
        Ok(Interrupt(flag))
    }

    /// Makes writes of this thread to a closed pipe fail with an error, until [`Interrupt::unblock_sigpipe`].
    pub fn block_sigpipe() -> Result<()> {
        Ok(pipe().thread_block()?)
    }

    /// Lets a closed pipe end this process again; at once, if this thread wrote to one meanwhile.
    pub fn unblock_sigpipe() -> Result<()> {
        Ok(pipe().thread_unblock()?)
    }

    /// Whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn pipe() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGPIPE);
    signals
}
