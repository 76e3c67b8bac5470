//! Packets of the current message that were placed before their turn.
//!
//! Over several links the middle packets of a message may overtake each other, but neither its first nor its last packet.
//! A frame says where its payload belongs, so it is placed when it comes, and counts when those before it have come.

use std::collections::VecDeque;

/// A packet is placed at most so far before its turn.
const MOST: usize = 4096;

/// Which packets after the expected one have been placed.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// From the expected packet on, which has not been.
    packets: VecDeque<Mark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Missing,
    Placed,
    /// It asks for an acknowledgement.
    PlacedAsks,
}

impl Early {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub fn clear(&mut self) {
        self.packets.clear();
    }

    /// Whether the packet that is so many after the expected one may be placed.
    pub fn takes(&self, ahead: usize) -> bool {
        (1..MOST).contains(&ahead)
    }

    /// The packet that is so many after the expected one has been placed.
    pub fn place(&mut self, ahead: usize, asks: bool) {
        let len = self.packets.len().max(ahead + 1);
        self.packets.resize(len, Mark::Missing);
        self.packets[ahead] = if asks { Mark::PlacedAsks } else { Mark::Placed };
    }

    /// The expected packet has come: the packets behind it that have been placed count now. Returns how many, and whether one
    /// of them asks for an acknowledgement.
    #[cold]
    pub fn count(&mut self) -> (u32, bool) {
        self.packets.pop_front();
        let (mut count, mut asks) = (0, false);
        while let Some(mark) = self.packets.front().filter(|mark| **mark != Mark::Missing) {
            count += 1;
            asks |= *mark == Mark::PlacedAsks;
            self.packets.pop_front();
        }
        (count, asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_count_when_those_before_them_have_come() {
        let mut early = Early::default();
        assert!(!early.takes(0) && early.takes(1) && early.takes(MOST - 1) && !early.takes(MOST));
        early.place(2, true);
        early.place(1, false);
        early.place(4, false);
        assert_eq!(early.count(), (2, true));
        early.place(2, false);
        assert_eq!(early.count(), (2, false), "3 has come: 4, and what is now behind it");
        assert!(early.is_empty());
        early.place(1, true);
        early.clear();
        assert_eq!(early.count(), (0, false));
    }
}
