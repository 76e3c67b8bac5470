//! Which addresses are those of one connection over several links.
//!
//! A header has the receiver's number of the connection, which is random: so it names a direction between two slots. Each
//! link has its own addresses; the analysis uses one pair of them for all packets of the connection, in both directions.
//! It is that of the hellos if they were captured. Otherwise it is that of the packet that was seen first; and the opposite
//! direction is the one that uses the same addresses on any link.

use foldhash::fast::RandomState;
use std::collections::HashMap;
use weir_capture::packet::Address;
use weir_wire::edge::{Hello, Seq};

/// Index of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirectionId(u32);

/// Where a datagram went: its addresses and UDP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    pub from: Address,
    pub to: Address,
    pub from_port: u16,
    pub to_port: u16,
}

/// All directions.
#[derive(Debug, Default)]
pub struct Directions {
    all: Vec<Direction>,
    /// By number, and ports of sender and receiver.
    ids: HashMap<(u32, u16, u16), DirectionId, RandomState>,
    /// By the paths of their links, the newest of each.
    paths: HashMap<Path, DirectionId, RandomState>,
    /// The last hello on each path: number of the connection, first packet.
    hellos: HashMap<Path, (u32, Seq), RandomState>,
    last: Option<((u32, Path), DirectionId)>,
}

#[derive(Debug, Default)]
struct Direction {
    paths: Vec<Path>,
    opposite: Option<DirectionId>,
    /// The sender's first packet.
    first: Option<Seq>,
    /// The addresses that stand for those of all links.
    ends: Option<(Address, Address)>,
}

/// The most hellos that are kept, and the most paths of a direction: as many as there are links.
const HELLOS: usize = 65_536;
const PATHS: usize = 64;

impl Path {
    fn back(self) -> Path {
        Path { from: self.to, to: self.from, from_port: self.to_port, to_port: self.from_port }
    }
}

impl Directions {
    /// The direction of a datagram with this number.
    #[inline]
    pub fn of(&mut self, connection: u32, path: Path) -> DirectionId {
        match self.last {
            Some((last, id)) if last == (connection, path) => id,
            _ => {
                let id = self.find(connection, path);
                self.last = Some(((connection, path), id));
                id
            }
        }
    }

    /// A hello says the sender's number of the connection, and its first packet.
    pub fn hello(&mut self, path: Path, hello: &Hello) {
        if hello.refuses || (self.hellos.len() == HELLOS && !self.hellos.contains_key(&path)) {
            return;
        }
        self.hellos.insert(path, (hello.connection, hello.first));
        let towards = self.numbered(hello.connection, path.back());
        self.all[towards.index()].ends.get_or_insert((path.to, path.from));
        let Some((number, first)) = self.hellos.get(&path.back()).copied() else { return };
        let away = self.numbered(number, path);
        self.all[away.index()].ends.get_or_insert((path.from, path.to));
        self.all[away.index()].first = Some(hello.first);
        self.all[towards.index()].first = Some(first);
        self.join(away, towards);
    }

    /// The addresses that stand for those of all links. Once they are asked for they stay.
    pub fn ends(&mut self, id: DirectionId) -> Option<(Address, Address)> {
        let Direction { ends, opposite, paths, .. } = &self.all[id.index()];
        let found = ends.or_else(|| {
            let back = opposite.and_then(|opposite| self.all[opposite.index()].ends);
            back.map(|(from, to)| (to, from)).or(paths.first().map(|path| (path.from, path.to)))
        });
        self.all[id.index()].ends = found;
        found
    }

    /// The sender's first packet, if hellos told it.
    pub fn first(&self, id: DirectionId) -> Option<Seq> {
        self.all[id.index()].first
    }

    /// The direction back.
    pub fn opposite(&self, id: DirectionId) -> Option<DirectionId> {
        self.all[id.index()].opposite
    }

    fn find(&mut self, connection: u32, path: Path) -> DirectionId {
        let id = self.numbered(connection, path);
        let direction = &mut self.all[id.index()];
        if direction.paths.contains(&path) || direction.paths.len() == PATHS {
            return id;
        }
        direction.paths.push(path);
        self.paths.insert(path, id);
        if let Some(opposite) = self.paths.get(&path.back()).copied()
            && self.all[id.index()].opposite.is_none()
            && self.all[opposite.index()].opposite.is_none()
        {
            self.join(id, opposite);
        }
        id
    }

    fn numbered(&mut self, connection: u32, path: Path) -> DirectionId {
        let next = DirectionId(self.all.len() as u32);
        let id = *self.ids.entry((connection, path.from_port, path.to_port)).or_insert(next);
        if id == next {
            self.all.push(Direction::default());
        }
        id
    }

    fn join(&mut self, one: DirectionId, other: DirectionId) {
        if one != other {
            self.all[one.index()].opposite = Some(other);
            self.all[other.index()].opposite = Some(one);
        }
    }
}

impl DirectionId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(network: u8, host: u8) -> Address {
        Address::Ipv4([10, 0, network, host].into())
    }

    /// From the first host or from the second, on a link.
    fn path(link: u8, from_first: bool) -> Path {
        let path = Path { from: address(link, 1), to: address(link, 2), from_port: 20_481, to_port: 20_482 };
        if from_first { path } else { path.back() }
    }

    fn hello(connection: u32, first: u32) -> Hello {
        Hello { connection, first: Seq(first), ..Hello::default() }
    }

    #[test]
    fn hellos_tell_the_addresses_and_the_first_packets() {
        let mut directions = Directions::default();
        directions.hello(path(0, true), &hello(77, 5));
        directions.hello(path(0, false), &hello(88, 6));
        // The receiver's number is in the packets.
        let (away, back) = (directions.of(88, path(3, true)), directions.of(77, path(2, false)));
        assert_eq!(directions.ends(away), Some((address(0, 1), address(0, 2))));
        assert_eq!(directions.ends(back), Some((address(0, 2), address(0, 1))));
        assert_eq!((directions.first(away), directions.first(back)), (Some(Seq(5)), Some(Seq(6))));
        assert_eq!(directions.opposite(away), Some(back));
    }

    #[test]
    fn without_hellos_one_link_that_both_directions_use_is_enough() {
        let mut directions = Directions::default();
        let away = directions.of(88, path(0, true));
        assert_eq!(directions.of(88, path(1, true)), away);
        let back = directions.of(77, path(2, false));
        assert_ne!(away, back);
        assert_eq!(directions.opposite(back), None);
        assert_eq!(directions.of(77, path(1, false)), back);
        assert_eq!(directions.opposite(back), Some(away));
        assert_eq!(directions.ends(back), Some((address(2, 2), address(2, 1))));
        assert_eq!(directions.ends(away), Some((address(2, 1), address(2, 2))), "as the other direction has it");
        // Another connection between the same slots.
        assert_ne!(directions.of(99, path(0, true)), away);
    }
}
