//! The kernel's connection manager for user space (`/dev/infiniband/rdma_cm`), inside the process.
//!
//! The distribution's librdmacm opens that file, writes commands to it and polls it. [`open`] makes such a file,
//! [`write`] runs a command. [`manager`] is what the commands do: it is the same with a [`host::Host`] in memory. The
//! protocol between two connection managers is `weir-cm`; its MADs go through the engine of the device (`weir-device`).
//!
//! Commands run on the thread that writes them. One thread of the process, the agent, takes MADs that come and does
//! what is due later.

pub mod abi;
mod address;
mod agent;
mod descriptor;
pub mod events;
mod files;
pub mod host;
mod kick;
mod live;
pub mod manager;
mod ports;
mod process;
mod table;

pub use descriptor::{duplicated, inode_of};
pub use files::{Written, closed, end, open, write};
pub use live::set_device_number;

use descriptor::closing;

/// The device number of the file: that of a misc device, as in the kernel.
pub const DEVICE_NUMBER: (u32, u32) = (10, 127);

/// A descriptor is about to be closed. Returns the file that it stands for, if it is an rdma_cm file: the caller passes
/// it to [`closed`] afterwards.
pub fn before_close(descriptor: i32) -> Option<u64> {
    closing(descriptor)
}
