//! Application memory: how it is touched, who may touch it, and that it is there.

pub mod copy;
mod counts;
pub mod device_memory;
pub mod handlers;
pub mod mask;
pub mod pin;
pub mod populate;
pub mod region;
pub mod window;
