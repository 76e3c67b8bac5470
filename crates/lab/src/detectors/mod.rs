//! The detectors of `weir analyze` against a corpus with ground truth.
//!
//! A [`Scenario`](scenario::Scenario) is drawn from a seed and runs on the simulator, which writes captures of client
//! and server, and tells what it did ([`log`]): not from packets. [`facts`] follow from the log, and [`truth`] says
//! which findings are right for the packets that a capture has. The captures go through the reader and the analysis as
//! files do. [`score`] compares.

mod draw;
mod explain;
mod facts;
mod family;
mod imperfect;
mod log;
mod rig;
mod scenario;
mod score;
mod shape;
mod truth;

pub use explain::explain;
pub use score::{Outcome, Tally, Wrong, score};
