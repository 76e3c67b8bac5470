//! A [`Port`] in memory: what an endpoint posts is kept until the mesh takes it.

use super::memory::Memory;
use super::rng::Rng;
use crate::atomic::result;
use crate::hello::{Hello, Name};
use crate::message::Message;
use crate::port::{ConnectionId, Errno, Local, Port, Registered, Registration, Slot, Update, Work};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

const ENOMEM: Errno = Errno(12);
const EACCES: Errno = Errno(13);

/// A connection of a port.
#[derive(Debug)]
pub struct Qp {
    /// Of all QPs that there ever are in a mesh; numbers of connections are used again.
    pub(super) uid: u64,
    /// The QP at the other end: node, connection, and its `uid`.
    pub(super) peer: Option<(usize, ConnectionId, u64)>,
    /// Requests of which the endpoint does not know yet that they have completed.
    pub(super) queue: VecDeque<Wqe>,
    /// Number of the next request.
    pub(super) next: u64,
    /// Receives.
    pub(super) receives: VecDeque<Slot>,
    /// Receives that were ever posted, and how many of these the peer has been told of.
    posted: u64,
    told: u64,
    /// No further request arrives at the peer before this time.
    pub(super) busy_until: Duration,
    /// No further response arrives before this time.
    pub(super) responds_until: Duration,
    /// A request has failed.
    pub(super) failed: bool,
}

/// A posted request.
#[derive(Clone, Debug)]
pub(super) struct Wqe {
    pub number: u64,
    pub signaled: bool,
    pub what: What,
    pub local: Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Send,
    Write { addr: u64, rkey: u32, immediate: Option<u32> },
    Read { addr: u64, rkey: u32 },
}

/// Where the bytes of a request are.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    Inline(Vec<u8>),
    Slot { slot: Slot, len: usize },
    Memory { addr: u64, len: u64, lkey: u32 },
}

/// What the mesh has to do for a port.
#[derive(Debug)]
pub(super) enum Out {
    Connect { connection: ConnectionId, to: Name, hello: Hello },
    Accept { connection: ConnectionId, hello: Hello },
    Disconnect { qp: Box<Qp> },
    Posted { connection: ConnectionId, number: u64 },
}

/// The adapter and the memory of one node.
#[derive(Debug)]
pub struct MemoryPort {
    pub memory: Memory,
    pub(super) now: Duration,
    pub(super) qps: HashMap<ConnectionId, Qp>,
    pub(super) out: Vec<Out>,
    pub(super) next_uid: u64,
    slots: Vec<Option<Vec<u8>>>,
    slot_size: usize,
    /// Bounce buffers that may be provided.
    pub most_slots: usize,
    /// Requests that a send queue holds.
    pub depth: usize,
    /// Longest inline request, bytes.
    pub inline: usize,
    /// Registrations fail once in so many times; 0: never.
    pub register_fails: u64,
    /// The adapter refuses a request once in so many times; 0: never.
    pub post_fails: u64,
    /// The adapter tells how many pages it has lost.
    pub tells_invalidations: bool,
    rng: Rng,
}

impl MemoryPort {
    pub(super) fn new(memory: Memory, slot_size: usize, depth: usize, inline: usize, seed: u64) -> MemoryPort {
        MemoryPort {
            memory,
            now: Duration::ZERO,
            qps: HashMap::new(),
            out: Vec::new(),
            next_uid: seed << 32,
            slots: Vec::new(),
            slot_size,
            most_slots: usize::MAX,
            depth,
            inline,
            register_fails: 0,
            post_fails: 0,
            tells_invalidations: true,
            rng: Rng(seed),
        }
    }

