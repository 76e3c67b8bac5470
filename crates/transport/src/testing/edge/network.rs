//! Links between two sides, with rates, delays, queues and losses.

use crate::Instant;
use crate::edge::{Ack, Header, Piece};
use crate::testing::Rng;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;
use weir_wire::edge::{self, Parsed};

/// What a link does to packets, in both directions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Bits per second.
    pub rate: f64,
    /// One way.
    pub delay: Duration,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet comes up to 100 µs later than it should, after others.
    pub reordering: f64,
    /// Bytes that wait for the link; what comes when it is full is lost.
    pub queue: u64,
    /// The side to which nothing comes.
    pub deaf: Option<usize>,
}

impl Line {
    /// 1 to 64 random links. `rate` and `delay`: the least power of ten, bits per second and ns, and by how many
    /// hundredths of a power it may be larger; `loss`: the largest, in thousandths.
    pub fn random(rng: &mut Rng, rate: (f64, u64), delay: (f64, u64), loss: u64) -> Vec<Line> {
        let count = [1, 2, 3, 5, 8, 64][rng.below(6) as usize];
        let lossy = rng.chance(0.7);
        let power = |rng: &mut Rng, (least, more): (f64, u64)| 10f64.powf(least + rng.below(more) as f64 / 100.0);
        (0..count)
            .map(|_| Line {
                rate: power(rng, rate),
                delay: Duration::from_nanos(power(rng, delay) as u64),
                loss: if lossy { rng.below(loss) as f64 / 1000.0 } else { 0.0 },
                reordering: if lossy { 0.05 } else { 0.0 },
                queue: 20_000 + rng.below(1 << 20),
                deaf: None,
            })
            .collect()
    }

    /// A link of so many Gbit/s, 20 µs long, that loses nothing.
    pub fn gigabits(gigabits: f64) -> Line {
        Line {
            rate: gigabits * 1e9,
            delay: Duration::from_micros(20),
            loss: 0.0,
            reordering: 0.0,
            queue: 8 << 20,
            deaf: None,
        }
    }
}

/// The links, and what is on them: headers in wire format, each with something of type `P`.
#[derive(Debug)]
pub(super) struct Network<P> {
    pub lines: Vec<Line>,
    /// When a link of each direction has sent what it has.
    busy: Vec<[Instant; 2]>,
    flying: BinaryHeap<Flying<P>>,
    packets: u64,
    rng: Rng,
}

#[derive(Debug)]
struct Flying<P> {
    at: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
    /// Bytes behind them.
    payload: u32,
    carried: P,
}

/// A packet that arrives at a side.
pub(super) struct Arrived<P> {
    pub to: usize,
    pub header: Header,
    pub ack: Option<Ack>,
    pub piece: Option<Piece>,
    pub carried: P,
}

impl<P> Network<P> {
    pub fn new(lines: &[Line], seed: u64) -> Network<P> {
        Network {
            lines: lines.to_vec(),
            busy: vec![[Instant(0); 2]; lines.len()],
            flying: BinaryHeap::new(),
            packets: 0,
            rng: Rng(seed),
        }
    }

    /// Side `from` puts a packet on the header's link; `payload`: bytes besides header, acknowledgement and piece. Returns
    /// its bytes.
    pub fn put(
        &mut self,
        now: Instant,
        from: usize,
        (header, ack, piece): (&Header, Option<&Ack>, Option<&Piece>),
        payload: u32,
        carried: P,
    ) -> u64 {
        let mut bytes = vec![0; edge::MAX_HEADER_LEN + edge::MAX_ACK_LEN + edge::PIECE_LEN];
        let len = header.emit(ack, piece, &mut bytes);
        bytes.truncate(len);
        let size = len as u64 + u64::from(payload);
        let (link, line) = (usize::from(header.link), self.lines[usize::from(header.link)]);
        let busy = &mut self.busy[link][from];
        let start = now.max(*busy);
        if (start - now).as_secs_f64() * line.rate / 8.0 > line.queue as f64 {
            return size;
        }
        *busy = start + Duration::from_secs_f64(size as f64 * 8.0 / line.rate);
        let late = if self.rng.chance(line.reordering) { self.rng.below(100_000) } else { 0 };
        if !self.rng.chance(line.loss) && line.deaf != Some(1 - from) {
            self.packets += 1;
            let at = *busy + line.delay + Duration::from_nanos(late);
            self.flying.push(Flying { at, number: self.packets, to: 1 - from, bytes, payload, carried });
        }
        size
    }

    /// When the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.peek().map(|flying| flying.at)
    }

    /// The next packet that has arrived by `now`.
    pub fn arrival(&mut self, now: Instant) -> Option<Arrived<P>> {
        self.flying.peek().filter(|flying| flying.at <= now)?;
        let Flying { to, bytes, payload, carried, .. } = self.flying.pop()?;
        let (mut ack, whole) = (Ack::default(), bytes.len() + payload as usize);
        let parsed = Header::parse_start(&bytes, whole, &mut ack).expect("this is what was sent");
        let Parsed { header, has_ack, piece, rest } = parsed;
        assert!(rest.is_empty());
        Some(Arrived { to, header, ack: has_ack.then_some(ack), piece, carried })
    }
}

impl<P> Ord for Flying<P> {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<P> PartialOrd for Flying<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for Flying<P> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<P> Eq for Flying<P> {}
