//! A [`Port`] over a simulated adapter: what an endpoint asks for takes the time of the process, and then happens.

use super::costs;
use super::memory::{Memory, PAGE};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use weir_msg::{ConnectionId, Errno, Hello, Local, Name, Port, Registered, Registration, Slot, Update, Work};
use weir_sim::{Backing, HostId, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Instant, RecvWr, SendFlags, SendOp, SendWr, Sge};

const EOPNOTSUPP: Errno = Errno(95);

/// What one process has of its adapter.
#[derive(Debug)]
pub struct Ports {
    pub rank: usize,
    pub host: HostId,
    /// The hosts of all processes.
    pub hosts: Vec<HostId>,
    pub memory: Memory,
    /// The process is busy until then.
    pub clock: Instant,
    /// The adapter of each connection.
    pub qps: Vec<QpId>,
    /// Work requests that are posted as soon as the process has come so far.
    pub posts: VecDeque<Post>,
    /// Pages that become present, and when, in order of time.
    coming: VecDeque<(Instant, Range<u64>)>,
    /// Connections that this process asks for.
    pub dials: Vec<Dial>,
    /// What this process has said of itself when it accepted.
    pub accepted: Option<Hello>,
    slots: Region,
    slot_size: u64,
    free_slots: Vec<u32>,
    setup: QpSetup,
}

/// A work request that has not been posted.
#[derive(Debug)]
pub struct Post {
    pub qp: QpId,
    id: u64,
    flags: SendFlags,
    op: SendOp,
    data: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Inline(Vec<u8>),
    Memory(Sge),
}

/// A connection that a process asks for: its own number, and the QP of the other end.
#[derive(Debug)]
pub struct Dial {
    pub connection: ConnectionId,
    pub to: Name,
    pub far: QpId,
    pub hello: Hello,
}

/// Timers of a process.
pub const WAKES: u64 = 0;
pub const POSTS: u64 = 1;
pub const PAGES_COME: u64 = 2;
pub const PAGES_GO: u64 = 3;

/// The token of a timer.
pub fn token(rank: usize, kind: u64) -> u64 {
    (rank as u64) << 2 | kind
}

/// The name of a process.
pub fn name(rank: usize) -> Name {
    Name::new(&(rank as u32).to_be_bytes()).expect("a short name")
}

/// The process of that name.
pub fn rank_of(name: &Name) -> usize {
    name.as_bytes().iter().fold(0, |rank, byte| rank << 8 | usize::from(*byte))
}

impl Ports {
    /// A process with room for so many bounce buffers.
    pub fn new(
        sim: &mut Simulation,
        rank: usize,
        hosts: &[HostId],
        memory: Memory,
        slots: (u32, u32),
        receives: u16,
    ) -> Ports {
        let (count, size) = slots;
        let bytes = vec![0; count as usize * size as usize];
        Ports {
            rank,
            host: hosts[rank],
            hosts: hosts.to_vec(),
            memory,
            clock: Instant(0),
            qps: vec![],
            posts: VecDeque::new(),
            coming: VecDeque::new(),
            dials: vec![],
            accepted: None,
            slots: sim.register(hosts[rank], Backing::Bytes(bytes), Paging::Pinned),
            slot_size: size.into(),
            free_slots: (0..count).rev().collect(),
            setup: costs::qp(receives),
        }
    }

    /// The process is busy.
    pub fn spend(&mut self, time: Duration) {
        self.clock = self.clock + time;
    }

    /// Adds the near end of a connection.
    pub fn add(&mut self, qp: QpId) -> ConnectionId {
        self.qps.push(qp);
        ConnectionId(self.qps.len() as u32 - 1)
    }

    /// Posts the oldest work request that waits.
    ///
    /// # Panics
    /// If the endpoint posts more than the send queue holds.
    pub fn post_next(&mut self, sim: &mut Simulation) {
        let Some(Post { qp, id, flags, op, data }) = self.posts.pop_front() else { return };
        let sges;
        let data = match &data {
            Bytes::Inline(bytes) => Data::Inline(bytes),
            Bytes::Memory(sge) => {
                sges = [*sge];
                Data::Gather(&sges)
            }
        };
        sim.post_send(qp, &SendWr { wr_id: id, op, flags, data }).expect("the send queue has room");
    }

    /// The next pages are present.
    pub fn pages_come(&mut self, sim: &mut Simulation) {
        if let Some((_, range)) = self.coming.pop_front() {
            sim.set_present(&self.memory.region, range, true);
        }
    }

    fn local(&self, local: Local) -> Bytes {
        Bytes::Memory(match local {
            Local::Slot { slot, len } => self.slots.sge(u64::from(slot.0) * self.slot_size, len),
            Local::Memory { addr, len, lkey } => Sge { addr, length: len, lkey },
        })
    }
}

/// The adapter of a process, while its endpoint runs.
pub struct SimPort<'a> {
    pub sim: &'a mut Simulation,
    pub own: &'a mut Ports,
}

impl SimPort<'_> {
    fn receive_into(&mut self, qp: QpId, slot: Slot) {
        let sges = [self.own.slots.sge(u64::from(slot.0) * self.own.slot_size, self.own.slot_size as u32)];
        let wr = RecvWr { wr_id: slot.0.into(), sges: &sges };
        self.sim.post_recv(qp, &wr).expect("the receive queue has room");
    }

    fn range(&self, slot: Slot) -> Range<usize> {
        let at = slot.0 as usize * self.own.slot_size as usize;
        at..at + self.own.slot_size as usize
    }
}

