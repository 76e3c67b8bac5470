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

/// What is found for each setting, in their order: simulated, or live in `bench`'s live runs.
pub fn measure(bench: &Bench<'_>, settings: &[Setting]) -> Result<Vec<Found>> {
    if bench.live {
        return live::measure(bench, settings);
    }
    bench.note(sim::ADAPTER, 1);
    let found = |setting: &Setting| sim::found(setting).with_context(|| setting.name());
    bench.on_threads(settings, found).into_iter().collect()
}
