//! What a program binds to an endpoint.

use crate::address_vector::AddressVector;
use crate::counter::Counter;
use crate::queue::Queue;
use std::sync::Arc;

/// What is bound to an endpoint.
#[derive(Default)]
pub struct Bindings {
    pub vector: Option<Arc<AddressVector>>,
    pub transmit: Bound,
    pub receive: Bound,
    /// Counters, with the kinds of operations that they count.
    pub counters: Vec<(u64, Arc<Counter>)>,
}

/// The queue of a direction.
#[derive(Default)]
pub struct Bound {
    pub queue: Option<Arc<Queue>>,
    /// Only operations with FI_COMPLETION are reported.
    pub selective: bool,
    /// Flags of operations that are given none.
    pub default_flags: u64,
}
