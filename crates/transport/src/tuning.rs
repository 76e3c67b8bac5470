//! Parameters that trade throughput against latency; none of them affects correctness.

use std::time::Duration;

/// How a QP paces its acknowledgements and READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Inside a long message the requester asks for an ACK every `ack_every` packets.
    pub ack_every: u32,
    /// Largest READ request on the wire, bytes; rounded down to whole packets, at least one.
    pub read_chunk: usize,
    /// The longest time that the ACK of a message may wait for the application's reply, and then for each part of it.
    pub ack_delay: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { ack_every: 16, read_chunk: 128 << 10, ack_delay: Duration::from_micros(200) }
    }
}
