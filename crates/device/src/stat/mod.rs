//! Statistics of a running process: counters in a file that processes of the same user may read at any time, and the
//! vendor's sysfs files for programs that read those.
//!
//! A process that opens a device creates a folder of its own in the user's run folder ([`folder`]). It contains the
//! sheet of counters ([`sheet`]), which is mapped, so that a process that hangs, is stopped or is in another network
//! namespace can be inspected. Reading takes no lock and costs the process nothing. Traffic is counted in the sheet
//! itself, and so are pinned memory and registrations; the counters of paging are copied there ten times a second once
//! there has been an on-demand region ([`publish`]). Other libraries of the process publish counters of their own there
//! ([`published`]).

pub mod folder;
pub(crate) mod publish;
pub mod published;
pub mod read;
pub(crate) mod sheet;
mod vendor;

pub use publish::own_folder;
