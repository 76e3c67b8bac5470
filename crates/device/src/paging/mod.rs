//! On-demand paging: memory that is registered without being there, and brought in when it is needed.
//!
//! The engine touches application memory through its virtual address only, so that the processor's page tables decide
//! what is really there. The adapter's own table decides when a *network page fault* happens, so that nothing blocks
//! the engine. What makes the table wrong is told of by [`invalidate`].

pub mod counters;
mod faults;
pub(crate) mod held;
pub mod invalidate;
mod populate;
mod prefetch;
mod region;
mod register;
mod resolver;
mod table;

pub(crate) use faults::QpFaults;
pub use prefetch::Advice;
pub(crate) use region::Paged;
pub use region::{ADDRESS_SPACE, OnDemand};
pub(crate) use register::Registered;
pub(crate) use resolver::{Owner, Resolver, Who};
