//! The adapters of this process.

use crate::adapter::Adapter;
use crate::os::engine_hold::holds_engine;
use crate::os::locks::{RankedMutex, rank};
use crate::os::per_process::PerProcess;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The adapters that are open, or were.
pub static OPEN: PerProcess<RankedMutex<Vec<Weak<Adapter>>, { rank::ADAPTERS }>> = PerProcess::new();

/// How long [`after_panic`] waits for a thread that opens an adapter.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// All adapters that this process made. For a thread after a panic, which may hold any lock: none if it holds this one,
/// or another thread does for long.
pub fn after_panic() -> Vec<Arc<Adapter>> {
    let Some(open) = OPEN.get().try_lock_within(LONGEST_WAIT) else { return Vec::new() };
    open.iter().filter_map(Weak::upgrade).filter(|adapter| adapter.is_ours()).collect()
}

/// Calls `work` for each open adapter, unless a thread is opening one now. A signal handler may call it.
pub fn each_open(work: impl Fn(&Adapter)) {
    if holds_engine() {
        return;
    }
    if let Some(open) = OPEN.existing().and_then(|open| open.try_lock()) {
        open.iter()
            .filter_map(Weak::upgrade)
            .filter(|adapter| adapter.check().is_ok())
            .for_each(|adapter| work(&adapter));
    }
}
