//! Connections over several links: packets that arrive in any order, on any link, once.
//!
//! The base of devices with several interfaces and of MultiEdge (thesis 2.1.2 and 2.5). Packets have sequence numbers of
//! their own, apart from messages and operations. What is in a packet, the caller knows; a [`Connection`] says on which
//! link each packet leaves, which packets go again, and when a packet that has arrived may be performed: at once, after
//! one other, or after all before another ([`Order`]).
//!
//! | file | |
//! | --- | --- |
//! | `opening` | how two processes agree on a connection; `pairing`: which of their addresses are the ends of links |
//! | `connection` | both halves as one |
//! | `sender` | the window, and what goes again |
//! | `links` | which link is next, losses, links that fail; `link`: what is on one; `rate`: how fast it is; `queue`: how long a packet waits for it; `health`: whether it works; `scheduler`: which is chosen |
//! | `receiver` | what has arrived, and when the peer is told |
//! | `order` | when a packet may be performed |
//! | `endpoint` | MultiEdge's operations over a connection; `operation`: what they are; `issued`: those of this side; `reads`: what READs have asked for |

mod connection;
mod endpoint;
mod health;
mod issued;
mod link;
mod links;
mod opening;
mod operation;
mod order;
mod pairing;
mod parameters;
mod queue;
mod rate;
mod reads;
mod receiver;
mod scheduler;
mod sender;

pub use connection::{Connection, Leaving, Refusal, Setup};
pub use endpoint::{Endpoint, Packet};
pub use opening::{Agreed, Numbers, Opening, Outcome, Own};
pub use operation::{Event, Failure, Fault, Flags, Kind, Memory, Operation};
pub use pairing::{Pair, pairs};
pub use parameters::Parameters;
pub use scheduler::Scheduler;
pub use sender::LinkState;
pub use weir_wire::edge::{Ack, Action, Address, Header, Hello, MAX_LINKS, MAX_WINDOW, Order, Piece, Seq};