    /// Bounce buffers that are not freed.
    pub fn slots_in_use(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Connections in any state.
    pub fn connections(&self) -> usize {
        self.qps.len()
    }

    /// A QP, with the lowest number that is free, so that numbers are used again at once.
    pub(super) fn new_qp(&mut self) -> ConnectionId {
        let free = (0..).map(ConnectionId).find(|id| !self.qps.contains_key(id));
        let connection = free.expect("fewer connections than numbers");
        self.next_uid += 1;
        let qp = Qp {
            uid: self.next_uid,
            peer: None,
            queue: VecDeque::new(),
            next: 0,
            receives: VecDeque::new(),
            posted: 0,
            told: 0,
            busy_until: Duration::ZERO,
            responds_until: Duration::ZERO,
            failed: false,
        };
        self.qps.insert(connection, qp);
        connection
    }

    fn give_receives(&mut self, connection: ConnectionId, receives: &[Slot]) {
        for &slot in receives {
            let _ = self.slot(slot);
        }
        let qp = self.qps.get_mut(&connection).expect("a connection");
        qp.receives.extend(receives);
        (qp.posted, qp.told) = (receives.len() as u64, receives.len() as u64);
    }

    /// What the adapter reads of this process's memory for a request.
    ///
    /// # Panics
    /// If it may not: the endpoint has made a mistake.
    pub(super) fn fetch(&mut self, bytes: &Bytes) -> Vec<u8> {
        match *bytes {
            Bytes::Inline(ref bytes) => bytes.clone(),
            Bytes::Slot { slot, len } => self.slot(slot)[..len].to_vec(),
            Bytes::Memory { addr, len, lkey } => {
                let found = self.memory.access(self.now, lkey, addr, len, false);
                found.expect("the lkey covers the bytes of a request").to_vec()
            }
        }
    }

    /// What the adapter writes to this process's memory for a READ.
    ///
    /// # Panics
    /// As [`Self::fetch`].
    pub(super) fn land(&mut self, bytes: &Bytes, data: &[u8]) {
        match *bytes {
            Bytes::Inline(_) => panic!("a READ has memory"),
            Bytes::Slot { slot, len } => self.slot(slot)[..len].copy_from_slice(data),
            Bytes::Memory { addr, len, lkey } => {
                let found = self.memory.access(self.now, lkey, addr, len, true);
                found.expect("the lkey covers the bytes of a READ").copy_from_slice(data);
            }
        }
    }
}

impl Bytes {
    pub(super) fn len(&self) -> u64 {
        match self {
            Bytes::Inline(bytes) => bytes.len() as u64,
            Bytes::Slot { len, .. } => *len as u64,
            Bytes::Memory { len, .. } => *len,
        }
    }
}

impl From<Local> for Bytes {
    fn from(local: Local) -> Bytes {
        match local {
            Local::Slot { slot, len } => Bytes::Slot { slot, len: len as usize },
            Local::Memory { addr, len, lkey } => Bytes::Memory { addr, len: len.into(), lkey },
        }
    }
}

impl Port for MemoryPort {
    fn register(&mut self, addr: u64, len: u64, how: Registration) -> Result<Registered, Errno> {
        if self.register_fails > 0 && self.rng.once_in(self.register_fails) {
            return Err(ENOMEM);
        }
        self.memory.register(addr, len, how)
    }

    fn deregister(&mut self, registered: Registered) {
        // The adapter needs it as long as a request that uses it has not completed.
        let uses = |wqe: &Wqe| matches!(wqe.local, Bytes::Memory { lkey, .. } if lkey == registered.lkey);
        let used = self.qps.values().any(|qp| qp.queue.iter().any(uses));
        assert!(!used, "a registration ends while a request uses it");
        self.memory.deregister(registered.lkey);
    }

    fn prefetch(&mut self, lkey: u32, addr: u64, len: u64, _write: bool) {
        self.memory.prefetch(self.now, lkey, addr, len);
    }

    fn invalidations(&mut self) -> Option<u64> {
        self.tells_invalidations.then_some(self.memory.invalidations)
    }

    fn new_slot(&mut self) -> Option<Slot> {
        if self.slots_in_use() >= self.most_slots {
            return None;
        }
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        if free == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[free] = Some(vec![0x5c; self.slot_size]);
        Some(Slot(free as u32))
    }

    fn free_slot(&mut self, slot: Slot) {
        let sends = |wqe: &Wqe| matches!(wqe.local, Bytes::Slot { slot: used, .. } if used == slot);
        let used = |qp: &Qp| qp.receives.contains(&slot) || qp.queue.iter().any(sends);
        assert!(!self.qps.values().any(used), "a bounce buffer is freed while the adapter uses it");
        assert!(self.slots[slot.0 as usize].take().is_some(), "a bounce buffer is freed once");
    }

    fn slot(&mut self, slot: Slot) -> &mut [u8] {
        self.slots[slot.0 as usize].as_mut().expect("a bounce buffer that is not freed")
    }

