//! The operations of this side: which packet is next, and what is complete.
//!
//! Fences that wait for WRITEs are the receiver's: the orders of packets. Fences that wait for READs are kept here: what
//! is behind them is not sent before the READs are complete. So no packet of one direction ever waits for one of the other.
//!
//! When an operation is complete, nothing of it is on the way: neither memory is read or written for it any more.

use super::operation::{Event, Failure, Fault, Flags, Kind, Operation};
use super::reads::{self, Reads};
use std::collections::VecDeque;
use weir_wire::edge::{Action, Order, Piece, Seq};

/// Operations of this side that are not complete.
#[derive(Debug)]
pub(super) struct Issued {
    /// Bytes of a packet behind its piece, and of its order, at most.
    payload: u32,
    /// All from the oldest that is not over; their numbers follow each other.
    open: VecDeque<Open>,
    next: u32,
    /// Operations of `open` of which nothing more is to be sent.
    sent: usize,
    reads: Reads,
    /// READs of which something has been asked for, and that are not over.
    open_reads: usize,
    /// The last packet of the latest WRITE with a forward fence.
    fence: Option<Seq>,
    /// The READ with a forward fence that is not over.
    read_fence: Option<u32>,
    /// The WRITE that has failed after a part was sent: the peer is to forget it.
    abandoned: Option<u32>,
    /// Failures of WRITEs of which the peer has told.
    failures: u32,
}

#[derive(Debug)]
struct Open {
    number: u32,
    operation: Operation,
    /// Bytes that have been sent, or asked for.
    offset: u32,
    /// The order of its packets; `None`: none has been sent.
    order: Option<Order>,
    /// Its last packet so far.
    last: Option<Seq>,
    /// A READ: requests that have not been answered.
    requests: u32,
    failure: Option<Failure>,
    is_over: bool,
    /// The caller knows.
    is_told: bool,
}

/// The next packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub piece: Piece,
    pub order: Order,
    /// Where its bytes are in this process.
    pub source: Option<u64>,
}

impl Issued {
    pub fn new(payload: u32) -> Issued {
        Issued {
            payload,
            open: VecDeque::new(),
            next: 0,
            sent: 0,
            reads: Reads::default(),
            open_reads: 0,
            fence: None,
            read_fence: None,
            abandoned: None,
            failures: 0,
        }
    }

