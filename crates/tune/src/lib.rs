//! `weir tune`: finds the best settings for a stream of messages on an adapter, and tells which of them matter.
//!
//! It repeats the study of Q. Liu and R. Russell, "A Performance Study of InfiniBand Fourteen Data Rate (FDR)" (2014;
//! F), on the adapter of the user: the number of outstanding messages (B), the signalling period (S), alignment,
//! wake-ups or polling, and where the programs run.
//!
//! | file | |
//! | --- | --- |
//! | `plan` | what is measured, and for how long |
//! | `places` | CPUs and NUMA nodes on which the sides can run |
//! | `search` | which job is next; a state machine without a clock and without I/O |
//! | `statistics` | means, ratios, and their confidence intervals |
//! | `findings` | what the results say |
//! | `advice` | settings of programs and libraries, by name |
//! | `report` | text, JSON, an HTML page |
//! | `state` | the file from which an interrupted run continues |
//! | `command` | the command |

#![forbid(unsafe_code)]

mod advice;
mod command;
#[cfg(test)]
mod fake;
mod findings;
mod places;
mod plan;
mod report;
mod search;
mod state;
mod statistics;
mod units;

pub use command::{TuneArgs, run};
