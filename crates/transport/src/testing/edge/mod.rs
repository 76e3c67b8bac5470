//! Connections over several links in virtual time.

mod endpoints;
mod fuzz;
mod network;
mod pair;

pub use endpoints::{Access, Endpoints, TestMemory};
pub use fuzz::edge as fuzz_edge;
pub use network::Line;
pub use pair::{EdgePair, EdgeSide};
