//! Packets that adapters themselves report, and which adapter's report counts.
//!
//! If both ends of a connection report, each packet comes twice, with two times. All packets of a connection are taken
//! from one source, so that their order and their times are those of one place, as in a capture.

use crate::setup::End;
use foldhash::fast::RandomState;
use std::collections::HashMap;
use weir_capture::packet::Address;
use weir_wire::Headers;

/// A packet of a reliable connection, as the adapter of one of its ends reports it.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// From 1, within its source.
    pub number: u64,
    /// The adapter sent it; otherwise it received it.
    pub sent: bool,
    pub from: Address,
    pub to: Address,
    /// The QP that sent it.
    pub from_qp: u32,
    pub headers: &'a Headers,
    /// Bytes of payload, without pad.
    pub payload: u32,
    /// It came over several links, where packets within a message overtake each other.
    pub over_links: bool,
}

/// Which source counts for each connection.
#[derive(Debug, Default)]
pub struct Sources {
    of: HashMap<(End, End), u16, RandomState>,
    last: Option<((End, End), u16)>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    Yes,
    /// It is the first of its connection.
    First,
    /// Another source has it, too.
    No,
}

impl Sources {
    /// Whether a packet of a connection counts.
    pub fn counts(&mut self, ends: (End, End), source: u16) -> Counts {
        let (one, other) = ends;
        let pair = if one <= other { (one, other) } else { (other, one) };
        let known = match self.last {
            Some((last, known)) if last == pair => Some(known),
            _ => self.of.get(&pair).copied(),
        };
        let chosen = known.unwrap_or(source);
        self.last = Some((pair, chosen));
        match known {
            None => {
                self.of.insert(pair, source);
                Counts::First
            }
            Some(known) if known == source => Counts::Yes,
            Some(_) => Counts::No,
        }
    }

    /// A source reports no more: the other end counts for its connections from now on.
    pub fn end(&mut self, source: u16) {
        self.of.retain(|_, of| *of != source);
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(last: u8, qpn: u32) -> End {
        (Address::Ipv4([10, 0, 0, last].into()), qpn)
    }

    #[test]
    fn the_first_source_of_a_connection_counts_until_it_ends() {
        let mut sources = Sources::default();
        let (a, b, c) = (end(1, 5), end(2, 6), end(2, 7));
        assert_eq!(sources.counts((a, b), 0), Counts::First);
        assert_eq!(sources.counts((a, b), 1), Counts::No);
        assert_eq!(sources.counts((b, a), 0), Counts::Yes, "the other direction");
        assert_eq!(sources.counts((a, c), 1), Counts::First, "another connection");
        assert_eq!(sources.counts((b, a), 1), Counts::No);
        sources.end(0);
        assert_eq!(sources.counts((b, a), 1), Counts::First);
        assert_eq!(sources.counts((a, c), 1), Counts::Yes);
    }
}
