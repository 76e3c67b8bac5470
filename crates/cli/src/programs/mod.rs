//! Real programs on a [`crate::stage`]: a server and a client against each other, and what they print.

pub mod iperf;
pub mod pair;
pub mod perftest;
