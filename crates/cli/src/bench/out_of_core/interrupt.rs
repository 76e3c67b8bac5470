//! Ctrl-C and its like as a flag, so that what was made outside of this process is taken back.

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

    /// Whether one has come.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
