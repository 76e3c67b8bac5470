//! Packet flood: page-fault events are served one after the other, and a QP that waits for its event drops every
//! response meanwhile (T 5.2).
//!
//! Observed: 128 READs of 32 bytes, each on its own QP, with all responses to one missing page. Completions start
//! after 1 ms, when the fault is resolved; but the *first* 30 READs stay open until 6 ms, and "the client kept
//! repeating the retransmission of the request, receiving the response, and discarding it" (T 5.2.2, fig 5.9). With
//! more QPs or pages the delay is far longer, and with few QPs there is none (T fig 5.7).
//!
//! Hypothesis: each dropped response queues an event for the driver, and each event is served in turn, with a resume of
//! its own for the QP. If the page is absent, the event takes the time of a page fault; if the page has come
//! meanwhile it takes less, because the driver still does its whole share. A QP that dropped two responses in a row takes
//! none until an event is served that it queued at the second drop or later, and each further response that it drops
//! queues one more event, up to a limit.
//!
//! A packet with outgoing data that meets a fault waits for its own event, too, and the fault counts as a drop. So a QP
//! that meets two faults in a row, without an ACK between them, drops ACKs until an event of its own is served, and
//! repeats meanwhile what was not acknowledged. A dropped ACK queues no event, because it needs no page. With client-side
//! ODP and WRITEs "the performance degradation accompanies the increase of WRITE packets", with the number of QPs
//! (T 5.2.4). The text gives no number, and does not say which WRITEs are repeated: the rule of READs, applied to WRITEs,
//! needs no parameter. One QP sends 1.5 % more. It has many WRITEs for each page, so that an ACK arrives before the next
//! fault.
//!
//! The public source of the mlx5 driver agrees: an event queue of 4096 entries; every event reads the work queue entry,
//! pins the pages, updates the region's table under its lock, and resumes one QP, without asking whether the page has
//! come. So does its history. "Refactor page fault handling" (A. Kovalyov, January 2017) gave page faults an event queue
//! and a work queue of their own, and each event a token for its resume. "Add handling for memory scheme page fault
//! events" (M. Guralnik, September 2024) adds a type of event that costs the driver less, and that need not be followed
//! by a resume each time, as all earlier types must. A stale event costs what the driver and the processor cost, so it is
//! the same on ConnectX-4 and -6, which the authors had on equal hosts: an eightfold difference is unlikely.
//!
//! These observations decide between variants (a variant that fails one of them is excluded):
//!
//! - "Beyond 10 QPs" and "as much as 3000 times" (T 5.2.1) need events of QPs that are deaf already: without these 200
//!   QPs take 0.7 s and send 19 times the packets, with them 5 s and more than 100 times.
//! - The time grows with the number of QPs (T 5.2.1): without a limit for each QP, 20 QPs would take five times as long as
//!   200.
//! - The READs that stay open until 6 ms: with a resume by *any* event of the QP, none would stay; if a QP waited for its
//!   *last* event, it would never resume.

use crate::{Flood, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Entries of the adapter's queue of events (mlx5: 4096).
const QUEUE: usize = 4096;

/// The page-fault events of an adapter. Its host reports faults and dropped responses, and calls
/// `Qp::page_resolved(now, Side::Requester)` for the QPs that `poll` returns.
#[derive(Clone, Debug, Default)]
pub struct FaultEvents {
    flood: Option<Flood>,
    /// When the last event so far is served.
    busy: Instant,
    /// Waiting events of requesters, in the order in which they are served.
    queue: VecDeque<Event>,
    /// The QPs that have waiting events.
    qps: BTreeMap<u32, Waiting>,
    /// Number of events so far.
    queued: u64,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    qp: u32,
    number: u64,
    /// When it is served.
    served: Instant,
}

/// The waiting events of a QP.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    events: u32,
    /// Number of its last event.
    last: u64,
    /// That event is of a fault that the QP has met since the last call of `met_fault`.
    fresh: bool,
    /// The QP resumes when this event of it, or a later one, is served.
    resumes: Option<u64>,
}

impl FaultEvents {
    /// `None`: only faults are served in turn, and every QP resumes when its page is present.
    pub fn new(flood: Option<Flood>) -> FaultEvents {
        FaultEvents { flood, ..FaultEvents::default() }
    }

    /// Whether requesters resume by their events, and not when their pages are present.
    pub fn resume_requesters(&self) -> bool {
        self.flood.is_some()
    }

    /// A page is absent: its fault takes `time` after all earlier events. Returns when it ends. `requester`: the QP, if
    /// its requester met the fault.
    pub fn fault(&mut self, now: Instant, time: Duration, requester: Option<u32>) -> Instant {
        self.busy = self.busy.max(now) + time;
        if let Some(qp) = requester
            && self.flood.is_some()
        {
            self.push(qp).fresh = true;
        }
        self.busy
    }

    /// What a QP's requester did with a packet, or a packet to send, that met a fault ([`crate::Qp::take_fault_event`]).
    /// `resumes`: it waits for an event.
    pub fn met_fault(&mut self, now: Instant, qp: u32, resumes: bool) {
        let Some(flood) = self.flood else { return };
        let waiting = self.qps.get(&qp).copied().unwrap_or_default();
        let full = waiting.events >= flood.waiting.max(1) || self.queue.len() >= QUEUE && waiting.events > 0;
        if !waiting.fresh && !full {
            self.busy = self.busy.max(now) + flood.stale;
            self.push(qp);
        }
        let Some(waiting) = self.qps.get_mut(&qp) else { return };
        waiting.fresh = false;
        if resumes {
            waiting.resumes.get_or_insert(waiting.last);
        }
    }

