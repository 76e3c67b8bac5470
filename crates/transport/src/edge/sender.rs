//! What is on its way to the peer: the window, and what goes again.

use super::links::{Links, Lost, Packets, Put};
use super::parameters::Parameters;
use super::scheduler::Scheduler;
use crate::Instant;
use std::collections::VecDeque;
use std::time::Duration;
use weir_wire::edge::{Ack, Seq};

/// The coarse timeout doubles while the peer says nothing, up to this.
const LONGEST_COARSE: Duration = Duration::from_millis(80);
/// A packet that the window waits for is late after so many times of another link's usual round trip.
const LATE_AFTER: u32 = 4;

/// The sending half of a connection. `C` is what the caller needs to send a packet again; it gets it back when the packet
/// has arrived.
#[derive(Debug)]
pub struct Sender<C> {
    parameters: Parameters,
    links: Links,
    window: Window<C>,
    /// What the peer says it has performed, and how many failures it had told by then.
    performed: (Seq, u32),
    /// Packets that are to go again.
    again: VecDeque<Seq>,
    /// When the coarse timeout began, and how many have passed since the peer said something new.
    quiet: (Instant, u32),
    /// The coarse timeout has passed: the last packet goes again.
    last_again: bool,
    /// A packet was refused since the last acknowledgement, or before it: the caller has more than the links take.
    refused: [bool; 2],
    /// The caller has a packet that no link took.
    waits: bool,
    /// Memory for the packets of an acknowledgement.
    arrived: Vec<Seq>,
}

/// The packets from the oldest that may not have arrived to the next.
#[derive(Debug)]
struct Window<C> {
    first: Seq,
    next: Seq,
    /// By the low bits of their numbers.
    sent: Box<[Option<Sent<C>>]>,
    /// Packets that were put on a link more than once. Of packets that have arrived, too.
    repeated: Box<[bool]>,
}

/// A packet that has been sent.
#[derive(Debug)]
struct Sent<C> {
    content: C,
    bytes: u32,
    /// Where it was put last.
    put: Put,
    /// It is in `again`.
    waits: bool,
}

/// Where to send a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure {
    /// Its number; `None`: a question.
    pub seq: Option<Seq>,
    pub link: u8,
    pub count: u32,
    /// The peer is to answer at once.
    pub asks: bool,
}

/// What the state of a link is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkState {
    /// Whether it is used.
    pub is_up: bool,
    /// The measured rate, or the guess before it is measured; bytes per second.
    pub rate: f64,
    /// The mean round trip, if it is known.
    pub round_trip: Option<Duration>,
    /// Share of its packets that were lost lately.
    pub loss: f64,
    /// Bytes that were put on it.
    pub bytes: u64,
}

impl<C> Sender<C> {
    /// With links of these weights (1: about 1 Gbit/s). The first packet is `first`.
    pub fn new(parameters: Parameters, scheduler: Scheduler, weights: &[u32], first: Seq) -> Sender<C> {
        let slots = parameters.window.next_power_of_two() as usize;
        let sent = (0..slots).map(|_| None).collect();
        Sender {
            parameters,
            links: Links::new(parameters, scheduler, weights),
            window: Window { first, next: first, sent, repeated: vec![false; slots].into() },
            performed: (first, 0),
            again: VecDeque::new(),
            quiet: (Instant(0), 0),
            last_again: false,
            refused: [false; 2],
            waits: false,
            arrived: Vec::new(),
        }
    }

    /// Whether the window has room for a packet, and a link takes one. If not, the links are taken to be what the caller
    /// waits for.
    pub fn has_room(&mut self, now: Instant) -> bool {
        let room = !self.is_full() && self.links.take_more(now);
        self.note_room(room);
        room
    }

    /// The number of the next new packet.
    pub fn next_seq(&self) -> Seq {
        self.window.next
    }

    /// All packets before this one have been performed by the peer, and how many failures it had told by then.
    pub fn performed(&self) -> (Seq, u32) {
        self.performed
    }

    /// Whether the peer has performed all packets.
    pub fn is_idle(&self) -> bool {
        self.performed.0 == self.window.next
    }

