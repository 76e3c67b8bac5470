//! Application memory: how it is touched, who may touch it, and that it is there.

pub mod copy;
pub mod pin;
pub mod region;
