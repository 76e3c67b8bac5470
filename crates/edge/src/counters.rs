//! What a node counts.

/// Counted since the node was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets with pieces of operations, and those that go again.
    pub packets_sent: u64,
    /// Bytes of operations in them.
    pub bytes_sent: u64,
    /// Acknowledgements and questions that went alone.
    pub acknowledgements_sent: u64,
    /// Packets of connections.
    pub packets_received: u64,
    /// Bytes of operations in them.
    pub bytes_received: u64,
    /// Packets that were dropped: damaged, of no connection, from an address that is not the peer's, or against the rules.
    pub packets_refused: u64,
    /// Calls of the sockets that sent packets.
    pub sends: u64,
    /// Calls of the sockets that received some.
    pub receives: u64,
    /// Calls of the sockets that received nothing.
    pub empty_receives: u64,
    /// How often the node's thread went to sleep.
    pub sleeps: u64,
    /// Operations of this side that are complete, and those of them that failed.
    pub completed: u64,
    pub failed: u64,
    /// Notifications that came.
    pub notified: u64,
}
