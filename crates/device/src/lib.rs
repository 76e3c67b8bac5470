//! One RDMA adapter in one process: tables of QP, CQ and MR, memory, and the engine that moves packets.
//!
//! Exports what the verbs layer needs: [`devices`] → [`Context`] → [`Pd`], [`Cq`], [`Mr`], [`Qp`].
//! Errors are [`Errno`], as the verbs report them. All objects are `Send + Sync`; any thread may make any call.
//! Cookies are numbers of the caller (usually a pointer) that come back with events.

mod adapter;
mod config;
mod engine;
mod events;
mod features;
mod limits;
mod local;
mod memory;
mod objects;
mod os;
mod pace;
pub mod paging;
mod relay;
mod shared;
mod slot;
pub mod stat;
pub mod steering;
mod sync;
pub mod tap;
pub mod userfault;

pub use adapter::{at_exit, process_exit};
pub use config::device_attributes;
pub use events::{AsyncEvent, PortEvent};
pub use features::{Feature, features};
pub use limits::{DeviceLimits, MAX_INLINE};
pub use memory::pin::totals as memory_totals;
pub use memory::totals::Totals as MemoryTotals;
pub use memory::window::WindowType;
pub use objects::address::AddressHandle;
pub use objects::channel::CompChannel;
pub use objects::context::{Context, PortInfo};
pub use objects::cq::{Cq, CqCreate};
pub use objects::dm::Dm;
pub use objects::flow::Flow;
pub use objects::mads::{MadSocket, ReceivedMad};
pub use objects::mr::{Mr, Rereg};
pub use objects::mw::Mw;
pub use objects::pd::Pd;
pub use objects::qp::{Qp, QpCreate, Receives};
pub use objects::srq::{Srq, SrqCreate, TagCreate};
pub use objects::xrcd::Xrcd;
pub use os::cancel::Uncancelled;
pub use os::clock::now;
pub use os::engine_hold::holds_engine;
pub use os::errno::Errno;
pub use os::grow::with_room;
pub use os::headroom;
pub use os::interfaces::{ALL_INTERFACES, DeviceInfo, devices, hidden_devices, unusable_interfaces};
pub use os::panics::{is_known, panicked, watched};
pub use os::per_process::{OnceInherited, PerProcess};
pub use os::process::{OwnerProcess, gains_privileges};
pub use os::refused::{refused, refused_post};
pub use os::threads::spawn;
pub use os::{descriptors, epoll};
pub use paging::Advice;
pub use shared::allowed_hosts::permits;
pub use shared::tagging::{TagOp, TagOpKind};
pub use shared::tags::TagBuffer;

/// The bodies of the fuzz targets.
#[cfg(feature = "testing")]
pub mod testing {
    pub use crate::engine::fuzz::{engine as fuzz_engine, hand_over as fuzz_hand_over, hello as fuzz_hello};
    pub use crate::local::handshake::fuzz as fuzz_handshake;
    pub use crate::local::ring::fuzz::ring as fuzz_ring;
}

/// What the interposed functions that change signal handlers and signal masks call.
pub mod signals {
    pub use crate::os::handlers::change;
    pub use crate::os::mask::{changes, watch};
}
