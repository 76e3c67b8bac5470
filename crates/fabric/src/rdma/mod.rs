//! libibverbs and librdmacm, opened at run time: Weir's library or the system's.
//!
//! Every object holds those that it needs, and closes itself when it is dropped. Each error is an [`Errno`].

mod adapter;
mod address;
mod attributes;
mod channel;
pub mod cm_types;
mod completion_queue;
mod connection;
mod descriptor;
mod errno;
mod events;
mod id;
mod interfaces;
mod libraries;
mod listener;
mod queue_pair;
mod region;
mod self_connection;
mod tables;

pub use adapter::Adapter;
pub use attributes::{Attributes, OdpCapabilities};
pub use channel::EventChannel;
pub use completion_queue::{CompletionQueue, EMPTY_COMPLETION};
pub use connection::{Connection, MAX_CONNECT_DATA};
pub use errno::Errno;
pub use events::{ConnectRequest, Event, EventKind};
pub use interfaces::{Interface, interfaces};
pub use libraries::Libraries;
pub use listener::Listener;
pub use queue_pair::{QueuePair, Queues};
pub use region::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, Region,
};
pub use self_connection::SelfConnection;
