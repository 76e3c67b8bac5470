//! The program of a host: which operations it begins, and when.

use super::adapter::Packet;
use super::costs::PAGE;
use crate::edge::setting::{Receiving, Setting, Test};
use std::collections::VecDeque;
use weir_transport::Instant;
use weir_transport::edge::{Flags, Kind, Operation};

/// Where destinations are: at the beginning of a page.
const DESTINATION: u64 = 1 << 32;

/// A program and the packets that its calls have made.
#[derive(Debug)]
pub struct Program {
    test: Test,
    /// What an operation consists of: the packets of each part are full but for the last.
    parts: Vec<Operation>,
    /// It may begin an operation.
    turn: bool,
    /// It has been told of an operation of the peer, and has to be woken.
    pub told: bool,
    /// Bytes of its operations that have not become packets.
    unsent: u64,
    /// Packets that are to be prepared and given to adapters.
    pub packets: VecDeque<Packet>,
    /// Operations so far, and when the latest began.
    pub operations: u64,
    pub began: Option<Instant>,
    /// Times from the beginning of an operation to that of the next.
    pub rounds: Vec<u64>,
}

impl Program {
    /// The program of the client, or of the server.
    pub fn new(setting: &Setting, is_client: bool) -> Program {
        Program {
            test: setting.test,
            parts: parts(setting),
            turn: is_client || setting.test == Test::TwoWay,
            told: false,
            unsent: 0,
            packets: VecDeque::new(),
            operations: 0,
            began: None,
            rounds: vec![],
        }
    }

    /// Whether it begins an operation, if it runs: its earlier ones have become packets.
    pub fn is_ready(&self) -> bool {
        self.turn && self.unsent == 0 && self.packets.is_empty()
    }

    /// It begins an operation.
    pub fn begin(&mut self, now: Instant) -> &[Operation] {
        self.turn = self.test != Test::PingPong;
        self.operations += 1;
        self.unsent += self.parts.iter().map(|part| u64::from(part.bytes)).sum::<u64>();
        self.rounds.extend(self.began.map(|began| (now - began).as_nanos() as u64));
        self.began = Some(now);
        &self.parts
    }

    /// A packet of its operations.
    pub fn queue(&mut self, packet: Packet) {
        self.unsent -= u64::from(packet.payload());
        self.packets.push_back(packet);
    }

    /// It runs after it has been told.
    pub fn wake(&mut self) {
        (self.told, self.turn) = (false, true);
    }
}

/// The parts of an operation. Where pages are remapped, packets end at ends of pages: what is before the first whole page of
/// the destination, and behind the last, has packets of its own (E 2.3.2).
fn parts(setting: &Setting) -> Vec<Operation> {
    let part = |from: u32, bytes: u32| Operation {
        kind: Kind::Write,
        remote: DESTINATION + u64::from(setting.offset) + u64::from(from),
        local: 0,
        bytes,
        flags: if setting.test == Test::PingPong { Flags::NOTIFY } else { Flags::empty() },
    };
    if !matches!(setting.receiving, Receiving::Remapped(_)) {
        return vec![part(0, setting.size)];
    }
    let before = ((PAGE - setting.offset % PAGE) % PAGE).min(setting.size);
    let whole = (setting.size - before) / PAGE * PAGE;
    let ends = [before, before + whole, setting.size];
    let mut parts = vec![];
    for (from, to) in [0, ends[0], ends[1]].into_iter().zip(ends).filter(|(from, to)| to > from) {
        parts.push(part(from, to - from));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::setting::{Flush, Sending};

    #[test]
    fn operations_are_divided_at_pages_where_pages_are_remapped() {
        let of = |receiving, size, offset| {
            let setting = Setting::zero_copy(Test::OneWay, size).moving(Sending::Gathered, receiving);
            let bytes = parts(&Setting { offset, ..setting }).iter().map(|part| part.bytes).collect::<Vec<_>>();
            assert_eq!(bytes.iter().sum::<u32>(), size);
            bytes
        };
        let remapped = Receiving::Remapped(Flush::Full);
        assert_eq!(of(Receiving::Copied, 20_000, 1), [20_000]);
        assert_eq!(of(remapped, 16_384, 0), [16_384]);
        assert_eq!(of(remapped, 16_384, 1), [4095, 12_288, 1]);
        assert_eq!(of(remapped, 16_384, 2048), [2048, 12_288, 2048]);
        assert_eq!(of(remapped, 100, 4000), [96, 4]);
        assert_eq!(of(remapped, 4096, 1), [4095, 1]);
    }
}
