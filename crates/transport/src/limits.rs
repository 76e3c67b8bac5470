//! How much a QP may send: the adapter's limits, what a QP has in flight, and how a poll ended.

/// Bytes that a packet takes in a receive buffer beyond its own length. Windows and limits count it for every packet.
pub const PACKET_COST: usize = 512;

/// How much may leave now; the adapter divides its peers' receive buffers and its own among its QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cost in bytes of request packets that may go out beyond those in flight.
    pub request_bytes: usize,
    /// Bytes of READ responses that may be requested beyond those in flight.
    pub read_bytes: usize,
}

/// Data in flight; see [`Limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Cost in bytes of request packets sent and not acknowledged.
    pub request_bytes: usize,
    /// Bytes of READ responses requested and not received.
    pub read_bytes: usize,
}

/// The result of a `poll_transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing more to send for now.
    Idle,
    /// The egress took no more.
    Full,
    /// A limit was reached: poll again when an ACK or a response has arrived.
    Limited,
}
