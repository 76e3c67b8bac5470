//! What a process shows of itself while it runs: counters in a file that anybody of the same user may read at any time,
//! and the vendor's sysfs files for programs that know those.
//!
//! A process that opens a device makes a folder of its own in the user's run folder ([`folder`]); in it is the sheet
//! ([`sheet`]), mapped, so that a process that hangs, is stopped or sits in another network namespace can be looked at
//! all the same. Whoever reads it takes no lock and costs the process nothing. Traffic is counted in the sheet itself;
//! what paging counts is copied there ten times a second once there has been an on-demand region ([`publish`]).

pub mod folder;
pub(crate) mod publish;
pub mod read;
pub(crate) mod sheet;
mod vendor;
