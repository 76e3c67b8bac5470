//! MultiEdge in a library: operations on the memory of another process, over one or several links (docs/edge.md).
//!
//! A [`Node`] is a set of sockets. One that listens serves many connections; another requests one of each listener. A
//! [`Connection`] performs operations on the peer's memory, and the peer performs operations on the memory that this side
//! allows ([`Allow`]). Any thread may make any call.
//!
//! | file | |
//! | --- | --- |
//! | `node`, `connection` | what programs call; `options`: what a node can be set to |
//! | `engine` | the state of a node, and one turn of it; `arrivals`, `hellos`, `departures`: its parts |
//! | `peer` | a connection as the engine has it; `events`: what the program is told of it |
//! | `driver` | which thread takes turns: that of the node, or those that poll |
//! | `allowed` | which memory the peer may use; `memory`: how it is read and written; `payload`: what is kept of a packet |
//! | `counters`, `meter` | what is counted, and where CPU time goes |

mod allowed;
mod arrivals;
mod clock;
mod connection;
mod counters;
mod departures;
mod driver;
mod engine;
mod error;
mod events;
mod hellos;
mod memory;
mod meter;
mod node;
mod options;
mod payload;
mod peer;
mod process;

pub use allowed::{Access, Allow, RangeId};
pub use connection::{Connection, Handle, OperationFlags};
pub use counters::Counters;
pub use error::Error;
pub use events::Event;
pub use meter::Times;
pub use node::Node;
pub use options::{DEFAULT_PORT, LINKS_VARIABLE, Mode, Options};
pub use weir_links::LinksSpec;
pub use weir_transport::edge::{Kind, Parameters, Scheduler};
