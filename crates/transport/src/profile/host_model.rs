//! The machine that an adapter is in, as a simulator models it. The protocol does not read it.
//!
//! The parameters come from Q. Liu's and R. Russell's "A Performance Study of InfiniBand Fourteen Data Rate" (2014).
//! The adapter's own part is the bus and the cache; the times of programs are for the application that a simulator
//! runs.

use std::time::Duration;

/// The bus between the adapter and memory, the cache behind the bus, and the times of programs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostModel {
    /// The most payload bytes of a transfer on the bus (a transaction layer packet of PCIe).
    pub tlp: u32,
    /// Bytes of a cache line. A transfer moves whole lines.
    pub line: u32,
    /// Time of a line on the bus, in nanoseconds. Each direction carries one line after the other.
    pub line_ns: f64,
    /// Bytes that the cache holds of the memory that the adapter accesses.
    pub cache: u64,
    /// What a line costs in addition if it is not in the cache, in nanoseconds.
    pub miss_ns: f64,
    /// What a write to a part of such a line costs in addition to that, in nanoseconds: the line is read, changed,
    /// written.
    pub partial_miss_ns: f64,
    /// Memory of another NUMA node than the adapter's costs so many times as much.
    pub remote_factor: f64,
    /// For so long the adapter moves no payload, because it writes a completion.
    pub completion: Duration,
    /// For so long the adapter moves no payload, because it raises an event.
    pub event: Duration,
    /// From an event to the program that waits for it.
    pub wake: Duration,
    /// CPU time of going to sleep and waking up.
    pub wake_cpu: Duration,
    /// CPU time in which a program polls a queue once. A program that polls notices a completion within this time.
    pub poll: Duration,
    /// CPU time in which a program posts a work request.
    pub post: Duration,
    /// `wake` and `wake_cpu` of a program on another NUMA node than the adapter's are so many times as long.
    pub remote_wake_factor: f64,
}
