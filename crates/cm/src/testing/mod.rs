//! Two processes in virtual time, with a network that loses, repeats and reorders MADs. All randomness is seeded: the
//! same setup gives the same run.

mod fuzz;
mod pair;

pub use fuzz::handle as fuzz_handle;
pub use pair::{Faults, Pair, address, reply, request};
pub use weir_transport::testing::Rng;
