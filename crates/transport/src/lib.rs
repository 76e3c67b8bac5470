//! The RDMA transport protocol: requester, responder, completer. No clock, no socket, no thread.
//!
//! One [`Qp`] is one queue pair. Time comes in as an argument ([`Instant`]), memory and completion queues through
//! [`Host`], and packets go out through [`Egress`] as descriptions: headers plus *where* the payload lies.
//! The live adapter, the simulator, the tests and the fuzzers all drive this same code:
//!
//! ```text
//! post_send, post_recv ──▶ ┌────┐ ──▶ poll_transmit(now, host, egress)
//! handle_packet(now, …) ──▶│ Qp │ ──▶ host.complete(…), host.event(…)
//! handle_timeout(now, …) ─▶└────┘ ──▶ poll_timeout()
//! ```
//!
//! Inside, each end of a connection is two machines and each has its states: `requester` sends what was posted and
//! repeats it, `completer` reads the answers to it; `responder` executes what the peer sends. They share the attributes
//! (`config`) and the rings of work requests (`send_queue`, `recv_queue`).
//!
//! Where things are added: a transition between QP states in the table of `state`; an operation in the tables of
//! `requester::send` and `responder::opcode_order`, with its work in a file beside `responder::execute`.
#![forbid(unsafe_code)]

mod attr;
mod completer;
mod completion;
mod config;
mod ending;
mod host;
mod page_fault;
mod profile;
mod qp;
mod quirk;
mod recv_queue;
mod requester;
mod responder;
mod ring;
mod send_queue;
mod state;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod time;
mod tuning;
mod unreliable;
mod wr;

pub use attr::{AddressVector, AttrMask, ModifyError, Mtu, QpAttr, QpCaps, QpInit, QpState};
pub use completer::CompleterState;
pub use completion::{Completion, QpEvent, Status, WcFlags, WcOpcode};
pub use ending::Ending;
pub use host::{Access, AtomicOp, Bind, Denied, Egress, Host, Outgoing, Payload, Queue, Refused, Remote};
pub use page_fault::{Handled, Side};
pub use profile::{AckTimeout, Delay, Flood, PageFaults, Profile, RequesterFaults, ResponderFaults, RnrWait, Spread};
pub use qp::{InFlight, Limits, Progress, Qp};
pub use quirk::{Announcer, Chance, Outstanding};
pub use requester::{RequesterState, Setbacks};
pub use responder::ResponderState;
pub use state::MAX_RD_ATOMIC;
pub use time::Instant;
pub use tuning::Tuning;
pub use weir_wire::{Psn, Service};
pub use wr::{Data, Datagram, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, Target};
