//! What happened to a datagram on its way.

bitflags::bitflags! {
    /// What fault injection, or the adapter itself, did to a datagram; usually empty.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Fate: u8 {
        /// Dropped.
        const LOST = 1 << 0;
        /// The extra copy of another datagram.
        const DUPLICATED = 1 << 1;
        /// Overtaken by later datagrams.
        const REORDERED = 1 << 2;
        /// Some bits are flipped.
        const CORRUPTED = 1 << 3;
        /// Held back for a time.
        const DELAYED = 1 << 4;
    }
}
