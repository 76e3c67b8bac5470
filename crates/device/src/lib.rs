//! One RDMA adapter in one process: tables of QP, CQ and MR, memory, and the engine that moves packets.
//!
//! Exports what the verbs layer needs: [`devices`] → [`Context`] → [`Pd`], [`Cq`], [`Mr`], [`Qp`].
//! Errors are [`Errno`], as the verbs report them. All objects are `Send + Sync`; any thread may make any call.
//! Cookies are numbers of the caller (usually a pointer) that come back with events.

mod adapter;
mod address;
mod advise;
mod cancel;
mod carrier;
mod channel;
mod clock;
mod config;
mod context;
mod cq;
mod dm;
mod engine;
mod errno;
mod features;
mod fork;
mod handover;
pub mod headroom;
mod hello;
mod interfaces;
mod limits;
mod memory;
mod moderation;
mod mr;
mod mw;
mod netlink;
mod notify;
mod os;
mod pace;
pub mod paging;
mod per_process;
mod proof;
mod qp;
mod relay;
mod room;
mod route;
mod send_errors;
mod shared;
mod slot;
mod srq;
pub mod stat;
mod sync;
mod trust;
pub mod userfault;
mod watch;

pub use adapter::ending;
pub use address::AddressHandle;
pub use cancel::Uncancelled;
pub use channel::CompChannel;
pub use context::{Context, Pd, PortInfo};
pub use cq::{Cq, CqCreate};
pub use dm::Dm;
pub use errno::Errno;
pub use features::{Feature, features};
pub use fork::OwnerProcess;
pub use interfaces::{DeviceInfo, devices, unusable_interfaces};
pub use limits::DeviceLimits;
pub use memory::window::WindowType;
pub use mr::{Mr, Rereg};
pub use mw::Mw;
pub use os::panics::{is_known, panicked, watched};
pub use paging::Advice;
pub use per_process::{OnceInherited, PerProcess};
pub use qp::{Qp, QpCreate, Receives};
pub use room::with_room;
pub use srq::{Srq, SrqCreate, Xrcd};

/// What the interposed functions that change signal handlers and signal masks call.
pub mod signals {
    pub use crate::memory::handlers::change;
    pub use crate::memory::mask::{changes, watch};
}

/// An asynchronous event and the cookie of what it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// An event of a QP.
    Qp { cookie: u64, event: weir_transport::QpEvent },
    /// A CQ has overflowed.
    CqError { cookie: u64 },
    /// An SRQ has fewer work requests than its limit.
    SrqLimit { cookie: u64 },
    /// An event of the port.
    Port(PortEvent),
    /// The interface behind the device is gone, or the adapter has failed because of a bug in Weir.
    DeviceFatal,
}

/// How the port changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The interface is up and has an address.
    Active,
    /// The interface is down or has no address.
    Error,
    /// The GID table changed.
    GidChange,
}
