//! The test of Q. Liu's and R. Russell's "A Performance Study of InfiniBand Fourteen Data Rate (FDR)" (2014; F): a
//! stream of
//! WRITEs with immediate data from a sender to a receiver, with credits. Simulated or live.
//!
//! | file | |
//! | --- | --- |
//! | `job` | what is measured |
//! | `found` | what comes of it |
//! | `equations` | the paper's equations for the number of outstanding messages and the signalling period |
//! | `measure` | all jobs of an experiment |
//! | `sim` | both programs in virtual time, on hosts with a bus and a cache |
//! | `fit` | constants of equation 1 that fit an adapter |
//! | `session` | live: a pair of `weir-stream` processes that measures one job after the other |

pub mod equations;
pub mod fit;
pub mod found;
pub mod job;
pub mod measure;
pub mod session;
pub mod sim;

pub use found::{Found, SideFound};
pub use job::{Amount, Areas, Job, Place, Sides, Signal};
pub use measure::Runs;
pub use session::Session;
pub use sim::Route;

/// Measures jobs: live or simulated.
pub trait Measure {
    /// Measures a job. An error if it cannot be measured; other jobs can be measured after it.
    fn measure(&mut self, job: &Job) -> anyhow::Result<Found>;
}
