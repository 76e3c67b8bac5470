//! What became of a datagram on its way.

bitflags::bitflags! {
    /// What fault injection, or the adapter itself, did to a datagram; empty as a rule.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Fate: u8 {
        /// Never goes on.
        const LOST = 1 << 0;
        /// The extra copy of another one.
        const DUPLICATED = 1 << 1;
        /// Overtaken by later ones.
        const REORDERED = 1 << 2;
        /// Some bits are flipped.
        const CORRUPTED = 1 << 3;
        /// Held back.
        const DELAYED = 1 << 4;
        /// The adapter behaves like one that loses it, which fault injection has no part in: always with `LOST`.
        const DAMMED = 1 << 5;
    }
}
