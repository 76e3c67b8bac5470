//! Which packets have arrived, and when the peer is told.

use super::parameters::Parameters;
use crate::Instant;
use weir_wire::edge::{Ack, Header, Heard, MAX_LINKS, Seq, ack_len};

/// What has arrived from the peer. Which of it has been performed, the caller says.
#[derive(Debug)]
pub struct Receiver {
    parameters: Parameters,
    /// All packets before it have arrived.
    received: Seq,
    /// After the newest that has arrived.
    end: Seq,
    /// Of the packets from `received` on, by the low bits of their number: whether they have arrived.
    arrived: Box<[bool]>,
    links: [Option<Newest>; MAX_LINKS],
    /// Packets since the last acknowledgement.
    unacknowledged: u32,
    /// The first loss that the peer has not been told of.
    loss: Option<Loss>,
    /// When the peer must have an acknowledgement.
    due: Option<Instant>,
    /// What the peer has been told to be performed.
    told: Seq,
}

/// A packet that is missing on its link.
#[derive(Clone, Copy, Debug)]
struct Loss {
    /// Packets that have come since.
    packets: u32,
    /// When the peer must know.
    due: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    count: u32,
    at: Instant,
    /// As [`Heard`] has it.
    delay: u32,
}

/// What a header says of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// It is to be performed.
    New,
    /// It has arrived before.
    Duplicate,
    /// The sender could not have sent it yet: it is not taken.
    Beyond,
}

impl Receiver {
    /// The peer's first packet is `first`.
    pub fn new(parameters: Parameters, first: Seq) -> Receiver {
        Receiver {
            parameters,
            received: first,
            end: first,
            arrived: vec![false; parameters.window.next_power_of_two() as usize].into(),
            links: [None; MAX_LINKS],
            unacknowledged: 0,
            loss: None,
            due: None,
            told: first,
        }
    }

    /// All packets before this one have arrived.
    pub fn received(&self) -> Seq {
        self.received
    }

    /// A header has come. All packets before `performed` have been performed.
    pub fn receive(&mut self, now: Instant, header: &Header, performed: Seq) -> Arrival {
        let arrival = header.packet.map_or(Arrival::Duplicate, |(seq, _)| self.note_packet(seq, performed));
        if arrival == Arrival::Beyond {
            return arrival;
        }
        let latest = now + self.parameters.ack_delay;
        if self.note_link(now, header) && self.loss.is_none() {
            self.loss = Some(Loss { packets: 0, due: latest });
        }
        if let Some(loss) = &mut self.loss {
            loss.packets += 1;
        }
        if arrival == Arrival::New {
            self.unacknowledged += 1;
            let at = if self.unacknowledged >= self.parameters.ack_every { now } else { latest };
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
        if header.asks || header.packet.is_some() && arrival == Arrival::Duplicate {
            // The sender misses an acknowledgement, and is told all.
            self.loss = Some(Loss { packets: 0, due: now });
            self.due = Some(now);
        }
        arrival
    }

    /// The peer is to know that all packets before `performed` have been performed.
    pub fn note_performed(&mut self, now: Instant, performed: Seq) {
        if self.due.is_none() && performed != self.told {
            self.due = Some(now + self.parameters.ack_delay);
        }
    }

    /// When an acknowledgement is due; `None`: the peer knows all.
    pub fn due(&self) -> Option<Instant> {
        let told_at = |loss: Loss| if loss.packets >= self.parameters.nack_every { Instant(0) } else { loss.due };
        self.due.into_iter().chain(self.loss.map(told_at)).min()
    }

    /// Whether so many packets come that another acknowledgement will follow soon.
    pub fn is_busy(&self) -> bool {
        self.unacknowledged >= self.parameters.ack_every
    }

    /// Whether an acknowledgement should go with a packet that has room for it, because it will be due soon.
    pub fn is_almost_due(&self, now: Instant) -> bool {
        let soon = now + self.parameters.ack_delay / 2;
        self.unacknowledged >= self.parameters.ack_every.div_ceil(2)
            || self.due.is_some_and(|due| due <= soon)
            || self.due().is_some_and(|due| due <= now)
    }

    /// Bytes of an acknowledgement on the wire, at most.
    pub fn ack_len(&self) -> usize {
        let links = self.links.iter().flatten().count();
        ack_len(links, self.end.since(self.received).max(0) as usize)
    }

    /// Writes an acknowledgement, which the caller sends in a header with `received`. It says nothing of missing packets
    /// before the peer is to be told of losses.
    pub fn acknowledge(&mut self, now: Instant, performed: Seq, failures: u32, ack: &mut Ack) {
        (ack.performed, ack.failures, self.told) = (performed, failures, performed);
        ack.heard.clear();
        ack.bitmap.clear();
        let waits = |loss: Loss| loss.packets < self.parameters.nack_every && now < loss.due;
        if !self.loss.is_some_and(waits) {
            self.describe(now, ack);
            self.loss = None;
        }
        (self.unacknowledged, self.due) = (0, None);
    }

    fn note_packet(&mut self, seq: Seq, performed: Seq) -> Arrival {
        if seq.before(self.received) {
            return Arrival::Duplicate;
        }
        let window = self.parameters.window as i32;
        if seq.since(performed) >= window || seq.since(self.received) >= window {
            return Arrival::Beyond;
        }
        let arrived = self.arrived(seq);
        if std::mem::replace(arrived, true) {
            return Arrival::Duplicate;
        }
        if !seq.before(self.end) {
            self.end = seq.next();
        }
        while self.received != self.end && std::mem::take(self.arrived(self.received)) {
            self.received = self.received.next();
        }
        Arrival::New
    }

    /// Returns whether packets were lost on the link before this one.
    fn note_link(&mut self, now: Instant, header: &Header) -> bool {
        if header.packet.is_none() && !header.asks {
            return false; // An acknowledgement alone has no count.
        }
        let newest = &mut self.links[usize::from(header.link)];
        let before = newest.map(|newest| newest.count);
        let ahead = before.map_or(1, |before| header.count.wrapping_sub(before) as i32);
        if ahead > 0 {
            let delay = micros(now).wrapping_sub(header.sent);
            *newest = Some(Newest { count: header.count, at: now, delay });
        }
        if before.is_none() { header.count > 0 } else { ahead > 1 }
    }

    fn describe(&mut self, now: Instant, ack: &mut Ack) {
        let links = self.links.iter().enumerate();
        ack.heard.extend(links.filter_map(|(link, newest)| {
            let Newest { count, at, delay } = (*newest)?;
            Some(Heard { link: link as u8, newest: count, held: (now - at).as_nanos() as u64, delay })
        }));
        // The packet at `received` itself is missing.
        let beyond = self.end.since(self.received.next()).max(0) as u32;
        for k in 0..beyond.div_ceil(32) {
            let mut word = 0;
            for b in 0..32.min(beyond - 32 * k) {
                word |= u32::from(*self.arrived(self.received.plus(1 + 32 * k + b))) << b;
            }
            ack.bitmap.push(word);
        }
    }

    fn arrived(&mut self, seq: Seq) -> &mut bool {
        let mask = self.arrived.len() as u32 - 1;
        &mut self.arrived[(seq.0 & mask) as usize]
    }
}

/// A time as headers have it.
pub(super) fn micros(now: Instant) -> u32 {
    (now.0 / 1000) as u32
}
