//! Real programs on a [`weir_stage`]: pairs of a server and a client, and their output.

pub mod iperf;
pub mod perftest;

pub use weir_stage::pair;
