//! A pair of queue pairs in virtual time, with a memory that detects stray writes and a wire with faults.
//!
//! Tests, fuzzers and other crates use it. All randomness is seeded: the same setup gives the same run.

mod delivery;
mod edge;
mod fuzz;
mod fuzz_frames;
mod fuzz_opening;
mod fuzz_tags;
mod host;
mod memory;
mod null_host;
mod paging;
mod pair;
mod requests;
mod rng;
mod wire;

pub use edge::{Access as EdgeAccess, EdgePair, EdgeSide, Endpoints, Line, TestMemory, fuzz_edge};
pub use fuzz::{requester as fuzz_requester, responder as fuzz_responder};
pub use fuzz_frames::frames as fuzz_frames;
pub use fuzz_opening::opening as fuzz_opening;
pub use fuzz_tags::tags as fuzz_tags;
pub use host::{Entry, Srqs, Staging, TestHost};
pub use memory::{CANARY, Memory, Region};
pub use null_host::{NullHost, connected};
pub use paging::{Paging, PagingCounts, PagingSetup};
pub use pair::{NETWORK_HEADER, Node, Pair, QKEY, SRQ, Setup};
pub use requests::{address, good, read, remote, sge, write};
pub use rng::Rng;
pub use wire::{Fate, Faults, Sent, Wire};
