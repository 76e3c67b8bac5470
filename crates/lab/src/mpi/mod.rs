//! MPI programs in virtual time: the protocol of `weir-msg` between simulated processes, with the costs of M's machines.
//!
//! M is "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand: Challenges and Benefits" (Li et al., SC'16).
//!
//! | file | |
//! | --- | --- |
//! | `costs` | what a process and its node cost, each with its source |
//! | `script` | what a process does |
//! | `memory` | its buffers, and pages that the operating system takes |
//! | `port` | `weir_msg::Port` over the simulator |
//! | `rank`, `world` | a process, and all of them |
//! | `osu` | latency, bandwidth, put and get between two processes |
//! | `kernels` | patterns of communication like those of applications |
//! | `pressure` | how often the operating system takes pages |
//! | `measure` | runs on threads, and what comes of them |

pub mod costs;
pub mod kernels;
pub mod measure;
mod memory;
pub mod osu;
mod port;
pub mod pressure;
mod rank;
pub mod script;
pub mod world;

pub use script::{Op, Script};
pub use world::{Cluster, World};
