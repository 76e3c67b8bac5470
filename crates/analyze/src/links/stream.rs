//! The packets of one direction of a connection over several links: each once, in the order in which the receiver performs
//! them.
//!
//! A packet waits until all before it were seen, or the one that it has to follow. It waits no longer if the peer says that
//! all before it have arrived, if too many wait, or after [`WAIT`]: then the capture lacks a packet. If the capture begins
//! within the connection, packets are gathered first, because links may have reordered its first ones.

use std::collections::VecDeque;
use weir_wire::edge::{Order, Seq};

/// The packets of one direction. `T` is what is kept of a packet.
#[derive(Debug)]
pub struct Stream<T> {
    /// All packets before it were passed on, or are given up.
    next: Seq,
    newest: Seq,
    /// Which of the last [`SEEN`] packets up to the newest were seen, by the sequence number modulo [`SEEN`].
    seen: Box<[u64; WORDS]>,
    /// In the order of their sequence numbers.
    held: VecDeque<Held<T>>,
    /// The time of the last packet that was passed on.
    passed: u64,
    /// When gathering began; `None`: it is over.
    gathers: Option<u64>,
}

#[derive(Debug)]
struct Held<T> {
    seq: Seq,
    order: Order,
    came: u64,
    what: Option<T>,
}

/// A packet waits so long for those before it, ns. A packet that was lost goes again after 10 ms.
pub const WAIT: u64 = 100_000_000;
/// The first packets of a capture are gathered for so long, ns, or until there are so many. No packet stays longer on a link.
pub const GATHER: u64 = 3_000_000;
const GATHERED: usize = 64;
/// More than three of the largest windows, and a power of two: numbers wrap.
const SEEN: u32 = 64 * WORDS as u32;
const WORDS: usize = 256;
/// The most packets that wait.
const HELD: usize = 4096;

impl<T> Stream<T> {
    /// A stream of which the packet with this number is seen first, at this time. `first`: the first packet of the
    /// connection, if it is known. If it is not, and `gathers` says so, packets are gathered until [`Self::settle`].
    pub fn new(first: Option<Seq>, gathers: bool, seq: Seq, now: u64) -> Stream<T> {
        match first.filter(|first| (0..SEEN as i32).contains(&seq.since(*first))) {
            Some(first) => Stream::at(first, None),
            None => Stream::at(seq, gathers.then_some(now)),
        }
    }

    fn at(next: Seq, gathers: Option<u64>) -> Stream<T> {
        Stream { next, newest: next.minus(1), seen: Box::new([0; WORDS]), held: VecDeque::new(), passed: 0, gathers }
    }

    /// Takes a packet, and passes on what may be: each with a time that is not before those passed on earlier. `what` is
    /// `None` for a packet that is not wanted. False: the packet was seen before.
    pub fn arrive(
        &mut self,
        (seq, order): (Seq, Order),
        came: u64,
        what: Option<T>,
        out: &mut dyn FnMut(u64, T),
    ) -> bool {
        if seq.since(self.newest).unsigned_abs() >= SEEN {
            // Another connection, or a large hole in the capture.
            self.finish(out);
            *self = Stream { passed: self.passed, ..Stream::at(seq, Some(came)) };
        }
        if self.newest.before(seq) {
            while self.newest != seq {
                self.newest = self.newest.next();
                self.mark(self.newest, false);
            }
        } else if self.has(seq) {
            return false;
        }
        self.mark(seq, true);
        if self.gathers.is_some() {
            self.hold(Held { seq, order, came, what });
        } else if self.is_ready(seq, order) {
            self.pass(came, what, out);
            self.follow(out);
        } else {
            self.hold(Held { seq, order, came, what });
            if self.held.len() > HELD {
                self.give_up(out);
            }
        }
        true
    }

    /// The peer says that all packets before this one have arrived.
    pub fn received(&mut self, seq: Seq, out: &mut dyn FnMut(u64, T)) {
        while self.gathers.is_none() && self.held.front().is_some_and(|held| held.seq.before(seq)) {
            self.give_up(out);
        }
    }

    /// Passes on what has waited long enough. Returns when to look again, if packets wait.
    pub fn expire(&mut self, now: u64, out: &mut dyn FnMut(u64, T)) -> Option<u64> {
        while self.gathers.is_none() && self.held.front().is_some_and(|held| held.came + WAIT <= now) {
            self.give_up(out);
        }
        self.due()
    }

