//! The RDMA transport protocol: requester, responder, completer. No clock, no socket, no thread.
//!
//! One [`Qp`] is one queue pair. The caller passes the time as an argument ([`Instant`]). The QP reaches memory and
//! completion queues through [`Host`], and hands packets to [`Egress`] as descriptions: headers plus the *location*
//! of the payload. The live adapter, the simulator, the tests and the fuzzers all drive this same code:
//!
//! ```text
//! post_send, post_recv ──▶ ┌────┐ ──▶ poll_transmit(now, host, egress)
//! handle_packet(now, …) ──▶│ Qp │ ──▶ host.complete(…), host.event(…)
//! handle_timeout(now, …) ─▶└────┘ ──▶ poll_timeout()
//! ```
//!
//! Each end of a connection has three state machines. `requester` sends the posted work requests and retransmits
//! them, `completer` handles their responses and ACKs, `responder` executes the peer's requests. They share the
//! attributes (`config`) and the rings of work requests (`send_queue`, `recv_queue`).
//!
//! To add a transition between QP states, extend the table in `state`. To add an operation, extend the tables in
//! `requester::send` and `responder::opcode_order`, and put its work into a file beside `responder::execute`.
#![forbid(unsafe_code)]

mod access;
pub mod attempts;
mod attr;
mod completer;
mod completion;
mod config;
mod device_attributes;
mod early;
pub mod edge;
mod ending;
mod handled;
mod host;
mod limits;
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
mod wr;

pub use access::{Access, AtomicOp, Bind, Denied, Remote};
pub use attr::{AddressVector, AttrMask, ModifyError, Mtu, QpAttr, QpCaps, QpInit, QpState};
pub use completer::CompleterState;
pub use completion::{Completion, Network, QpEvent, Status, WcFlags, WcOpcode};
pub use device_attributes::{DeviceAttributes, MAX_RD_ATOMIC, OdpCaps, OdpOps};
pub use ending::Ending;
pub use handled::{Handled, Side};
pub use host::{DropCause, Dropped, Egress, Host, Outgoing, Payload, Queue, Refused, TaggedReceive};
pub use limits::{InFlight, Limits, PACKET_COST, Progress};
pub use profile::{
    AckTimeout, Adaptive, Delay, Flood, HostModel, Links, PageFaults, Profile, RequesterFaults, ResponderFaults,
    RnrWait, Spread,
};
pub use qp::Qp;
pub use quirk::{Chance, FaultEvents};
pub use requester::{RequesterState, Retransmissions, Unanswered};
pub use responder::ResponderState;
pub use time::Instant;
pub use tuning::Tuning;
pub use weir_wire::{Psn, Service};
pub use wr::{Data, Datagram, Flush, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, Target};
