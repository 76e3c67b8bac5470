//! Responder resources: accepted READs and atomics, kept for their responses and for duplicates
//! (IBTA 9.7.5.1, 9.7.7.1).

use super::sequence::PsnPosition;
use crate::config::Config;
use crate::{Outgoing, Payload, Remote};
use weir_wire::{Aeth, AtomicAckEth, Destination, Operation, Placement, Psn, Reth, Syndrome};

/// The response of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// `length` bytes of memory from `va`, within the protection domain that the request named, if it named one.
    Read { va: u64, rkey: u32, length: u32, pd: Option<u32> },
    /// The value before the operation; a duplicate does not repeat the operation.
    Atomic { original: u64 },
    /// An ATOMIC WRITE or a FLUSH was executed; a duplicate does not repeat it.
    Executed,
}

/// An accepted READ or atomic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    /// Position of the request, and of the first response packet.
    pub first: PsnPosition,
    /// Response packets: the PSNs that the request uses.
    pub packets: u32,
    /// The MSN in the AETH of the response.
    pub msn: u32,
    pub response: Response,
    /// The response was sent completely at least once.
    response_sent: bool,
    cursor: Option<Cursor>,
    /// What a duplicate asks for, until its replay begins.
    again: Option<Cursor>,
    /// The request arrived while an earlier READ waited for its page.
    behind: bool,
    /// It has a cursor that waits behind a page, or for it.
    parked: bool,
}

/// The rest of a response that is being sent.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    psn: Psn,
    va: u64,
    left: u32,
    begun: bool,
}

/// The last `max_dest_rd_atomic` resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: Vec<Resource>,
    capacity: usize,
    /// Index of the next resource; once the ring is full, that of the oldest.
    next: usize,
    /// Resources with a cursor that is not parked.
    pending: usize,
    /// Index of the resource that is being sent: the oldest with a cursor.
    current: Option<usize>,
    /// Resources that are parked; `pending` has only a replay before these then.
    parked: usize,
    /// Replays of duplicate READs that are under way or have not begun.
    replays: usize,
    /// Index of the resource that is being replayed.
    replayed: Option<usize>,
}

/// The rest of a READ's response.
pub(super) struct Rest {
    /// PSN of the next response packet.
    pub psn: Psn,
    /// The MSN in the AETH of the response.
    pub msn: u32,
    /// The bytes that are not sent.
    pub range: Remote,
    /// The READ arrived while an earlier READ waited for its page.
    pub behind: bool,
}

impl Resource {
    /// A resource with an unsent response; `packets`: the PSNs that the response uses.
    pub fn new(first: PsnPosition, packets: u32, msn: u32, response: Response) -> Self {
        let (va, left) = match response {
            Response::Read { va, length, .. } => (va, length),
            Response::Atomic { .. } | Response::Executed => (0, 0),
        };
        let cursor = Some(Cursor { psn: first.psn(), va, left, begun: false });
        let (again, behind, parked) = (None, false, false);
        Resource { first, packets, msn, response, response_sent: false, cursor, again, behind, parked }
    }

    /// What is to be sent, now or as a replay.
    fn rest(&self) -> Option<Cursor> {
        self.cursor.or(self.again)
    }

    /// The index of the packet at `position`, if it belongs to this resource.
    fn packet(&self, position: PsnPosition) -> Option<u64> {
        position.since(self.first).filter(|at| *at < u64::from(self.packets))
    }
}

impl Resources {
    /// Discards all resources and reserves memory for `max_dest_rd_atomic`.
    pub fn reset(&mut self, max_dest_rd_atomic: u8) {
        self.capacity = usize::from(max_dest_rd_atomic.max(1));
        self.ring.clear();
        self.ring.reserve_exact(self.capacity);
        (self.next, self.pending, self.current, self.parked) = (0, 0, None, 0);
        (self.replays, self.replayed) = (0, None);
    }

    /// Changes the capacity. The newest resources stay: the peer may retransmit their requests (IBTA 9.7.5.1).
    pub fn resize(&mut self, max_dest_rd_atomic: u8) {
        let capacity = usize::from(max_dest_rd_atomic.max(1));
        // Rotate the oldest to the front.
        let oldest = if self.ring.len() < self.capacity { 0 } else { self.next };
        self.ring.rotate_left(oldest);
        self.ring.drain(..self.ring.len().saturating_sub(capacity));
        // Replays become ordinary responses. While a response waits for a page, all wait.
        for resource in &mut self.ring {
            resource.cursor = resource.rest();
            resource.again = None;
            resource.parked = self.parked > 0 && resource.cursor.is_some();
        }
        (self.replays, self.replayed) = (0, None);
        let cursors = self.ring.iter().filter(|resource| resource.cursor.is_some()).count();
        (self.pending, self.parked) = if self.parked > 0 { (0, cursors) } else { (cursors, 0) };
        self.ring.reserve_exact(capacity - self.ring.len());
        self.capacity = capacity;
        self.next = self.ring.len() % capacity;
        self.current = None;
    }

