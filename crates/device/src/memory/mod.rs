//! Application memory: access through the guarded copy, keys and permissions, pinning and populating.

pub mod access;
mod bind;
mod counts;
pub mod device_memory;
mod explain;
pub mod keys;
pub mod pin;
pub mod populate;
pub mod refusal;
pub mod region;
pub mod totals;
pub mod window;
pub mod window_refusal;

pub use weir_guarded::copy;