    /// When to look for packets that have waited long enough.
    pub fn due(&self) -> Option<u64> {
        let oldest = self.held.front()?;
        Some(self.gathers.map_or(oldest.came + WAIT, |since| since + GATHER))
    }

    /// Passes on all that waits.
    pub fn finish(&mut self, out: &mut dyn FnMut(u64, T)) {
        self.settle(out);
        while !self.held.is_empty() {
            self.give_up(out);
        }
    }

    /// Whether packets are gathered.
    pub fn gathers(&self) -> bool {
        self.gathers.is_some()
    }

    /// Whether enough of them are.
    pub fn has_gathered(&self, now: u64) -> bool {
        self.gathers.is_some_and(|since| since + GATHER <= now || self.held.len() >= GATHERED)
    }

    /// Packets are gathered no longer.
    pub fn settle(&mut self, out: &mut dyn FnMut(u64, T)) {
        if self.gathers.take().is_some() {
            self.give_up(out);
        }
    }

    /// What is missing before the first packet that waits is given up.
    fn give_up(&mut self, out: &mut dyn FnMut(u64, T)) {
        if let Some(first) = self.held.front() {
            self.next = first.seq;
            self.follow(out);
        }
    }

    /// Passes on packets that waited for those that were.
    fn follow(&mut self, out: &mut dyn FnMut(u64, T)) {
        let mut at = 0;
        self.skip();
        // A packet waits for earlier ones only: one pass is enough.
        while let Some(held) = self.held.get(at) {
            if !self.is_ready(held.seq, held.order) {
                at += 1;
                continue;
            }
            let Some(held) = self.held.remove(at) else { return };
            self.pass(held.came, held.what, out);
            self.skip();
        }
    }

    fn pass(&mut self, came: u64, what: Option<T>, out: &mut dyn FnMut(u64, T)) {
        self.passed = self.passed.max(came);
        if let Some(what) = what {
            out(self.passed, what);
        }
    }

    /// `next` goes beyond what was passed on.
    fn skip(&mut self) {
        while !self.newest.before(self.next) && self.is_passed(self.next) {
            self.next = self.next.next();
        }
    }

    fn is_ready(&self, seq: Seq, order: Order) -> bool {
        let follows = |earlier: Seq| earlier.before(self.next) || self.is_passed(earlier);
        !self.next.before(seq) || matches!(order, Order::AfterOne(earlier) if earlier.before(seq) && follows(earlier))
    }

    /// Whether a packet was seen and does not wait.
    fn is_passed(&self, seq: Seq) -> bool {
        let held = || self.held.get(self.place(seq)).is_some_and(|held| held.seq == seq);
        (0..SEEN as i32).contains(&self.newest.since(seq)) && self.has(seq) && !held()
    }

    fn hold(&mut self, held: Held<T>) {
        self.held.insert(self.place(held.seq), held);
    }

    /// The number of packets that wait and come before this one.
    fn place(&self, seq: Seq) -> usize {
        self.held.partition_point(|held| held.seq.before(seq))
    }

    fn has(&self, seq: Seq) -> bool {
        let at = seq.0 % SEEN;
        self.seen[at as usize / 64] & 1 << (at % 64) != 0
    }

