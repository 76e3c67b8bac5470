//! Numbers that trade throughput against latency; none of them changes what is correct.

use std::time::Duration;

/// How a QP paces its acknowledgements and READs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Inside a long message an acknowledgement is asked for each so many packets.
    pub ack_every: u32,
    /// Largest READ request on the wire, bytes; rounded down to whole packets, at least one.
    pub read_chunk: usize,
    /// Longest that the acknowledgement of a single-packet message may wait for company.
    pub lazy_ack: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { ack_every: 16, read_chunk: 128 << 10, lazy_ack: Duration::from_micros(200) }
    }
}