    /// Whether the response to a READ with this rkey is still being sent.
    pub fn reads_by(&self, key: u32) -> bool {
        self.pending + self.parked + self.replays > 0
            && self.ring.iter().any(|resource| {
                resource.rest().is_some() && matches!(resource.response, Response::Read { rkey, .. } if rkey == key)
            })
    }

    /// Whether the data of a READ has not been read out.
    pub fn reads_memory(&self) -> bool {
        self.pending + self.parked + self.replays > 0
            && self.ring.iter().any(|resource| {
                let rest = resource.rest().map_or(0, |cursor| cursor.left);
                rest > 0 && matches!(resource.response, Response::Read { .. })
            })
    }

    /// Whether a response, or the rest of one, can be sent now.
    pub fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Whether a new resource would displace one with an unsent response: the peer has more than
    /// `max_dest_rd_atomic` READs and atomics outstanding (IBTA 9.7.4.1.4).
    pub fn is_exhausted(&self) -> bool {
        self.ring.len() == self.capacity && !self.ring[self.next].response_sent
    }

    /// Adds a resource, in place of the oldest if all are in use.
    pub fn add(&mut self, resource: Resource) {
        // While a response waits for a page, later ones wait behind it.
        let behind = self.parked > 0;
        let resource = Resource { behind, parked: behind, ..resource };
        *self.count(behind) += 1;
        if self.ring.len() < self.capacity {
            self.ring.push(resource);
        } else {
            // A duplicate's response may still be unsent; the new request shows that the requester no longer needs it.
            let old = self.ring[self.next];
            *self.count(old.parked) -= usize::from(old.cursor.is_some());
            self.replays -= usize::from(old.again.is_some());
            if self.replayed == Some(self.next) {
                self.end_replay();
            }
            if self.current == Some(self.next) {
                self.current = None;
            }
            self.ring[self.next] = resource;
        }
        self.next = (self.next + 1) % self.capacity;
    }

    /// Repeats the response to an atomic with its original value (IBTA 9.4.5). False: the resource is gone.
    pub fn repeat_atomic(&mut self, position: PsnPosition) -> bool {
        let found = self
            .ring
            .iter()
            .position(|r| matches!(r.response, Response::Atomic { .. } | Response::Executed) && r.first == position);
        let Some(index) = found else { return false };
        self.restart(index, Cursor { psn: position.psn(), va: 0, left: 0, begun: false });
        true
    }

    /// Repeats the response to a READ or to its tail: a retried READ asks for a part of the first one (IBTA 9.4.4). It
    /// is pending at once, or, if `later`, when [`Resources::begin_replay`] begins it. False: the resource is gone, or the
    /// request is a different one.
    pub fn repeat_read(&mut self, position: PsnPosition, reth: &Reth, mtu: usize, later: bool) -> bool {
        let (va, rkey, length) = (reth.va.get(), reth.rkey.get(), reth.dma_len.get());
        let mut ring = self.ring.iter().enumerate();
        let found = ring.find_map(|(index, resource)| Some((index, resource.packet(position)?)));
        let Some((index, packet)) = found else { return false };
        let Response::Read { va: first_va, rkey: first_rkey, length: total, .. } = self.ring[index].response else {
            return false;
        };
        let skipped = packet * mtu as u64;
        let same = rkey == first_rkey
            && va == first_va.wrapping_add(skipped)
            && skipped + u64::from(length) <= u64::from(total);
        let cursor = Cursor { psn: position.psn(), va, left: length, begun: false };
        match (same, later) {
            (true, false) => self.restart(index, cursor),
            (true, true) => {
                let before = self.ring[index].again.replace(cursor);
                self.replays += usize::from(before.is_none());
            }
            (false, _) => {}
        }
        same
    }

    /// Whether the first response to a READ has not left although a duplicate has asked for it.
    pub fn waits_again(&self, position: PsnPosition) -> bool {
        let mut ring = self.ring.iter();
        ring.any(|each| each.again.is_some() && each.cursor.is_some() && each.packet(position).is_some())
    }

    /// Whether a duplicate READ is being replayed, or will be.
    #[inline]
    pub fn in_replay(&self) -> bool {
        self.replays > 0
    }

    /// Begins the replay of the oldest duplicate READ, if there is one and no response before it is to be sent. Responses
    /// leave in PSN order, the first response to a READ before its replay, and replays one after the other.
    pub fn begin_replay(&mut self) -> bool {
        if self.replays == 0 || self.replayed.is_some() || self.current.is_some() {
            return false;
        }
        let Some(index) = self.oldest(|resource| resource.again.is_some() || resource.cursor.is_some()) else {
            return false;
        };
        let resource = &mut self.ring[index];
        if resource.cursor.is_some() {
            return false;
        }
        resource.cursor = resource.again.take();
        self.replayed = Some(index);
        self.pending += 1;
        true
    }

