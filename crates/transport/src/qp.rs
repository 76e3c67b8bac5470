//! One queue pair: its work queues and the three state machines around them.

/// How much may leave now; the adapter divides its peers' and its own receive buffers among QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cost in bytes of request packets that may go out beyond those in flight.
    pub request_bytes: usize,
    /// Bytes of READ responses that may be asked for beyond those in flight.
    pub read_bytes: usize,
}

/// What is under way; see [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Cost in bytes of request packets sent and not acknowledged.
    pub request_bytes: usize,
    /// Bytes of READ responses asked for and not arrived.
    pub read_bytes: usize,
}

/// How a `poll_transmit` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing more to send for now.
    Idle,
    /// The egress took no more.
    Full,
    /// A limit was reached: try again when something was acknowledged or has arrived.
    Limited,
}
