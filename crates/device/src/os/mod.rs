//! The operating system and the process that an adapter is in.

pub mod inside;
pub mod panics;
pub mod threads;
