//! Injected faults: datagrams are lost, duplicated, reordered, corrupted and delayed at random; a seed reproduces
//! them.
//!
//! [`Faults`] is a carrier around a carrier. Each datagram is sent alone and has its own fate, which depends only on
//! the seed and on the number of datagrams before it. A [`crate::capture`] inside records all fates, including
//! dropped datagrams.

mod line;
mod spec;

pub use line::FaultCounts;
pub use spec::{FaultDirection, FaultSpec, FaultSpecError};

use crate::{Arrival, Carrier, Fate, Group, Inbox, Outbox, SendError, clock};
use line::{FaultLine, Sink};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;

/// A carrier that injects faults into its datagrams.
pub struct Faults<C> {
    inner: C,
    seed: u64,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    clock: fn() -> u64,
    /// The next `receive` looks at every socket.
    looks_everywhere: bool,
    at_end: Option<AtEnd>,
}

/// Receives the counts of outgoing and of incoming datagrams.
type AtEnd = Box<dyn FnOnce(FaultCounts, FaultCounts) + Send>;

struct Outgoing {
    line: FaultLine<Group>,
    outbox: Outbox,
}

struct Incoming {
    line: FaultLine<Arrival>,
    /// What the inner carrier received; it passes through the line into the caller's inbox.
    inbox: Option<Inbox>,
    /// The next datagram to process: the index of its arrival in `inbox`, and its offset in the arrival.
    next: (usize, usize),
}

/// Bytes and datagrams of one send to the inner carrier.
const OUTBOX: usize = 1 << 18;
const OUTBOX_GROUPS: usize = 256;
/// How often one `receive` retries when all arrivals were dropped.
const TRIES: usize = 64;

impl<C: Carrier> Faults<C> {
    /// Injects faults into the datagrams of `inner`. Without a seed in the spec, a random seed is used: see
    /// [`Faults::seed`].
    pub fn new(inner: C, spec: &FaultSpec) -> Self {
        Self::with_clock(inner, spec, clock::monotonic)
    }

    /// Like [`Faults::new`], with another clock (nanoseconds).
    pub fn with_clock(inner: C, spec: &FaultSpec, clock: fn() -> u64) -> Self {
        // Short, so that users can type it.
        let seed = spec.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
        let outgoing = spec
            .direction
            .is_out()
            .then(|| Outgoing { line: FaultLine::new(spec, seed), outbox: Outbox::new(OUTBOX, OUTBOX_GROUPS) });
        // A random sequence that differs from that of outgoing datagrams.
        let incoming =
            spec.direction.is_in().then(|| Incoming { line: FaultLine::new(spec, !seed), inbox: None, next: (0, 0) });
        Faults { inner, seed, outgoing, incoming, clock, looks_everywhere: false, at_end: None }
    }

    /// Sets a function that is called once with both counts, when the carrier is closed or dropped.
    pub fn at_end(&mut self, report: impl FnOnce(FaultCounts, FaultCounts) + Send + 'static) {
        self.at_end = Some(Box::new(report));
    }

    /// The seed: the same seed in the spec reproduces the same fates.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Counts of outgoing datagrams so far.
    pub fn outgoing(&self) -> FaultCounts {
        self.outgoing.as_ref().map_or(FaultCounts::default(), |outgoing| outgoing.line.counts())
    }

    /// Counts of incoming datagrams so far.
    pub fn incoming(&self) -> FaultCounts {
        self.incoming.as_ref().map_or(FaultCounts::default(), |incoming| incoming.line.counts())
    }

    /// The wrapped carrier.
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// The wrapped carrier.
    pub fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }
}

impl<C> Faults<C> {
    fn report_counts(&mut self) {
        if let Some(report) = self.at_end.take() {
            let counts = |counts: Option<FaultCounts>| counts.unwrap_or_default();
            let outgoing = counts(self.outgoing.as_ref().map(|outgoing| outgoing.line.counts()));
            report(outgoing, counts(self.incoming.as_ref().map(|incoming| incoming.line.counts())));
        }
    }
}

