//! Connection management (IBTA chapter 12): what two processes exchange before their QPs are connected, and after.
//!
//! The values here are what a program says in a connection's messages, and what it learns from those of its peer. The
//! messages themselves are in [`weir_wire::cm`]. The protocol that sends them is one value for all connections of a
//! process; time is an argument of its calls:
//!
//! ```text
//! impl Cm {
//!     fn new(config: Config) -> Cm
//!     fn connect(&mut self, now: Instant, to: &Address, request: &Request) -> Result<ConnectionId, Error>
//!     fn accept(&mut self, now: Instant, id: ConnectionId, reply: &Reply) -> Result<(), Error>
//!     fn reject(&mut self, now: Instant, id: ConnectionId, reason: RejectReason, ari: &[u8], private: &[u8]) -> Result<(), Error>
//!     fn ignore(&mut self, id: ConnectionId) -> Result<(), Error>
//!     fn ready(&mut self, id: ConnectionId, private: &[u8]) -> Result<(), Error>
//!     fn established(&mut self, id: ConnectionId) -> Result<(), Error>
//!     fn delay(&mut self, now: Instant, id: ConnectionId, service_timeout: u8, private: &[u8]) -> Result<(), Error>
//!     fn delay_duplicates(&mut self, now: Instant, id: ConnectionId, service_timeout: u8, private: &[u8]) -> Result<(), Error>
//!     fn disconnect(&mut self, now: Instant, id: ConnectionId, private: &[u8]) -> Result<(), Error>
//!     fn resolve_service(&mut self, now: Instant, to: &Address, request: &SidrRequest) -> Result<ConnectionId, Error>
//!     fn answer_service(&mut self, now: Instant, id: ConnectionId, reply: &SidrReply) -> Result<(), Error>
//!     fn forget(&mut self, now: Instant, id: ConnectionId)
//!     fn handle(&mut self, now: Instant, from: &Address, mad: &[u8])
//!     fn poll_transmit(&mut self) -> Option<(Address, Mad)>
//!     fn poll_timeout(&self) -> Option<Instant>
//!     fn handle_timeout(&mut self, now: Instant)
//!     fn poll_event(&mut self) -> Option<Event>
//! }
//! ```
#![forbid(unsafe_code)]
#![expect(dead_code, reason = "the protocol that uses the conversions is not here yet")]

mod config;
mod event;
mod request;
mod service;

pub use config::{Address, Config, ConnectionId, Error};
pub use event::Event;
pub use request::{Ece, Reply, Request, Transport};
pub use service::{SidrReply, SidrRequest};
pub use weir_wire::cm::{IpHeader, PortSpace, RejectReason, ServiceId, SidrStatus};
