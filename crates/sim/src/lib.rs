//! A simulator: discrete events in virtual time, with the same [`weir_transport::Qp`] as the live adapter.
//!
//! A [`Simulation`] consists of hosts with memory and an adapter each, switches with finite buffers, and links. An
//! [`App`] is notified of completions and timers, and posts work requests:
//!
//! ```text
//! post_send ──▶ Qp ──▶ the adapter's port, packet by packet ──▶ link ──▶ switch ──▶ link ──▶ Qp ──▶ App::completed
//!                └─── missing pages become present after the time that the adapter's profile gives ───┘
//! ```
//!
//! Two hosts, and a READ of 100 bytes from a page that is missing at the server:
//!
//! ```
//! use std::sync::Arc;
//! use weir_sim::{App, Backing, Done, Link, Paging, QpSetup, Simulation};
//! use weir_transport::{Data, Profile, SendFlags, SendOp, SendWr};
//!
//! struct Show;
//! impl App for Show {
//!     fn completed(&mut self, sim: &mut Simulation, done: &Done) {
//!         println!("{:?} after {} ns", done.completion.status, sim.now().0);
//!     }
//! }
//!
//! let profile = Arc::new(Profile::ideal());
//! let mut sim = Simulation::new(1);
//! let [client, server] = [(); 2].map(|()| sim.add_host(&profile));
//! sim.link(client, server, Link::FDR);
//! let near = sim.register(client, Backing::Bytes(vec![0; 100]), Paging::Pinned);
//! let far = sim.register(server, Backing::Bytes(vec![7; 100]), Paging::OnDemand);
//! let [qp, _] = sim.connect(client, server, &QpSetup::default());
//! let op = SendOp::Read { remote_addr: far.addr, rkey: far.key };
//! let data = [near.sge(0, 100)];
//! sim.post_send(qp, &SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) })?;
//! sim.run(&mut Show);
//! assert_eq!(sim.bytes(&near), [7; 100]);
//! assert_eq!(sim.page_faults(server), 1);
//! # Ok::<(), weir_transport::PostError>(())
//! ```
//!
//! The same seed gives the same trace. Packets consist of headers and a length; payload has bytes where memory has
//! contents ([`Backing`]).
//!
//! Modelled of an adapter: its QPs send in turn, a packet each, at the rate of its link; responses and ACKs take time
//! on the wire only; a page fault takes the time of the profile and is shared by all accesses to its pages. If the
//! profile has a [`weir_transport::HostModel`] (`connectx3-fdr`), payload also takes time on the bus between adapter
//! and memory, which depends on its alignment, a cache, and the NUMA node; completions and events take some of the bus.
//! Not modelled: limits of the message rate, congestion control, and the credits by which InfiniBand avoids loss.
#![forbid(unsafe_code)]

mod adapter;
mod capture;
mod host;
mod ids;
mod incident;
mod link;
mod machine;
mod memory;
mod network;
mod observe;
mod packet;
mod qp;
mod queue;
mod simulation;

pub use ids::{HostId, Node, QpId, SwitchId};
pub use incident::Incident;
pub use link::{Disorder, Link};
pub use machine::BusCounts;
pub use memory::{Backing, Paging, Region};
pub use observe::{Counts, Loss, PacketEvent, Seen, Trace};
pub use qp::QpSetup;
pub use simulation::{App, Done, NullApp, Simulation};
