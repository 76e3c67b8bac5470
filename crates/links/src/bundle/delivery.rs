//! Packets for QPs, as arrivals in an inbox.

use super::pool::{Kept, Pool};
use super::session::Came;
use std::collections::VecDeque;
use weir_link::{Arrival, Inbox};
use weir_wire::burst;
use weir_wire::edge::Ack;

/// What is needed to receive.
#[derive(Default)]
pub(super) struct Receiving {
    pub ack: Ack,
    /// Memory for what has come.
    pub came: Vec<Arrival>,
    /// Memory for packets that may be performed.
    pub ready: Vec<Came>,
    /// Packets for which the inbox had no room, oldest first.
    pub rest: VecDeque<(Arrival, Kept)>,
}

/// Where arrivals for QPs are put.
pub(super) struct Delivery<'a> {
    pub inbox: &'a mut Inbox,
    /// The next free byte after the slots.
    spare: usize,
}

impl Delivery<'_> {
    pub fn new(inbox: &mut Inbox) -> Delivery<'_> {
        let spare = inbox.spare().start;
        Delivery { inbox, spare }
    }

    /// A datagram in the inbox: part of `arrival`, `len` bytes from `start` on, of which the first `skip` are not for QPs.
    pub fn here(&mut self, arrival: Arrival, start: usize, len: usize, skip: usize) {
        if let Some(last) = self.inbox.arrivals.last_mut() {
            let follows = last.start + last.len == start && last.segment == arrival.segment;
            let alike = last.skip == skip
                && (last.from, last.to, last.over_links) == (arrival.from, arrival.to, arrival.over_links);
            if follows && alike && last.len.is_multiple_of(last.segment.max(1)) {
                last.len += len;
                return;
            }
        }
        self.inbox.arrivals.push(Arrival { start, len, skip, ..arrival });
    }

    /// The arrivals from `first` on are all that one buffer has brought. An ACK that ends it comes first. QPs see to that
    /// if the ACK is part of an arrival, but here the header before it may be shorter than that of the others.
    pub fn end_buffer(&mut self, first: usize) {
        let inbox = &mut *self.inbox;
        let came = inbox.arrivals.get(first..).unwrap_or_default();
        let is_alone = came.len() > 1 && came.last().is_some_and(|last| last.len <= last.segment);
        if is_alone && burst::has_late_ack(came.iter().flat_map(|arrival| inbox.datagrams(arrival))) {
            inbox.arrivals[first..].rotate_right(1);
        }
    }

    /// A datagram that came earlier; false: there is no room for it.
    pub fn earlier(&mut self, arrival: Arrival, bytes: &[u8]) -> bool {
        let (start, len) = (self.spare, bytes.len());
        if start + len > self.inbox.spare().end {
            return false;
        }
        self.inbox.bytes[start..start + len].copy_from_slice(bytes);
        self.spare += len;
        self.inbox.arrivals.push(Arrival { start, len, segment: len, skip: 0, ..arrival });
        true
    }
}

impl Receiving {
    /// Whether packets wait for an inbox.
    pub fn has_more(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Delivers packets for which an inbox had no room.
    pub fn deliver_rest(&mut self, inbox: &mut Inbox, pool: &mut Pool) {
        inbox.arrivals.clear();
        let mut delivery = Delivery::new(inbox);
        while let Some((arrival, kept)) = self.rest.pop_front() {
            if !delivery.earlier(arrival, kept.bytes()) {
                self.rest.push_front((arrival, kept));
                break;
            }
            pool.give_back(kept);
        }
    }
}