    /// Whether all operations are over.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn add(&mut self, operation: Operation) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let (order, last, failure) = (None, None, None);
        let (is_over, is_told) = (false, false);
        let open = Open { number, operation, offset: 0, order, last, requests: 0, failure, is_over, is_told };
        self.open.push_back(open);
        number
    }

    /// The next packet, if one may be sent, which will have the number `seq`.
    pub fn next(&self, seq: Seq) -> Option<Next> {
        let after_all = Order::AfterAll(seq.minus(1));
        if let Some(number) = self.abandoned {
            // The peer must not meet a packet of the WRITE after it has forgotten the WRITE.
            let piece = Piece { number, action: Action::Abandon, offset: 0, bytes: 0 };
            return Some(Next { piece, order: after_all, source: None });
        }
        let open = self.open.get(self.sent)?;
        let Operation { kind, flags, remote, local, bytes: total } = open.operation;
        let fenced = self.read_fence.is_some() || flags.contains(Flags::BACKWARD_FENCE) && self.open_reads > 0;
        if open.order.is_none() && fenced || kind == Kind::Read && !self.reads.has_room() {
            return None;
        }
        let order = open.order.unwrap_or(match self.fence {
            _ if flags.contains(Flags::BACKWARD_FENCE) => after_all,
            Some(fence) => Order::AfterAll(fence),
            None => Order::Any,
        });
        let at = |address: u64| address.wrapping_add(u64::from(open.offset));
        let rest = total - open.offset;
        let (piece, source) = match kind {
            Kind::Write => {
                let action = Action::Write { address: remote, total, notify: flags.contains(Flags::NOTIFY) };
                let bytes = rest.min(self.payload.saturating_sub(order.wire_len() as u32).max(1));
                (Piece { number: open.number, action, offset: open.offset, bytes }, Some(at(local)))
            }
            Kind::Read => {
                let (number, action) = (self.reads.next(), Action::Read { address: at(remote) });
                (Piece { number, action, offset: 0, bytes: rest.min(reads::AT_ONCE) }, None)
            }
        };
        Some(Next { piece, order, source: source.filter(|_| piece.bytes > 0) })
    }

    /// The packet that `next` has given has been sent.
    pub fn sent(&mut self, seq: Seq, next: &Next) {
        let Some(open) = self.open.get_mut(self.sent) else { return };
        let Operation { kind, flags, local, bytes: total, .. } = open.operation;
        if next.piece.action == Action::Abandon {
            self.abandoned = None;
            open.last = Some(seq);
            return self.all_sent();
        }
        if kind == Kind::Read {
            self.reads.asked(open.number, local.wrapping_add(u64::from(open.offset)), next.piece.bytes);
            open.requests += 1;
            self.open_reads += usize::from(open.order.is_none());
            if flags.contains(Flags::FORWARD_FENCE) {
                self.read_fence = Some(open.number);
            }
        }
        open.last = Some(seq);
        open.order = Some(next.order);
        open.offset += next.piece.bytes;
        if open.offset == total {
            self.all_sent();
        }
    }

    /// The bytes of the packet that `next` has given cannot be read: its operation has failed.
    pub fn unreadable(&mut self, tell: impl FnMut(Event)) {
        let Some(open) = self.open.get_mut(self.sent) else { return };
        open.failure.get_or_insert(Failure::Local);
        match open.order {
            Some(_) => self.abandoned = Some(open.number),
            None => {
                self.all_sent();
                self.forget_over(tell);
            }
        }
    }

    /// All packets before `performed` have been performed by the peer, `failures` of which it has told or will.
    pub fn performed(&mut self, (performed, failures): (Seq, u32), tell: impl FnMut(Event)) {
        if (failures.wrapping_sub(self.failures) as i32) > 0 {
            return; // One of the WRITEs has failed, but which?
        }
        let waits = |open: &&mut Open| open.operation.kind == Kind::Write && !open.is_over;
        for open in self.open.iter_mut().take(self.sent).filter(waits) {
            if !open.last.is_some_and(|last| last.before(performed)) {
                break; // Nor have later ones.
            }
            open.is_over = true;
        }
        self.fence = self.fence.filter(|fence| !fence.before(performed));
        self.forget_over(tell);
    }

    /// A WRITE has failed at the peer. The rest of it is not sent.
    pub fn write_failed(&mut self, number: u32) {
        self.failures = self.failures.wrapping_add(1);
        let is_being_sent = self.open.get(self.sent).is_some_and(|open| open.number == number);
        let is_sent = |open: &&mut Open| open.operation.kind == Kind::Write && open.order.is_some() && !open.is_over;
        let Some(open) = self.find(number).filter(is_sent) else { return };
        open.failure.get_or_insert(Failure::Remote);
        if is_being_sent {
            self.abandoned = Some(number);
        }
    }

    /// The bytes of a WRITE of which packets were sent cannot be read any more. Returns whether the peer is to be told,
    /// after all of its packets.
    pub fn withdraw(&mut self, number: u32) -> bool {
        let is_being_sent = self.open.get(self.sent).is_some_and(|open| open.number == number);
        let is_sent = |open: &&mut Open| open.operation.kind == Kind::Write && open.order.is_some() && !open.is_over;
        let Some(open) = self.find(number).filter(is_sent) else { return false };
        let is_first = open.failure.replace(Failure::Local).is_none();
        if is_being_sent {
            self.abandoned = Some(number);
        }
        is_first && !is_being_sent
    }

    /// Bytes of a READ have come; `write` stores them.
    pub fn response(&mut self, piece: &Piece, write: impl FnOnce(u64) -> Result<(), Fault>, tell: impl FnMut(Event)) {
        let response = self.reads.response(piece.number, piece.offset, piece.bytes, write);
        if let Some((operation, result)) = response {
            self.answered(operation, result, tell);
        }
    }

    /// The peer cannot read what a READ asks for.
    pub fn read_failed(&mut self, number: u32, tell: impl FnMut(Event)) {
        if let Some(operation) = self.reads.failed(number) {
            self.answered(operation, Err(Failure::Remote), tell);
        }
    }

    /// A request of a READ has been answered.
    fn answered(&mut self, number: u32, result: Result<(), Failure>, tell: impl FnMut(Event)) {
        let is_being_sent = self.open.get(self.sent).is_some_and(|open| open.number == number);
        let Some(open) = self.find(number) else { return };
        open.requests -= 1;
        open.failure = open.failure.or(result.err());
        let ends = open.requests == 0 && (!is_being_sent || open.failure.is_some());
        // One that has failed asks for no more.
        if is_being_sent && open.failure.is_some() {
            self.all_sent();
        }
        if ends {
            if let Some(open) = self.find(number) {
                open.is_over = true;
            }
            self.open_reads -= 1;
            self.read_fence = self.read_fence.filter(|fence| *fence != number);
            self.forget_over(tell);
        }
    }

    /// Nothing more is to be sent of the operation that is being sent.
    fn all_sent(&mut self) {
        let open = &mut self.open[self.sent];
        if open.operation.kind == Kind::Write {
            // One that has failed before anything of it was sent is over.
            open.is_over = open.last.is_none();
            if open.operation.flags.contains(Flags::FORWARD_FENCE) && open.last.is_some() {
                self.fence = open.last;
            }
        }
        self.sent += 1;
    }

    /// Tells of operations that are over. Others may be over before them.
    fn forget_over(&mut self, mut tell: impl FnMut(Event)) {
        for open in self.open.iter_mut().take(self.sent).filter(|open| open.is_over && !open.is_told) {
            open.is_told = true;
            tell(Event::Completed { operation: open.number, result: open.failure.map_or(Ok(()), Err) });
        }
        while self.sent > 0 && self.open.front().is_some_and(|open| open.is_told) {
            self.open.pop_front();
            self.sent -= 1;
        }
    }

    fn find(&mut self, number: u32) -> Option<&mut Open> {
        let first = self.open.front()?.number;
        self.open.get_mut(number.wrapping_sub(first) as usize)
    }
}