impl<C> Drop for Faults<C> {
    fn drop(&mut self) {
        self.report_counts();
    }
}

impl<C: Carrier> Carrier for Faults<C> {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        let Some(outgoing) = &mut self.outgoing else { return self.inner.send(outbox) };
        let now = (self.clock)();
        let mut sender = Sender::new(&mut self.inner, &mut outgoing.outbox);
        outgoing.line.release(now, &mut sender);
        for group in &outbox.groups {
            if group.fate.contains(Fate::LOST) {
                // The adapter has lost it already: the fault model does not apply.
                sender.take(group, outbox.datagrams(group).next().unwrap_or_default(), group.fate);
                continue;
            }
            for datagram in outbox.datagrams(group) {
                outgoing.line.offer(now, *group, datagram, &mut sender);
            }
        }
        sender.finish()
    }

    /// Returns each datagram as an arrival of its own.
    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        let now = (self.clock)();
        self.flush_due(now)?;
        let everywhere = std::mem::take(&mut self.looks_everywhere);
        let Some(incoming) = &mut self.incoming else {
            if everywhere {
                self.inner.look_everywhere();
            }
            return self.inner.receive(inbox);
        };
        inbox.arrivals.clear();
        for _ in 0..TRIES {
            // All that one look found may be lost, and more may be in another socket.
            if everywhere {
                self.inner.look_everywhere();
            }
            let more = incoming.receive(now, &mut self.inner, inbox)?;
            self.inner.record_arrivals(inbox, &inbox.arrivals);
            inbox.arrivals.retain(|arrival| !arrival.fate.contains(Fate::LOST));
            if !inbox.arrivals.is_empty() || !more {
                break;
            }
        }
        Ok(inbox.arrivals.len())
    }

    fn wants_socket(&mut self) -> bool {
        self.inner.wants_socket()
    }

    fn add_socket(&mut self) -> io::Result<()> {
        self.inner.add_socket()
    }

    fn look_everywhere(&mut self) {
        self.looks_everywhere = true;
    }

    fn max_segments(&self) -> usize {
        if self.outgoing.is_some() { 1 } else { self.inner.max_segments() }
    }

    fn listen(&mut self, port: u16) -> io::Result<()> {
        self.inner.listen(port)
    }

    fn join(&mut self, group: IpAddr, port: u16, ifindex: u32) -> io::Result<RawFd> {
        self.inner.join(group, port, ifindex)
    }

    fn leave(&mut self, membership: RawFd) {
        self.inner.leave(membership);
    }

    fn take_send_error(&mut self) -> Option<SendError> {
        self.inner.take_send_error()
    }

    fn mark(&mut self, what: &dyn fmt::Display) {
        self.inner.mark(what);
    }

    fn close(&mut self) {
        self.inner.close();
        self.report_counts();
    }

    fn records_fates(&self) -> bool {
        self.inner.records_fates()
    }

    fn fds(&self) -> Vec<RawFd> {
        self.inner.fds()
    }

    fn due(&self) -> Option<u64> {
        let outgoing = self.outgoing.as_ref().and_then(|outgoing| outgoing.line.due());
        let incoming = self.incoming.as_ref().and_then(Incoming::due);
        [outgoing, incoming, self.inner.due()].into_iter().flatten().min()
    }

    /// Sends the outgoing datagrams that are due; the next `receive` returns incoming ones that are due.
    fn flush_due(&mut self, now: u64) -> io::Result<()> {
        if let Some(outgoing) = &mut self.outgoing {
            let mut sender = Sender::new(&mut self.inner, &mut outgoing.outbox);
            outgoing.line.release(now, &mut sender);
            sender.finish()?;
        }
        self.inner.flush_due(now)
    }
}

