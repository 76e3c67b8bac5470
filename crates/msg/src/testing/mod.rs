//! Endpoints in one process and in virtual time, over an adapter in memory that checks what endpoints do.
//!
//! Tests and fuzzers use it. All randomness is seeded: the same setup gives the same run.

mod audit;
mod cases;
mod fuzz;
mod memory;
mod mesh;
mod node;
mod port;
mod program;
mod remote;
mod rng;
mod wire;

pub use audit::{audit, close};
pub use cases::each_seed;
pub use fuzz::fuzz;
pub use memory::{CANARY, Memory, PAGE};
pub use mesh::{Mesh, Setup, name};
pub use node::Node;
pub use port::{MemoryPort, Qp};
pub use program::{Program, Receive, Send, byte_of};
pub use remote::{Remotes, Window};
pub use rng::Rng;
