//! Domains: an open adapter, with its registered memory.

mod calls;
mod keys;
mod limits;
mod memory;
mod object;

pub use calls::open;
pub use keys::{Keys, Listener, Registered};
pub use limits::atomic_limits;
pub use object::Domain;