    /// What the state of each link is.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkState> + '_ {
        self.links.all().iter().map(|link| LinkState {
            is_up: link.is_up(),
            rate: link.rate.bytes_per_second(),
            round_trip: link.rate.round_trip(),
            loss: link.loss().0,
            bytes: link.bytes,
        })
    }

    /// Whether a link is used.
    pub fn is_up(&self, link: u8) -> bool {
        self.links.all().get(usize::from(link)).is_some_and(|link| link.is_up())
    }

    /// A new packet of so many bytes. `None`: there is no room.
    pub fn send(&mut self, now: Instant, bytes: u32, content: C) -> Option<(Departure, &C)> {
        let link = if self.is_full() { None } else { self.links.choose(now, bytes, None) };
        self.note_room(link.is_some());
        let link = link?;
        let seq = self.window.next;
        if self.is_idle() {
            // The peer had nothing to answer before.
            self.quiet = (now, 0);
        }
        self.window.next = seq.next();
        let (put, asks) = self.links.put(now, link, Some(seq), bytes);
        let index = self.window.index(seq);
        self.window.repeated[index] = false;
        let sent = self.window.sent[index].insert(Sent { content, bytes, put, waits: false });
        Some((Departure { seq: Some(seq), link: link as u8, count: put.count, asks }, &sent.content))
    }

    /// The next packet that goes again, or question.
    pub fn poll_again(&mut self, now: Instant) -> Option<(Departure, Option<&C>)> {
        self.note_lost();
        if let Some(link) = self.links.question(now, !self.is_idle(), self.asks_idle_links()) {
            let (Put { count, .. }, asks) = self.links.put(now, link, None, 0);
            return Some((Departure { seq: None, link: link as u8, count, asks }, None));
        }
        if self.late_at().is_some_and(|at| at <= now) {
            self.note_late(now);
        }
        let seq = self.next_again()?;
        let index = self.window.index(seq);
        let sent = self.window.sent[index].as_mut()?;
        sent.waits = true;
        let Some(link) = self.links.choose(now, sent.bytes, Some(sent.put.link)) else {
            self.again.push_front(seq);
            // If a link takes packets, but not this one, something is heard before the others do.
            self.waits = !self.links.take_more(now);
            return None;
        };
        let (put, asks) = self.links.put(now, link, Some(seq), sent.bytes);
        (sent.put, sent.waits) = (put, false);
        self.window.repeated[index] = true;
        Some((Departure { seq: Some(seq), link: link as u8, count: put.count, asks }, Some(&sent.content)))
    }

    /// The peer has spoken: all packets before `received` have arrived, and what `ack` says. Gives the contents of those
    /// that are new to `done`. What cannot be true is ignored.
    pub fn acknowledge(&mut self, now: Instant, received: Seq, ack: Option<&Ack>, mut done: impl FnMut(Seq, C)) {
        let Window { first, next, .. } = self.window;
        if received.since(next) > 0 || first.since(received) > self.parameters.window as i32 {
            return;
        }
        let ack = ack.filter(|ack| ack.performed.since(next) <= 0);
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.extend((0..received.since(first).max(0)).map(|k| first.plus(k as u32)));
        let words = ack.iter().flat_map(|ack| ack.bitmap.iter()).enumerate();
        let bits = words.flat_map(|(k, word)| {
            (0..32).filter(move |b| word & 1 << b != 0).map(move |b| received.plus(1 + 32 * k as u32 + b))
        });
        arrived.extend(bits.filter(|seq| seq.before(next) && !seq.before(first) && !seq.before(received)));
        for seq in arrived.drain(..) {
            let index = self.window.index(seq);
            if let Some(sent) = self.window.sent[index].take() {
                if !self.window.repeated[index] {
                    self.links.arrived(sent.put);
                }
                self.quiet = (now, 0);
                done(seq, sent.content);
            }
        }
        self.arrived = arrived;
        if first.before(received) {
            self.window.first = received;
        }
        let Some(ack) = ack else { return self.links.land(&self.window) };
        if self.performed.0.before(ack.performed) && ack.performed.since(self.window.first) <= 0 {
            self.performed = (ack.performed, ack.failures);
            self.quiet = (now, 0);
        }
        let all = self.refused == [false; 2];
        self.refused = [false, self.refused[0]];
        for heard in &ack.heard {
            self.links.hear(now, heard, &self.window, all);
        }
        self.links.land(&self.window);
        self.links.judge_losses(now);
    }

    /// When `handle_timeout` and then `poll_again` and `send` are to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let coarse = (!self.is_idle()).then(|| self.coarse_at());
        let links = self.links.poll_timeout(!self.is_idle(), self.asks_idle_links());
        let room = if self.waits && !self.is_full() { self.links.take_more_at() } else { None };
        links.into_iter().chain(coarse).chain(self.late_at()).chain(room).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.waits = false;
        self.links.handle_timeout(now);
        if !self.is_idle() && self.coarse_at() <= now {
            self.quiet = (now, self.quiet.1.saturating_add(1));
            self.last_again = true;
            // One of the links may work, and shows the losses on all of them; or only an acknowledgement was lost.
            self.links.ask_all();
        }
    }

    /// The interface of a link is up, or down.
    pub fn set_link(&mut self, now: Instant, link: usize, up: bool) {
        self.links.set_link(now, link, up);
    }

    fn is_full(&self) -> bool {
        self.window.next.since(self.window.first) >= self.parameters.window as i32
    }

    /// The caller has a packet, for which there is room or not.
    fn note_room(&mut self, room: bool) {
        self.waits = !room;
        self.refused[0] |= !room;
    }

    /// Whether links that carry nothing are to be asked: the caller has more than the links take.
    fn asks_idle_links(&self) -> bool {
        self.links.measures() && self.refused != [false; 2] && !self.is_idle()
    }

    /// Enters what the links have lost into `again`, unless it has been put elsewhere since.
    fn note_lost(&mut self) {
        while let Some(Lost { seq, put }) = self.links.poll_lost() {
            let index = self.window.index(seq);
            let sent = self.window.sent[index].as_mut().filter(|sent| sent.put == put && !sent.waits);
            if let Some(sent) = sent {
                sent.waits = true;
                self.again.push_back(seq);
            }
        }
    }

    /// The packet that goes again next.
    fn next_again(&mut self) -> Option<Seq> {
        while let Some(seq) = self.again.pop_front() {
            if self.window.get(seq).is_some_and(|sent| sent.waits) {
                return Some(seq);
            }
        }
        if !std::mem::take(&mut self.last_again) {
            return None;
        }
        let Window { first, next, .. } = self.window;
        (0..next.since(first)).rev().map(|k| first.plus(k as u32)).find(|seq| self.window.get(*seq).is_some())
    }

    /// When the oldest packet is late: the window is full, and others that left then have arrived long ago.
    fn late_at(&self) -> Option<Instant> {
        if !self.is_full() || !self.links.measures() {
            return None;
        }
        let sent = self.window.get(self.window.first).filter(|sent| !sent.waits)?;
        Some(sent.put.at + self.late_after(sent.put.link)?)
    }

    /// After how long a packet on a link is late.
    fn late_after(&self, link: usize) -> Option<Duration> {
        let usual = self.links.round_trip_of_others(link)?;
        Some(LATE_AFTER * usual + self.parameters.ack_delay)
    }

    /// Enters the oldest packet into `again`, and what is late on the same link: the window waits for all of them.
    fn note_late(&mut self, now: Instant) {
        let first = self.window.first;
        let Some(Put { link, .. }) = self.window.get(first).map(|sent| sent.put) else { return };
        let Some(after) = self.late_after(link) else { return };
        let index = self.window.index(first);
        self.window.sent[index].iter_mut().for_each(|sent| sent.waits = true);
        self.again.push_back(first);
        for (seq, put) in self.links.put_by(link, now, after) {
            let index = self.window.index(seq);
            let is_it = |sent: &&mut Sent<C>| sent.put == put && !sent.waits;
            if let Some(sent) = self.window.sent[index].as_mut().filter(is_it) {
                sent.waits = true;
                self.again.push_back(seq);
            }
        }
    }

    fn coarse_at(&self) -> Instant {
        let (since, times) = self.quiet;
        let coarse = self.parameters.coarse_timeout;
        since + (coarse * (1 << times.min(10))).min(coarse.max(LONGEST_COARSE))
    }
}

impl<C> Window<C> {
    fn index(&self, seq: Seq) -> usize {
        (seq.0 & (self.sent.len() as u32 - 1)) as usize
    }

    /// A packet that may not have arrived.
    fn get(&self, seq: Seq) -> Option<&Sent<C>> {
        let within = !seq.before(self.first) && seq.before(self.next);
        self.sent[self.index(seq)].as_ref().filter(|_| within)
    }
}

impl<C> Packets for Window<C> {
    fn has_arrived(&self, seq: Seq) -> bool {
        self.get(seq).is_none()
    }

    fn was_put_once(&self, seq: Seq) -> bool {
        !self.repeated[self.index(seq)]
    }
}
