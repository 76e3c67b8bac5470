//! Real programs on a [`weir_stage`]: a server and a client against each other, and what they print.

pub mod iperf;
pub mod perftest;

pub use weir_stage::pair;