    /// The number of resources with a cursor that is parked, or is not.
    fn count(&mut self, parked: bool) -> &mut usize {
        if parked { &mut self.parked } else { &mut self.pending }
    }

    fn end_replay(&mut self) {
        self.replayed = None;
        self.replays -= 1;
    }

    /// The next response packet, and its PSN: that of the request and the following ones (IBTA C9-96, o9-58).
    pub fn outgoing(&mut self, config: &Config) -> Option<(Outgoing<'static>, Psn)> {
        if self.pending == 0 {
            return None;
        }
        let index = self.current.unwrap_or_else(|| self.oldest_pending());
        self.current = Some(index);
        let resource = &self.ring[index];
        let cursor = resource.cursor.as_ref()?;
        let aeth = Aeth::new(Syndrome::ACK_UNLIMITED.to_byte(), resource.msn);
        let outgoing = match resource.response {
            Response::Atomic { original } => {
                let mut headers = config.headers(Operation::AtomicAcknowledge, cursor.psn, 0);
                headers.put(aeth);
                headers.put(AtomicAckEth { original: original.into() });
                Outgoing { headers, payload: Payload::None, placement: None, to: None }
            }
            Response::Executed => {
                let mut headers = config.headers(Operation::ReadResponseOnly, cursor.psn, 0);
                headers.put(aeth);
                Outgoing { headers, payload: Payload::None, placement: None, to: None }
            }
            Response::Read { va, rkey, length, pd } => {
                let len = (cursor.left as usize).min(config.mtu);
                let last = cursor.left as usize <= config.mtu;
                let operation = match (cursor.begun, last) {
                    (false, false) => Operation::ReadResponseFirst,
                    (false, true) => Operation::ReadResponseOnly,
                    (true, false) => Operation::ReadResponseMiddle,
                    (true, true) => Operation::ReadResponseLast,
                };
                let mut headers = config.headers(operation, cursor.psn, len);
                // MIDDLE has no AETH; `put` ignores it.
                headers.put(aeth);
                let range = Remote { pd, rkey, va: cursor.va, len: len as u64 };
                let payload = if len == 0 { Payload::None } else { Payload::Remote(range) };
                // The MSN counts the READ itself.
                let number = resource.msn.wrapping_sub(1) & 0xff_ffff;
                let offset = cursor.va.wrapping_sub(va) as u32;
                let placement = Placement { destination: Destination::Message { number }, offset, length };
                Outgoing { headers, payload, placement: config.frames.then_some(placement), to: None }
            }
        };
        Some((outgoing, cursor.psn))
    }

    /// The packet of `outgoing` was sent. After its last packet a resource is free for a new request (IBTA 9.7.5.1).
    pub fn advance(&mut self, config: &Config) {
        let Some(index) = self.current else { return };
        let resource = &mut self.ring[index];
        let Some(cursor) = &mut resource.cursor else { return };
        let len = cursor.left.min(config.mtu as u32);
        *cursor = Cursor {
            psn: cursor.psn.next(),
            va: cursor.va.wrapping_add(u64::from(len)),
            left: cursor.left - len,
            begun: true,
        };
        if cursor.left == 0 {
            resource.cursor = None;
            resource.response_sent = true;
            self.pending -= 1;
            self.current = None;
            if self.replayed == Some(index) {
                self.end_replay();
            }
        }
    }

    /// The packet of `outgoing` needs a missing page: nothing is pending until `unpark`.
    pub fn park(&mut self) -> Option<Rest> {
        let current = self.current.take()?;
        self.parked += std::mem::take(&mut self.pending);
        for resource in &mut self.ring {
            resource.parked = resource.cursor.is_some();
        }
        let resource = &self.ring[current];
        let (Some(cursor), Response::Read { rkey, pd, .. }) = (&resource.cursor, resource.response) else {
            return None;
        };
        let range = Remote { pd, rkey, va: cursor.va, len: u64::from(cursor.left) };
        Some(Rest { psn: cursor.psn, msn: resource.msn, range, behind: resource.behind })
    }

    /// Makes the responses that wait for a page pending again.
    pub fn unpark(&mut self) {
        self.pending += std::mem::take(&mut self.parked);
        self.ring.iter_mut().for_each(|resource| resource.parked = false);
    }

    fn restart(&mut self, index: usize, cursor: Cursor) {
        self.pending += usize::from(self.ring[index].cursor.is_none());
        self.ring[index].cursor = Some(cursor);
        // Responses leave in PSN order, so the response to an older duplicate goes first.
        self.current = None;
    }

