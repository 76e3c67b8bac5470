//! Messages, RMA and atomics between processes, over reliable connections of an RDMA adapter.
//!
//! The protocol of libfabric's provider `weir-odp`, after "Designing MPI Library with On-Demand Paging (ODP) of InfiniBand"
//! (Li et al., SC'16): small messages travel through pinned bounce buffers, large ones from the program's memory to the
//! program's memory, which is registered on demand and prefetched while control messages travel.
//!
//! An [`Endpoint`] has no clock, no socket and no thread. The program's calls and the adapter's completions go in, with
//! the time; work requests go out through a [`Port`]; [`Event`]s tell the program what has ended.
//!
//! ```text
//! send, receive, write, read, atomic ──▶ Endpoint ──▶ Port: post, register, prefetch, copy
//!                              Event ◀──          ◀── sent, received, incoming, established, lost
//! ```
//!
//! | file | |
//! | --- | --- |
//! | `message`, `hello` | what is on the wire |
//! | `flow` | how much may be sent to a peer |
//! | `matching` | which receive takes which message |
//! | `send`, `receive` | the program's calls; `arrive`: what messages do; `rendezvous`: messages that stay with the sender until they match |
//! | `rma`, `atomics` | operations on a peer's memory |
//! | `registrar`, `cache` | registrations of the program's memory; `scheme`: when it is prefetched; `warm`: what needs no prefetch |
//! | `connect` | connections: on demand, both sides at once, lost |
//! | `progress` | what goes on when there is room again, and when the program waits |
#![forbid(unsafe_code)]

mod arrive;
mod atomic;
mod atomics;
mod buffer;
mod cache;
mod connect;
mod counters;
mod endpoint;
mod event;
mod flow;
mod hello;
mod ids;
mod matching;
mod message;
mod ops;
mod peer;
mod port;
mod post;
mod progress;
mod queue;
mod receive;
mod registrar;
mod rendezvous;
mod rma;
mod scheme;
mod send;
mod settings;
mod strangers;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod warm;

pub use atomic::{AtomicKind, Datatype, Operator, is_valid, result};
pub use atomics::AtomicCall;
pub use buffer::{Buffer, MAX_PIECES, Piece, Remote, RemoteBuffer};
pub use connect::{Depth, Verdict};
pub use counters::Counters;
pub use endpoint::Endpoint;
pub use event::{Again, Event, Failure, Kind, Reason};
pub use hello::{HELLO_LEN, Hello, MAX_NAME, Name, Rejection};
pub use ids::PeerId;
pub use matching::Pattern;
pub use message::{Envelope, LONGEST_HEADER};
pub use port::{ConnectionId, Errno, Local, Port, Registered, Registration, Slot, Update, Work};
pub use receive::{Found, ReceiveCall};
pub use rma::RmaCall;
pub use scheme::{Moment, Scheme};
pub use send::SendCall;
pub use settings::{Rendezvous, Settings};

/// Smallest bounce buffer, bytes: the longest header, and some payload.
pub const SMALLEST_SLOT: usize = 256;
