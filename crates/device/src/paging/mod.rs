//! On-demand paging: memory that is registered without being there, and brought in when it is needed.
//!
//! The engine touches application memory through its virtual address only, so that the processor's page tables decide
//! what is really there. The adapter's own table decides when a *network page fault* happens, so that nothing blocks
//! the engine. What makes the table wrong is told of by [`invalidate`].

#[allow(dead_code)] // Until regions are registered with it.
pub mod counters;
#[allow(dead_code)] // As above.
pub mod invalidate;
#[allow(dead_code)] // As above.
mod region;
#[allow(dead_code)] // As above.
mod table;

pub(crate) use region::Owner;
pub use region::{ADDRESS_SPACE, OnDemand};