impl Incoming {
    /// Receives once and passes the arrivals through the line; false if nothing arrived.
    fn receive(&mut self, now: u64, inner: &mut impl Carrier, into: &mut Inbox) -> io::Result<bool> {
        let mut deliver = Deliver::new(into);
        self.line.release(now, &mut deliver);
        let inbox = self.inbox.get_or_insert_with(|| Inbox::new(deliver.inbox.slots()));
        let mut came = true;
        if self.next.0 >= inbox.arrivals.len() {
            self.next = (0, 0);
            inbox.arrivals.clear();
            came = inner.receive_unrecorded(inbox)? > 0;
        }
        while let Some(arrival) = inbox.arrivals.get(self.next.0) {
            let rest = &inbox.bytes[arrival.start + self.next.1..arrival.start + arrival.len];
            let datagram = &rest[..rest.len().min(arrival.segment.max(1))];
            let (bytes, datagrams) = self.line.most(datagram.len());
            if !deliver.has_room(bytes, datagrams) {
                break;
            }
            self.line.offer(now, *arrival, datagram, &mut deliver);
            self.next = if datagram.len() < rest.len() {
                (self.next.0, self.next.1 + datagram.len())
            } else {
                (self.next.0 + 1, 0)
            };
        }
        Ok(came)
    }

    fn due(&self) -> Option<u64> {
        let waiting = self.inbox.as_ref().is_some_and(|inbox| self.next.0 < inbox.arrivals.len());
        if waiting { Some(0) } else { self.line.due() }
    }
}

/// Puts datagrams into an outbox, which is sent to the inner carrier whenever it is full.
struct Sender<'a, C> {
    inner: &'a mut C,
    outbox: &'a mut Outbox,
    lost_too: bool,
    outcome: io::Result<()>,
}

impl<'a, C: Carrier> Sender<'a, C> {
    fn new(inner: &'a mut C, outbox: &'a mut Outbox) -> Self {
        let lost_too = inner.records_fates();
        Sender { inner, outbox, lost_too, outcome: Ok(()) }
    }

    fn send(&mut self) {
        if !self.outbox.groups.is_empty() {
            let outcome = self.inner.send(self.outbox);
            self.outbox.clear();
            if self.outcome.is_ok() {
                self.outcome = outcome;
            }
        }
    }

    fn finish(mut self) -> io::Result<()> {
        self.send();
        self.outcome
    }
}

impl<C: Carrier> Sink<Group> for Sender<'_, C> {
    fn has_room(&self, _bytes: usize, _datagrams: usize) -> bool {
        true
    }

    fn take(&mut self, group: &Group, datagram: &[u8], fate: Fate) {
        if fate.contains(Fate::LOST) && !self.lost_too {
            return;
        }
        let fits = self.outbox.len + datagram.len() <= self.outbox.bytes.len();
        if !fits || self.outbox.groups.len() >= OUTBOX_GROUPS {
            self.send();
        }
        let (start, len) = (self.outbox.len, datagram.len());
        self.outbox.bytes[start..start + len].copy_from_slice(datagram);
        self.outbox.len += len;
        self.outbox.groups.push(Group { start, len, segment: len, fate, ..*group });
    }
}

/// Puts datagrams into the caller's inbox, one after another.
struct Deliver<'a> {
    inbox: &'a mut Inbox,
    used: usize,
}

impl<'a> Deliver<'a> {
    fn new(inbox: &'a mut Inbox) -> Self {
        let used = inbox.arrivals.last().map_or(0, |last| last.start + last.len);
        Deliver { inbox, used }
    }
}

impl Sink<Arrival> for Deliver<'_> {
    fn has_room(&self, bytes: usize, datagrams: usize) -> bool {
        self.used + bytes <= self.inbox.spare().start
            && self.inbox.arrivals.len() + datagrams <= self.inbox.arrivals.capacity()
    }

    fn take(&mut self, arrival: &Arrival, datagram: &[u8], fate: Fate) {
        let (start, len) = (self.used, datagram.len());
        self.inbox.bytes[start..start + len].copy_from_slice(datagram);
        self.used += len;
        self.inbox.arrivals.push(Arrival { start, len, segment: len, fate, ..*arrival });
    }
}
