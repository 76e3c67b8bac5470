//! Future events, ordered by time; events of the same time in the order in which they were added.
//!
//! The next few events are in a short ring, in their order: while little else happens, a new event is later than those
//! in the ring and earlier than all others, and costs next to nothing. The others are in a radix heap.

mod event;
mod radix;

pub(crate) use event::Event;
use event::Packed;
use radix::Radix;
use weir_transport::Instant;

/// Only events before this many nanoseconds are in the ring: those of packets, and not the deadlines of QPs.
const SOON: u64 = 1 << 14;
/// Events in the ring, a power of two: more than two hosts and the links between them have at a time.
const NEXT: usize = 8;

/// All future events. No event is earlier than the last one taken.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Time of the last event taken.
    last: Instant,
    /// A ring of the events that are next. None of the others comes before them.
    next: [(Instant, Packed); NEXT],
    /// The index of the first of them, wrapping.
    first: usize,
    /// Their number.
    count: usize,
    others: Radix,
    /// None of the others is earlier.
    bound: Instant,
}

impl Default for Queue {
    fn default() -> Self {
        let (last, bound) = (Instant(0), Instant(u64::MAX));
        Queue { last, next: [(last, Packed(0, 0)); NEXT], first: 0, count: 0, others: Radix::default(), bound }
    }
}

impl Queue {
    /// Adds an event.
    ///
    /// # Panics
    /// If its time is before that of the last event taken.
    #[inline]
    pub fn put(&mut self, at: Instant, event: Event) {
        let event = event.pack();
        assert!(at >= self.last, "an event in the past");
        // An event of the same time as another comes after it.
        if at < self.bound && at.0 - self.last.0 < SOON && self.count < NEXT {
            self.insert(at, event);
        } else {
            self.put_behind(at, event);
        }
    }

    /// Time of the earliest event.
    pub fn next_time(&self) -> Option<Instant> {
        if self.count > 0 { Some(self.next[self.first % NEXT].0) } else { self.others.next_time() }
    }

    /// Removes the earliest event.
    #[inline]
    pub fn take(&mut self) -> Option<(Instant, Event)> {
        if self.count == 0 && !self.refill() {
            return None;
        }
        let (at, event) = self.next[self.first % NEXT];
        self.first = self.first.wrapping_add(1);
        self.count -= 1;
        self.last = at;
        Some((at, event.unpack()))
    }

    /// Inserts an event into the ring, which has room, behind all that are not later.
    #[inline]
    fn insert(&mut self, at: Instant, event: Packed) {
        let mut index = self.first.wrapping_add(self.count);
        self.count += 1;
        while index != self.first && self.next[index.wrapping_sub(1) % NEXT].0 > at {
            self.next[index % NEXT] = self.next[index.wrapping_sub(1) % NEXT];
            index = index.wrapping_sub(1);
        }
        self.next[index % NEXT] = (at, event);
    }

    /// Adds an event that is late or not before all others, or for which the ring has no room.
    #[inline(never)]
    fn put_behind(&mut self, at: Instant, event: Packed) {
        if self.count > 0 {
            let (latest, displaced) = self.next[self.first.wrapping_add(self.count - 1) % NEXT];
            if at < latest {
                // The ring is full. Its last event comes before all others.
                self.others.put_first(latest, displaced);
                self.bound = latest;
                self.count -= 1;
                return self.insert(at, event);
            }
        }
        self.others.put(at, event);
        self.bound = self.bound.min(at);
    }

    /// Moves the earliest of the others into the ring, which is empty. False if there is none.
    #[inline(never)]
    fn refill(&mut self) -> bool {
        let mut moved = self.others.take();
        // Those that follow soon too: new events come behind the first of the others, and would all have to go there.
        while let Some(next) = moved {
            self.next[self.first.wrapping_add(self.count) % NEXT] = next;
            self.count += 1;
            moved = if self.count < NEXT { self.others.take_ahead() } else { None };
        }
        self.bound = self.others.bound();
        self.count > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    use weir_transport::Chance;

    /// Compares the queue with a heap of times and sequence numbers, at distances from none to years.
    #[test]
    fn events_leave_in_the_order_of_time_and_then_of_addition() {
        for seed in 0..20 {
            let mut chance = Chance::seeded(seed);
            let (mut queue, mut heap, mut now) = (Queue::default(), BinaryHeap::new(), 0);
            for number in 0..20_000 {
                if chance.share() < 0.52 {
                    let at = now + (chance.bits() >> (16 + chance.bits() % 48) & !(chance.bits() & 0xf));
                    queue.put(Instant(at), Event::Timer(number));
                    heap.push(Reverse((at, number)));
                } else {
                    assert_eq!(queue.next_time(), heap.peek().map(|Reverse((at, _))| Instant(*at)), "seed {seed}");
                    let first = heap.pop().map(|Reverse((at, number))| (Instant(at), Event::Timer(number)));
                    assert_eq!(queue.take(), first, "seed {seed}");
                    now = first.map_or(now, |(at, _)| at.0);
                }
            }
            while let Some(Reverse((at, number))) = heap.pop() {
                assert_eq!(queue.take(), Some((Instant(at), Event::Timer(number))), "seed {seed}");
            }
            assert_eq!((queue.take(), queue.next_time()), (None, None), "seed {seed}");
        }
    }

    #[test]
    #[should_panic(expected = "an event in the past")]
    fn no_event_is_before_the_last_one_taken() {
        let mut queue = Queue::default();
        queue.put(Instant(10), Event::Timer(0));
        queue.take();
        queue.put(Instant(9), Event::Timer(1));
    }
}
