//! The measurements of the MultiEdge thesis (E): WRITEs over several links, simulated or live.
//!
//! | file | |
//! | --- | --- |
//! | `setting` | what is measured |
//! | `found` | what comes of it |
//! | `sim` | both sides in virtual time: the protocol of `weir_transport::edge` between two simulated hosts |
//! | `live` | both sides as processes, by `command` |
//! | `failure` | a link that fails, in virtual time or live |
//! | `primitives` | what copies, system calls and pages cost on this machine |

mod command;
pub mod failure;
pub mod found;
pub mod live;
pub mod primitives;
pub mod setting;
pub mod sim;

pub use found::{Cpu, Found};
pub use setting::{Flush, Links, Mechanism, Platform, Receiving, Sending, Setting, Test};

use crate::bench::Bench;
use anyhow::{Context, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is found for each setting, in their order: simulated, or live in `bench`'s live runs.
pub fn measure(bench: &Bench<'_>, settings: &[Setting]) -> Result<Vec<Found>> {
    (bench.progress)(settings.len(), 0);
    if bench.live {
        return live::measure(bench, settings);
    }
    bench.note(sim::ADAPTER, 1);
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<(usize, Result<Found>)>> = Mutex::new(vec![]);
    let work = || {
        while let Some((at, setting)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| settings.get(n).map(|s| (n, s)))
        {
            let result = sim::found(setting).with_context(|| setting.name());
            found.lock().expect("no thread panics with it").push((at, result));
            (bench.progress)(0, 1);
        }
    };
    let threads = bench.threads.clamp(1, settings.len().max(1));
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let mut found = found.into_inner().expect("no thread panics with it");
    found.sort_by_key(|(at, _)| *at);
    found.into_iter().map(|(_, result)| result).collect()
}