impl Port for SimPort<'_> {
    /// All memory of a process is one region of the simulator. A new registration has no pages.
    fn register(&mut self, addr: u64, len: u64, how: Registration) -> Result<Registered, Errno> {
        self.own.spend(costs::register(len.div_ceil(PAGE), !how.on_demand));
        let region = self.own.memory.region;
        if how.on_demand {
            self.sim.set_present(&region, self.own.memory.offsets(addr, len), false);
        }
        Ok(Registered { lkey: region.key, rkey: region.key })
    }

    fn deregister(&mut self, _registered: Registered) {}

    fn prefetch(&mut self, _lkey: u32, addr: u64, len: u64, _write: bool) {
        let begins = self.own.clock;
        self.own.spend(costs::PREFETCH);
        let Ports { memory, coming, rank, .. } = &mut *self.own;
        let whole = memory.offsets(addr / PAGE * PAGE, addr % PAGE + len);
        let (region, sim) = (memory.region, &mut *self.sim);
        let missing: Vec<u64> = whole.step_by(PAGE as usize).filter(|&at| !sim.is_present(&region, at)).collect();
        let mut due = begins + costs::FIRST_PAGES;
        for (nth, chunk) in missing.chunks(costs::CHUNK as usize).enumerate() {
            if nth > 0 {
                due = due + costs::PREFETCHED_PAGE * chunk.len() as u32;
            }
            let at = coming.partition_point(|(other, _)| *other <= due);
            coming.insert(at, (due, chunk[0]..chunk[chunk.len() - 1] + 1));
            sim.set_timer(due, token(*rank, PAGES_COME));
        }
    }

    fn invalidations(&mut self) -> Option<u64> {
        self.own.spend(costs::STATISTICS);
        Some(self.own.memory.taken)
    }

    fn new_slot(&mut self) -> Option<Slot> {
        self.own.free_slots.pop().map(Slot)
    }

    fn free_slot(&mut self, slot: Slot) {
        self.own.free_slots.push(slot.0);
    }

    fn slot(&mut self, slot: Slot) -> &mut [u8] {
        let range = self.range(slot);
        &mut self.sim.bytes_mut(&self.own.slots)[range]
    }

    // The program's memory has no contents: a copy takes its time only.
    fn copy_to_slot(&mut self, _addr: u64, len: usize, _slot: Slot, _at: usize) {
        self.own.spend(costs::copy(len));
    }

    fn copy_from_slot(&mut self, _slot: Slot, _at: usize, _addr: u64, len: usize) {
        self.own.spend(costs::copy(len));
    }

    fn load(&mut self, _addr: u64, into: &mut [u8]) {
        self.own.spend(costs::copy(into.len()));
    }

    fn store(&mut self, _addr: u64, bytes: &[u8]) {
        self.own.spend(costs::copy(bytes.len()));
    }

    fn update(&mut self, _update: &Update) -> Result<u64, Errno> {
        Err(EOPNOTSUPP)
    }

    fn post_send(&mut self, to: ConnectionId, id: u64, signaled: bool, work: Work<'_>) -> Result<(), Errno> {
        self.own.spend(costs::POST);
        let write = |remote_addr: u64, rkey: u32, immediate: Option<u32>| match immediate {
            Some(imm) => SendOp::WriteImm { remote_addr, rkey, imm },
            None => SendOp::Write { remote_addr, rkey },
        };
        let (op, data) = match work {
            Work::Send(local) => (SendOp::Send, self.own.local(local)),
            Work::SendInline(bytes) => (SendOp::Send, Bytes::Inline(bytes.to_vec())),
            Work::Write { local, addr, rkey, immediate } => (write(addr, rkey, immediate), self.own.local(local)),
            Work::WriteInline { bytes, addr, rkey, immediate } => {
                (write(addr, rkey, immediate), Bytes::Inline(bytes.to_vec()))
            }
            Work::Read { local, addr, rkey } => (SendOp::Read { remote_addr: addr, rkey }, self.own.local(local)),
        };
        let inline = if matches!(data, Bytes::Inline(_)) { SendFlags::INLINE } else { SendFlags::empty() };
        let flags = inline | if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let qp = self.own.qps[to.0 as usize];
        self.own.posts.push_back(Post { qp, id, flags, op, data });
        self.sim.set_timer(self.own.clock, token(self.own.rank, POSTS));
        Ok(())
    }

    fn post_receive(&mut self, on: ConnectionId, slot: Slot) -> Result<(), Errno> {
        self.own.spend(costs::POST_RECEIVE);
        self.receive_into(self.own.qps[on.0 as usize], slot);
        Ok(())
    }

    fn connect(&mut self, to: &Name, hello: &Hello, receives: &[Slot]) -> Result<ConnectionId, Errno> {
        let peer = self.own.hosts[rank_of(to)];
        let [near, far] = self.sim.connect(self.own.host, peer, &self.own.setup);
        receives.iter().for_each(|&slot| self.receive_into(near, slot));
        let connection = self.own.add(near);
        self.own.dials.push(Dial { connection, to: *to, far, hello: *hello });
        Ok(connection)
    }

    fn accept(&mut self, connection: ConnectionId, hello: &Hello, receives: &[Slot]) -> Result<(), Errno> {
        let qp = self.own.qps[connection.0 as usize];
        receives.iter().for_each(|&slot| self.receive_into(qp, slot));
        self.own.accepted = Some(*hello);
        Ok(())
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.sim.destroy(self.own.qps[connection.0 as usize]);
    }
}