    fn copy_to_slot(&mut self, addr: u64, len: usize, slot: Slot, at: usize) {
        let bytes = self.memory.bytes(addr, len).to_vec();
        self.slot(slot)[at..at + len].copy_from_slice(&bytes);
    }

    fn copy_from_slot(&mut self, slot: Slot, at: usize, addr: u64, len: usize) {
        let bytes = self.slot(slot)[at..at + len].to_vec();
        self.memory.bytes_mut(addr, len).copy_from_slice(&bytes);
    }

    fn load(&mut self, addr: u64, into: &mut [u8]) {
        into.copy_from_slice(self.memory.bytes(addr, into.len()));
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) {
        self.memory.bytes_mut(addr, bytes.len()).copy_from_slice(bytes);
    }

    fn update(&mut self, update: &Update) -> Result<u64, Errno> {
        let size = update.datatype.size();
        let found = self.memory.access(self.now, update.rkey, update.addr, size as u64, true);
        let element = found.ok_or(EACCES)?;
        let old = element.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let new = result(update.operator, update.datatype, old, update.operand, update.compare);
        element.copy_from_slice(&new.to_le_bytes()[..size]);
        Ok(old)
    }

    fn post_send(&mut self, to: ConnectionId, id: u64, signaled: bool, work: Work<'_>) -> Result<(), Errno> {
        let depth = self.depth;
        let inline = self.inline;
        let (what, local) = match work {
            Work::Send(local) => (What::Send, local.into()),
            Work::SendInline(bytes) => (What::Send, Bytes::Inline(bytes.to_vec())),
            Work::Write { local, addr, rkey, immediate } => (What::Write { addr, rkey, immediate }, local.into()),
            Work::WriteInline { bytes, addr, rkey, immediate } => {
                (What::Write { addr, rkey, immediate }, Bytes::Inline(bytes.to_vec()))
            }
            Work::Read { local, addr, rkey } => (What::Read { addr, rkey }, local.into()),
        };
        match local {
            Bytes::Inline(ref bytes) => assert!(bytes.len() <= inline, "{} bytes inline", bytes.len()),
            Bytes::Slot { slot, len } => assert!(len <= self.slot(slot).len(), "{len} bytes of a bounce buffer"),
            Bytes::Memory { .. } => {}
        }
        let message = if let What::Send = what { Some(self.fetch(&local)) } else { None };
        let qp = self.qps.get_mut(&to).expect("a connection");
        assert!(qp.peer.is_some(), "nothing is sent before a connection is established");
        assert_eq!(id, qp.next, "requests have numbers in order");
        assert!(qp.queue.len() < depth, "more than {depth} requests in a send queue");
        assert!(signaled || qp.queue.len() + 1 < depth, "a full send queue without a signal");
        if let Some((returned, _)) = message.as_deref().and_then(Message::parse) {
            qp.told += u64::from(returned.credits);
            assert!(qp.told <= qp.posted, "a peer is told of receives that are not posted");
        }
        qp.next += 1;
        if self.post_fails > 0 && self.rng.once_in(self.post_fails) {
            return Err(ENOMEM);
        }
        let qp = self.qps.get_mut(&to).expect("a connection");
        qp.queue.push_back(Wqe { number: id, signaled, what, local });
        self.out.push(Out::Posted { connection: to, number: id });
        Ok(())
    }

    fn post_receive(&mut self, on: ConnectionId, slot: Slot) -> Result<(), Errno> {
        let _ = self.slot(slot);
        let qp = self.qps.get_mut(&on).expect("a connection");
        assert!(!qp.receives.contains(&slot), "a bounce buffer is posted twice");
        qp.receives.push_back(slot);
        qp.posted += 1;
        Ok(())
    }

    fn connect(&mut self, to: &Name, hello: &Hello, receives: &[Slot]) -> Result<ConnectionId, Errno> {
        let connection = self.new_qp();
        self.give_receives(connection, receives);
        self.out.push(Out::Connect { connection, to: *to, hello: *hello });
        Ok(connection)
    }

    fn accept(&mut self, connection: ConnectionId, hello: &Hello, receives: &[Slot]) -> Result<(), Errno> {
        self.give_receives(connection, receives);
        self.out.push(Out::Accept { connection, hello: *hello });
        Ok(())
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        let qp = self.qps.remove(&connection).expect("a connection ends once");
        self.out.push(Out::Disconnect { qp: Box::new(qp) });
    }
}