    fn oldest_pending(&self) -> usize {
        self.oldest(|resource| resource.cursor.is_some()).unwrap_or(0)
    }

    /// The index of the oldest resource for which `holds` is true.
    fn oldest(&self, holds: impl Fn(&Resource) -> bool) -> Option<usize> {
        let len = self.ring.len();
        let oldest = if len < self.capacity { 0 } else { self.next };
        (0..len).map(|i| (oldest + i) % len).find(|&i| holds(&self.ring[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(count: u32, capacity: u8) -> Resources {
        let mut resources = Resources::default();
        resources.reset(capacity);
        for number in 0..count {
            let first = PsnPosition::first(Psn::new(number));
            resources.add(Resource::new(first, 1, number, Response::Atomic { original: number.into() }));
        }
        resources
    }

    fn read(number: u32) -> Resource {
        let response = Response::Read { va: u64::from(number), rkey: 1, length: 100, pd: None };
        Resource::new(PsnPosition::first(Psn::new(number)), 1, number, response)
    }

    fn known(resources: &mut Resources, numbers: std::ops::Range<u32>) -> Vec<u32> {
        numbers.filter(|number| resources.repeat_atomic(PsnPosition::first(Psn::new(*number)))).collect()
    }

    #[test]
    fn the_newest_stay_when_the_capacity_changes() {
        // Full, wrapped and not full rings.
        for (count, from, to, kept) in
            [(4, 4, 2, 2..4), (6, 4, 2, 4..6), (6, 4, 8, 2..6), (2, 4, 3, 0..2), (6, 4, 0, 5..6)]
        {
            let mut resources = ring(count, from);
            resources.resize(to);
            assert_eq!(resources.pending, kept.len(), "{count} of {from}, then {to}");
            assert_eq!(known(&mut resources, 0..count), kept.clone().collect::<Vec<_>>());
            // The next resource displaces the oldest.
            resources.add(Resource::new(PsnPosition::first(Psn::new(9)), 1, 9, Response::Executed));
            let full = kept.len() == usize::from(to.max(1));
            let rest: Vec<u32> = kept.skip(usize::from(full)).chain([9]).collect();
            assert_eq!(known(&mut resources, 0..10), rest);
        }
    }

    #[test]
    fn a_replay_leaves_before_later_responses_and_after_the_first_response_to_its_read() {
        let again = |resources: &mut Resources, number: u32| {
            let reth = Reth { va: u64::from(number).into(), rkey: 1.into(), dma_len: 100.into() };
            assert!(resources.repeat_read(PsnPosition::first(Psn::new(number)), &reth, 4096, true));
        };
        let mut resources = Resources::default();
        resources.reset(4);
        (0..3).for_each(|number| resources.add(read(number)));
        // READ 0 has its response. READs 1 and 2 wait for a page.
        resources.ring[0].cursor = None;
        resources.pending = 2;
        resources.current = Some(1);
        let _ = resources.park();
        assert_eq!((resources.pending, resources.parked), (0, 2));
        again(&mut resources, 1);
        assert!(!resources.begin_replay(), "the first response to READ 1 has not left");
        again(&mut resources, 0);
        assert!(resources.begin_replay(), "READ 0 is before the READs that wait");
        assert_eq!((resources.replayed, resources.pending, resources.parked), (Some(0), 1, 2));
        // Fewer resources while it is replayed: READ 0 goes.
        resources.resize(2);
        assert_eq!((resources.pending, resources.parked, resources.replays), (0, 2, 0));
    }

    #[test]
    fn a_replay_that_waits_for_a_page_is_displaced_by_a_new_read() {
        let mut resources = Resources::default();
        resources.reset(2);
        (0..2).for_each(|number| resources.add(read(number)));
        // Both READs have their responses. READ 0 comes again, and its page has gone.
        for resource in &mut resources.ring {
            (resource.cursor, resource.response_sent) = (None, true);
        }
        resources.pending = 0;
        let reth = Reth { va: 0.into(), rkey: 1.into(), dma_len: 100.into() };
        assert!(resources.repeat_read(PsnPosition::first(Psn::new(0)), &reth, 4096, true));
        assert!(resources.begin_replay());
        resources.current = Some(0);
        let _ = resources.park();
        resources.add(read(2));
        assert_eq!((resources.pending, resources.parked, resources.replays), (0, 1, 0));
        resources.unpark();
        assert_eq!((resources.pending, resources.parked), (1, 0));
    }

    #[test]
    fn parked_resources_are_counted_across_a_resize() {
        let mut resources = ring(4, 4);
        resources.current = Some(0);
        let _ = resources.park();
        resources.resize(2);
        assert_eq!((resources.pending, resources.parked), (0, 2));
        resources.unpark();
        assert_eq!(resources.pending, 2);
    }
}
