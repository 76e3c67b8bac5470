//! What captured RDMA packets tell: connections, their timelines, and findings with evidence, cost and advice.
//!
//! [`Analysis`] takes the frames of captures one after the other and gives a [`Report`]. It reads no file and no clock.
//! [`flow`] rebuilds connections: which packets belong together, why each was repeated. `links` gives it the packets of
//! several links as if there were one. [`detect`] has a file for each
//! kind of finding. [`report`] writes text, JSON and HTML.
#![forbid(unsafe_code)]

mod advice;
mod analysis;
pub mod detect;
mod finding;
pub mod flow;
mod links;
mod observed;
mod packet;
pub mod report;
mod setup;
#[cfg(feature = "testing")]
pub mod testing;

pub use advice::{Advice, Layer};
pub use analysis::{Analysis, Options, Report, Totals};
pub use finding::{Cost, Finding, FindingKind};
pub use observed::Observed;
pub use packet::{FrameId, Kind, Seen};
pub use setup::{Attributes, Setups};