    /// Whether a QP resumes when an event of it is served.
    pub fn waits(&self, qp: u32) -> bool {
        self.qps.get(&qp).is_some_and(|waiting| waiting.resumes.is_some())
    }

    /// The next QP to resume by `Qp::page_resolved(now, Side::Requester)`. Call it until it returns `None`.
    pub fn poll(&mut self, now: Instant) -> Option<u32> {
        while let Some(event) = self.queue.front().copied().filter(|event| event.served <= now) {
            self.queue.pop_front();
            let Some(waiting) = self.qps.get_mut(&event.qp) else { continue };
            waiting.events -= 1;
            let resumes = waiting.resumes.take_if(|number| event.number >= *number).is_some();
            if waiting.events == 0 {
                self.qps.remove(&event.qp);
            }
            if resumes {
                return Some(event.qp);
            }
        }
        None
    }

    /// When to poll next; this time may have passed.
    pub fn next(&self) -> Option<Instant> {
        self.queue.front().map(|event| event.served)
    }

    /// A QP is destroyed: its events are removed. The time that they take stays in `busy`.
    pub fn forget(&mut self, qp: u32) {
        if self.qps.remove(&qp).is_some() {
            self.queue.retain(|event| event.qp != qp);
        }
    }

    /// An event of a QP, served at `busy`.
    fn push(&mut self, qp: u32) -> &mut Waiting {
        self.queued += 1;
        self.queue.push_back(Event { qp, number: self.queued, served: self.busy });
        let waiting = self.qps.entry(qp).or_default();
        waiting.events += 1;
        waiting.last = self.queued;
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Duration = Duration::from_micros(40);
    const FAULT: Duration = Duration::from_micros(500);

    fn events(waiting: u32) -> FaultEvents {
        FaultEvents::new(Some(Flood { stale: STALE, waiting }))
    }

    fn at(micros: u64) -> Instant {
        Instant(micros * 1000)
    }

    fn resumed(events: &mut FaultEvents, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| events.poll(now)).collect()
    }

    #[test]
    fn faults_and_stale_events_are_served_in_turn() {
        let mut events = events(16);
        assert_eq!(events.fault(at(0), FAULT, Some(1)), at(500));
        events.met_fault(at(0), 1, true);
        // Two QPs that join the fault: an event each.
        events.met_fault(at(10), 2, true);
        events.met_fault(at(20), 3, true);
        assert_eq!(events.fault(at(30), FAULT, None), at(1080), "a responder's fault waits, too");
        assert_eq!(events.next(), Some(at(500)));
        assert_eq!(resumed(&mut events, at(499)), []);
        assert_eq!(resumed(&mut events, at(540)), [1, 2]);
        assert_eq!(resumed(&mut events, at(580)), [3]);
        assert_eq!(events.next(), None);
    }

    #[test]
    fn a_qp_resumes_by_an_event_of_its_second_drop_or_later() {
        let mut events = events(16);
        events.fault(at(0), FAULT, Some(1));
        events.met_fault(at(0), 1, false);
        assert!(!events.waits(1));
        (2..100).for_each(|qp| events.met_fault(at(1), qp, false));
        // QP 1 drops again before its page is present.
        events.met_fault(at(499), 1, true);
        events.met_fault(at(999), 1, true);
        let served = 500 + 99 * 40;
        assert!(events.waits(1) && !events.waits(2));
        assert_eq!(resumed(&mut events, at(served - 1)), []);
        assert_eq!(resumed(&mut events, at(served)), [1]);
        assert!(!events.waits(1));
        assert_eq!(resumed(&mut events, at(10_000)), [], "its third event resumes nothing");
    }

    #[test]
    fn a_qp_has_a_limited_number_of_waiting_events() {
        let mut events = events(3);
        events.fault(at(0), FAULT, Some(1));
        (0..10).for_each(|_| events.met_fault(at(0), 1, true));
        assert_eq!(events.queue.len(), 3);
        // Full for QP 1, but not for another.
        events.met_fault(at(0), 2, true);
        assert_eq!(resumed(&mut events, at(620)), [1, 2]);
        assert!(events.qps.is_empty() && events.queue.is_empty());
    }

    #[test]
    fn each_qp_gets_an_event_even_if_the_queue_is_full() {
        let mut events = events(16);
        (0..5000).for_each(|qp| events.met_fault(at(0), qp, true));
        assert_eq!(resumed(&mut events, at(5000 * 40)).len(), 5000);
    }

    #[test]
    fn a_forgotten_qp_does_not_resume() {
        let mut events = events(16);
        events.met_fault(at(0), 1, true);
        events.met_fault(at(0), 2, true);
        events.forget(1);
        assert_eq!(resumed(&mut events, at(1000)), [2]);
        events.forget(7);
    }

    #[test]
    fn without_the_flaw_there_are_no_events() {
        let mut events = FaultEvents::new(None);
        assert_eq!(events.fault(at(0), FAULT, Some(1)), at(500));
        events.met_fault(at(0), 1, true);
        assert!(!events.resume_requesters() && events.next().is_none());
    }
}
