//! Ctrl-C and its like as a flag, and closed pipes as errors of a write, so that what was made outside of this process
//! is taken back.

use anyhow::Result;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody wants an end.
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on signals no longer end this process. Called before other threads are started: they inherit it.
    /// Programs that are started do not.
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

    /// From now on a closed pipe is an error of the write, for this thread, until [`Interrupt::let_pipes_end`].
    pub fn keep_on_closed_pipes() -> Result<()> {
        Ok(pipe().thread_block()?)
    }

    /// A closed pipe ends this process again, at once if one was written to meanwhile.
    pub fn let_pipes_end() -> Result<()> {
        Ok(pipe().thread_unblock()?)
    }

    /// Whether one has come.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn pipe() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGPIPE);
    signals
}