    fn mark(&mut self, seq: Seq, seen: bool) {
        let at = seq.0 % SEEN;
        let (word, bit) = (&mut self.seen[at as usize / 64], 1 << (at % 64));
        *word = if seen { *word | bit } else { *word & !bit };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Order = Order::Any;

    /// A stream from packet 10 on, and what it has passed on.
    fn known() -> (Stream<u32>, Vec<u32>) {
        (Stream::new(Some(Seq(10)), true, Seq(10), 0), vec![])
    }

    fn arrive(stream: &mut Stream<u32>, out: &mut Vec<u32>, seq: u32, order: Order, now: u64) -> bool {
        stream.arrive((Seq(seq), order), now, Some(seq), &mut |_, seq| out.push(seq))
    }

    #[test]
    fn packets_come_once_and_in_order() {
        let (mut stream, mut out) = known();
        let came = [11, 10, 14, 14, 13, 11, 12, 15, 10].map(|seq| arrive(&mut stream, &mut out, seq, ANY, 0));
        assert_eq!(out, [10, 11, 12, 13, 14, 15]);
        assert_eq!(came, [true, true, true, false, true, false, true, true, false]);
    }

    #[test]
    fn a_packet_waits_for_the_one_that_it_follows_and_not_for_those_of_other_qps() {
        let (mut stream, mut out) = known();
        arrive(&mut stream, &mut out, 10, ANY, 0);
        // 11 is missing: 13 follows it, 12 and 14 are of another QP.
        for (seq, before) in [(13, 11), (14, 12), (12, 10)] {
            arrive(&mut stream, &mut out, seq, Order::AfterOne(Seq(before)), 0);
        }
        assert_eq!(out, [10, 12, 14]);
        arrive(&mut stream, &mut out, 11, Order::AfterOne(Seq(10)), 0);
        arrive(&mut stream, &mut out, 15, ANY, 0);
        assert_eq!(out, [10, 12, 14, 11, 13, 15]);
    }

    #[test]
    fn what_the_capture_lacks_is_not_waited_for_without_end() {
        let (mut stream, mut out) = known();
        arrive(&mut stream, &mut out, 11, ANY, 5);
        assert_eq!(stream.expire(WAIT + 4, &mut |_, seq| out.push(seq)), Some(WAIT + 5));
        assert!(out.is_empty());
        assert_eq!(stream.expire(WAIT + 5, &mut |_, seq| out.push(seq)), None);
        assert_eq!(out, [11]);
        // It comes at last, and the peer tells that another one has come.
        arrive(&mut stream, &mut out, 10, ANY, WAIT + 6);
        arrive(&mut stream, &mut out, 13, ANY, WAIT + 7);
        stream.received(Seq(13), &mut |_, seq| out.push(seq));
        assert_eq!(out, [11, 10]);
        stream.received(Seq(14), &mut |_, seq| out.push(seq));
        assert_eq!(out, [11, 10, 13]);
        for seq in 15..=15 + HELD as u32 {
            arrive(&mut stream, &mut out, seq, ANY, WAIT + 8);
        }
        assert_eq!(out.len(), 4 + HELD, "too many waited for 14");
    }

    #[test]
    fn times_do_not_go_back() {
        let (mut stream, mut times) = (Stream::<()>::new(Some(Seq(10)), true, Seq(11), 5), vec![]);
        for (seq, came) in [(11, 5), (10, 9), (12, 10)] {
            stream.arrive((Seq(seq), ANY), came, Some(()), &mut |time, ()| times.push(time));
        }
        assert_eq!(times, [9, 9, 10]);
    }

    #[test]
    fn a_capture_that_begins_within_the_connection_has_its_first_packets_in_order() {
        for (count, wait) in [(GATHERED as u32, 0), (9, GATHER)] {
            let (mut stream, mut out) = (Stream::new(None, true, Seq(1), 7), vec![]);
            for seq in 0..count {
                assert!(arrive(&mut stream, &mut out, seq ^ 1, ANY, 7));
            }
            assert!(out.is_empty() && stream.has_gathered(7 + wait) && (wait == 0 || !stream.has_gathered(6 + wait)));
            stream.settle(&mut |_, seq| out.push(seq));
            let all: Vec<u32> = (0..count).collect();
            // Nine packets are 0 to 7 and 9.
            assert_eq!(out[..8], all[..8]);
            assert_eq!(out.len(), if count == 9 { 8 } else { GATHERED });
            stream.finish(&mut |_, seq| out.push(seq));
            assert_eq!(out.len(), count as usize);
        }
    }

    #[test]
    fn numbers_wrap_and_a_new_connection_begins_anew() {
        let (mut stream, mut out) = (Stream::new(Some(Seq(u32::MAX)), true, Seq(0), 0), vec![]);
        for seq in [0, u32::MAX, 1] {
            assert!(arrive(&mut stream, &mut out, seq, ANY, 0));
        }
        assert!(!arrive(&mut stream, &mut out, u32::MAX, ANY, 0));
        arrive(&mut stream, &mut out, 1 << 30, ANY, 0);
        stream.finish(&mut |_, seq| out.push(seq));
        assert_eq!(out, [u32::MAX, 0, 1, 1 << 30]);
    }
}
