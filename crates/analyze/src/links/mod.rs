//! Connections over several links: their packets, each once, in the order of the connection, as if there were one link.

mod directions;
mod stream;

pub use directions::Path;

use crate::flow::{FlowKey, Source};
use crate::packet::{FrameId, Seen};
use directions::{DirectionId, Directions};
use foldhash::fast::RandomState;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use stream::Stream;
use weir_capture::Direction;
use weir_capture::packet::Address;
use weir_wire::edge::{Header, Hello};

/// All connections over several links.
#[derive(Debug, Default)]
pub struct Links {
    directions: Directions,
    /// The place of a direction's packets in a file; captures of several interfaces may have them in both directions.
    places: Places,
    streams: Vec<Stream<Waiting>>,
    /// Which of them have packets that wait, and when to look at them.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    is_listed: Vec<bool>,
    passed: VecDeque<Waiting>,
    file: Option<u16>,
}

type Places = HashMap<(DirectionId, u16, Option<Direction>), usize, RandomState>;

/// A packet of a QP, as it waits for those before it.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    direction: DirectionId,
    qpn: u32,
    source: Source,
    seen: Seen,
}

impl Links {
    /// Takes a hello.
    pub fn hello(&mut self, path: Path, hello: &Hello) {
        self.directions.hello(path, hello);
    }

    /// Takes a header, and what the packet behind it is to a QP, if it is one of a reliable connection. False: links have
    /// carried the packet before.
    pub fn packet(
        &mut self,
        path: Path,
        header: &Header,
        source: Source,
        time: u64,
        what: Option<(u32, Seen)>,
    ) -> bool {
        if self.file.is_some_and(|file| file != source.file) {
            self.finish();
        }
        self.file = Some(source.file);
        let direction = self.directions.of(header.connection, path);
        let Links { directions, places, streams, passed, is_listed, .. } = self;
        let mut is_new = true;
        if let Some((seq, order)) = header.packet {
            let key = (direction, source.file, source.direction);
            let place = places.get(&key).copied().unwrap_or_else(|| {
                // What went the other way is not behind what is gathered.
                let opposite =
                    directions.opposite(direction).into_iter().flat_map(|it| placed(places, it, source.file));
                let gathers = opposite.into_iter().all(|place| streams[place].gathers());
                streams.push(Stream::new(directions.first(direction), gathers, seq, time));
                is_listed.push(false);
                places.insert(key, streams.len() - 1);
                streams.len() - 1
            });
            let what = what.map(|(qpn, seen)| Waiting { direction, qpn, source, seen });
            is_new = streams[place].arrive((seq, order), time, what, &mut into(passed));
            if streams[place].has_gathered(time) {
                self.settle(place);
            }
            self.list(place);
        }
        if !self.due.is_empty() {
            self.tell_opposite(direction, header, source.file);
        }
        is_new
    }

    /// The next packet of a QP, in the order of its connection.
    pub fn next(&mut self) -> Option<(FlowKey, Source, Seen)> {
        let Waiting { direction, qpn, source, seen } = self.passed.pop_front()?;
        let (from, to) = self.directions.ends(direction)?;
        Some((FlowKey { from, to, qpn }, source, seen))
    }

    /// The addresses that stand for those of a packet.
    pub fn ends(&mut self, path: Path, header: &Header) -> (Address, Address) {
        let direction = self.directions.of(header.connection, path);
        self.directions.ends(direction).unwrap_or((path.from, path.to))
    }

    /// Packets wait no longer for those that do not come.
    #[inline]
    pub fn expire(&mut self, now: u64) {
        while let Some(Reverse((due, place))) = self.due.peek().copied()
            && due <= now
        {
            self.due.pop();
            self.is_listed[place] = false;
            if self.streams[place].has_gathered(now) {
                self.settle(place);
            }
            self.streams[place].expire(now, &mut into(&mut self.passed));
            self.list(place);
        }
    }

    /// All packets wait no longer.
    pub fn finish(&mut self) {
        let all: Vec<usize> = (0..self.streams.len()).collect();
        self.together(&all, Stream::finish);
        self.due.clear();
        self.is_listed.fill(false);
    }

    /// What the sender of a header says of the packets that it has received.
    fn tell_opposite(&mut self, direction: DirectionId, header: &Header, file: u16) {
        let (Some(opposite), Some(received)) = (self.directions.opposite(direction), header.received) else { return };
        for place in placed(&self.places, opposite, file) {
            self.streams[place].received(received, &mut into(&mut self.passed));
        }
    }

    /// Packets of a stream are gathered no longer, and neither are those of the opposite direction.
    fn settle(&mut self, place: usize) {
        let found = self.places.iter().find(|(_, found)| **found == place).map(|(key, _)| *key);
        let mut all = vec![place];
        if let Some((direction, file, _)) = found
            && let Some(opposite) = self.directions.opposite(direction)
        {
            all.extend(placed(&self.places, opposite, file).filter(|place| self.streams[*place].gathers()));
        }
        self.together(&all, Stream::settle);
    }

    /// Does something with several streams, and passes on what they have in the order of their frames.
    fn together(&mut self, places: &[usize], what: impl Fn(&mut Stream<Waiting>, &mut dyn FnMut(u64, Waiting))) {
        let mut all = Vec::new();
        for place in places {
            // A packet that waited comes where the one is that it has waited for.
            let mut newest = FrameId::default();
            what(&mut self.streams[*place], &mut |time, waiting: Waiting| {
                newest = newest.max(waiting.seen.frame);
                all.push((newest, Waiting { seen: Seen { time, ..waiting.seen }, ..waiting }));
            });
        }
        all.sort_by_key(|(frame, _)| *frame);
        self.passed.extend(all.into_iter().map(|(_, waiting)| waiting));
    }

    fn list(&mut self, place: usize) {
        if let Some(due) = self.streams[place].due()
            && !self.is_listed[place]
        {
            self.is_listed[place] = true;
            self.due.push(Reverse((due, place)));
        }
    }
}

/// The places of a direction's packets in a file.
fn placed(places: &Places, direction: DirectionId, file: u16) -> impl Iterator<Item = usize> {
    let ways = [None, Some(Direction::In), Some(Direction::Out)];
    ways.into_iter().filter_map(move |way| places.get(&(direction, file, way)).copied())
}

/// Enters packets with the times at which their connection has them.
fn into(passed: &mut VecDeque<Waiting>) -> impl FnMut(u64, Waiting) {
    |time, waiting| passed.push_back(Waiting { seen: Seen { time, ..waiting.seen }, ..waiting })
}
