//! On-demand paging (ODP): memory is registered without being present, and populated when it is needed.
//!
//! The engine accesses application memory by virtual address only, so that the processor's page tables decide which
//! pages are really present. The adapter's own table decides when a *network page fault* happens, so that the engine
//! never blocks on a page. [`invalidate`] removes entries that are no longer true.

mod cost;
pub mod counters;
mod exclusion;
mod faults;
pub(crate) mod held;
pub mod invalidate;
mod owner;
mod populate;
pub(crate) mod prefetch;
mod region;
mod register;
mod resolver;
mod table;

pub(crate) use exclusion::MAX_ADAPTERS;
pub(crate) use faults::{FaultOrigin, QpFaults};
pub(crate) use owner::Owner;
pub use prefetch::Advice;
pub(crate) use region::Paged;
pub use region::{ADDRESS_SPACE, OnDemand};
pub(crate) use register::Registered;
pub(crate) use resolver::Resolver;
