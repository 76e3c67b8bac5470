//! From packets to connections: which packets belong together, and what each means.

mod clip;
mod event;
mod half;
mod repeats;
mod replay;
mod request;
mod responses;
mod stats;
mod tracker;

pub use clip::{Clip, Clips};
pub use event::{Cause, Event, Nak, Repeat};
pub use half::{Half, OPEN};
pub use request::{Request, Transmission};
pub use stats::{Interval, Stats};
pub use tracker::{CANDIDATES, Flow, FlowId, FlowKey, Pairing, Record, Source, Tracker};
