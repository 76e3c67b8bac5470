//! The adapters of this process.

use crate::adapter::Adapter;
use crate::os::engine_hold::holds_engine;
use crate::os::locks::{RankedMutex, rank};
use crate::os::per_process::PerProcess;
use std::sync::{Arc, Weak};

/// The adapters that are open, or were.
pub static OPEN: PerProcess<RankedMutex<Vec<Weak<Adapter>>, { rank::ADAPTERS }>> = PerProcess::new();

/// All adapters that this process made.
pub fn all() -> Vec<Arc<Adapter>> {
    let open = OPEN.get().lock();
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
