//! Connection management (IBTA chapter 12): how two processes connect their QPs. No clock, no socket, no thread.
//!
//! [`Cm`] is the protocol for all connections of a process. The caller gives it the MADs that QP 1 receives
//! ([`Cm::handle`]) and the time, sends the MADs that it makes ([`Cm::poll_transmit`]) and takes its events
//! ([`Cm::poll_event`]). The messages are in [`weir_wire::cm`].
//!
//! | | active side | passive side |
//! | --- | --- | --- |
//! | ask | [`Cm::connect`] | [`Event::Request`] |
//! | answer | [`Event::Reply`], [`Event::Rejected`], [`Event::Unreachable`] | [`Cm::accept`], [`Cm::reject`], [`Cm::ignore`], [`Cm::delay`] |
//! | establish | [`Cm::ready`] | [`Event::Established`], or [`Cm::established`] at the first packet |
//! | disconnect | [`Cm::disconnect`] | [`Event::DisconnectRequest`], then [`Cm::disconnect`] |
//! | over | [`Event::Disconnected`], [`Event::TimewaitExit`] | [`Event::TimewaitExit`] |
//!
//! Either side can disconnect. Every connection stays until the caller calls [`Cm::forget`], which is right in every
//! state. A UD QP needs no connection: [`Cm::resolve_service`] asks for its number.
#![forbid(unsafe_code)]

mod calls;
mod cm;
mod config;
mod connection;
mod event;
mod pacing;
mod parting;
mod queued;
mod receive;
mod request;
mod service;
mod sidr;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod timeout;
mod times;
mod vanished;

pub use cm::Cm;
pub use config::{Address, Config, ConnectionId, Error};
pub use event::Event;
pub use parting::Parting;
pub use request::{Ece, Reply, Request, Transport};
pub use service::{SidrReply, SidrRequest};
pub use weir_wire::cm::{IpHeader, PortSpace, RejectReason, ServiceId, SidrStatus};
pub use weir_wire::mad::Mad;
