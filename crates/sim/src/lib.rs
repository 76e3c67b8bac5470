//! A simulator: discrete events in virtual time over the very same [`weir_transport::Qp`] as the live adapter.
//!
//! A [`Simulation`] has hosts with memory and an adapter each, switches with finite buffers, and links. An [`App`] hears
//! of completions and timers and posts work requests:
//!
//! ```text
//! post_send ──▶ Qp ──▶ the adapter's port, packet by packet ──▶ link ──▶ switch ──▶ link ──▶ Qp ──▶ App::completed
//!                └─── pages that are missing come after a while, as the adapter's profile says ───┘
//! ```
//!
//! The same seed gives the same trace. Packets are headers and a length; payload has bytes where memory has
//! ([`Backing`]).
//!
//! What is modelled of an adapter: its QPs take turns, a packet each, at the rate of its link; answers and ACKs cost no
//! time but the wire's; a page fault takes what the profile says and is common to all that meet it. What is not: the way
//! over PCIe, caches, limits of the message rate, congestion control, and the credits by which InfiniBand avoids loss.
#![forbid(unsafe_code)]

mod adapter;
mod capture;
mod events;
mod host;
mod link;
mod memory;
mod network;
mod observe;
mod packet;
mod qp;
mod queue;
mod rng;
mod simulation;

pub use link::Link;
pub use memory::{Backing, Paging, Region};
pub use network::{Node, SwitchId};
pub use observe::{Counts, Loss, Seen, Trace, What};
pub use qp::{HostId, QpId, QpSetup};
pub use simulation::{App, Done, Quiet, Simulation};
