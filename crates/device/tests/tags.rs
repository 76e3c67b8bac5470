//! Tag matching over the loopback interface: the list of tags and its operations, rendezvous, and what goes wrong.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{End, connect, create, open};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_device::{Context, Cq, Errno, Mr, Pd, Receives, Srq, SrqCreate, TagBuffer, TagCreate, TagOp, TagOpKind};
use weir_transport::{
    Access, AttrMask, Completion, Data, PostError, QpAttr, QpCaps, QpState, RecvWr, SendFlags, SendOp, SendWr, Service,
    Sge, Status, WcFlags, WcOpcode,
};
use weir_wire::tag::{Rvh, TMH_LEN, Tmh, fin};

const EAGER: u8 = 3;
const RENDEZVOUS: u8 = 1;
const NO_TAG: u8 = 0;
const APP_CTX: u32 = 77;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);
const MATCHED: WcFlags = WcFlags::TM_MATCH.union(WcFlags::TM_DATA_VALID);
const NONE: WcFlags = WcFlags::empty();

/// A receiver with a TM SRQ, and senders that are connected to it.
struct Rig {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    senders: Vec<End>,
    receivers: Vec<Arc<weir_device::Qp>>,
    memory: Memory,
}

struct Memory {
    addr: u64,
    len: usize,
    mr: Arc<Mr>,
}

impl Memory {
    /// Fresh pages, pinned or registered on demand.
    fn new(pd: &Arc<Pd>, len: usize, on_demand: bool) -> Memory {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let addr = start as u64;
        let mr = match on_demand {
            true => pd.reg_on_demand_mr(addr, len as u64, addr, ALL, false).unwrap(),
            false => pd.reg_mr(addr, len as u64, addr, ALL).unwrap(),
        };
        Memory { addr, len, mr }
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= self.len);
        Sge { addr: self.addr + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: within the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.addr as usize + at) as *mut u8, bytes.len()) };
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: within the mapping; the adapter writes to other bytes, if at all.
        (0..len).map(|i| unsafe { ((self.addr as usize + at + i) as *const u8).read_volatile() }).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.mr.dereg().unwrap();
        // SAFETY: mapped by `new`, and no region uses it any more.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, self.len) };
    }
}

impl Rig {
    fn new(senders: usize) -> Rig {
        Rig::with(senders, &TagCreate { max_tags: 8, max_ops: 16 })
    }

    fn with(senders: usize, tags: &TagCreate) -> Rig {
        let context = open();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None, 0).unwrap();
        let srq = pd.create_tm_srq(&SrqCreate { max_wr: 32, max_sge: 1, cookie: 0 }, tags, &cq).unwrap();
        let other = context.create_cq(16, None, 0).unwrap();
        let memory = Memory::new(&pd, 1 << 20, false);
        let pattern: Vec<u8> = (0..1 << 19).map(|i: u32| (i * 7 + (i >> 8)) as u8).collect();
        memory.fill(0, &pattern);
        let (mut ends, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..senders {
            let cq = context.create_cq(64, None, 0).unwrap();
            let sender = End { qp: pd.create_qp(&create(Service::Rc), &cq, &cq).unwrap(), cq };
            // The send queue belongs to the SRQ.
            let mut attributes = create(Service::Rc);
            attributes.caps = QpCaps { max_send_wr: 0, ..attributes.caps };
            let receiver = pd.create_qp_with(&attributes, &other, &other, Receives::Shared(srq.clone())).unwrap();
            connect(&context, &sender.qp, receiver.num());
            connect(&context, &receiver, sender.qp.num());
            ends.push(sender);
            receivers.push(receiver);
        }
        Rig { context, pd, cq, srq, senders: ends, receivers, memory }
    }

    fn op(&self, wr_id: u64, unexpected: Option<u32>, kind: TagOpKind<'_>) -> Result<u32, PostError> {
        self.srq.post_op(&TagOp { wr_id, signaled: true, unexpected, kind })
    }

    /// Adds a tag with a buffer, and polls its completion: whether a report is wanted.
    fn add(&self, wr_id: u64, tag: u64, mask: u64, at: usize, len: usize) -> (u32, bool) {
        let sges = [self.memory.sge(at, len)];
        let handle = self.op(1000 + wr_id, None, TagOpKind::Add(TagBuffer { wr_id, tag, mask, sges: &sges })).unwrap();
        let done = self.next();
        assert_eq!((done.wr_id, done.status, done.opcode), (1000 + wr_id, Status::Success, WcOpcode::TagAdd));
        (handle, done.flags == WcFlags::TM_SYNC_REQ)
    }

    fn sync(&self, count: u32) -> WcFlags {
        self.op(2000, Some(count), TagOpKind::Sync).unwrap();
        let done = self.next();
        assert_eq!((done.wr_id, done.status, done.opcode), (2000, Status::Success, WcOpcode::TagSync));
        done.flags
    }

    fn receive(&self, wr_id: u64, at: usize, len: usize) {
        self.srq.post(&RecvWr { wr_id, sges: &[self.memory.sge(at, len)] }).unwrap();
    }

    /// The next completion of the SRQ.
    fn next(&self) -> Completion {
        next(&self.cq)
    }

    /// The same, reduced.
    fn outcome(&self) -> (u64, Status, WcOpcode, WcFlags, u64) {
        let c = self.next();
        (c.wr_id, c.status, c.opcode, c.flags, c.tag)
    }

    fn is_quiet(&self) -> bool {
        self.rest().is_empty()
    }

    /// All completions that are still to come.
    fn rest(&self) -> Vec<Completion> {
        let until = Instant::now() + Duration::from_millis(50);
        let mut rest = Vec::new();
        while Instant::now() < until {
            self.cq.poll(1, |completion| rest.push(*completion)).unwrap();
        }
        rest
    }

    /// A state that needs no attributes.
    fn enter(&self, receiver: usize, qp_state: QpState) {
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        self.receivers[receiver].modify(&attr, AttrMask::STATE).unwrap();
    }

    /// The program has counted this many unexpected messages: a new tag is matched.
    fn matches_after(&self, unexpected: u32, from: usize) {
        assert_eq!(self.sync(unexpected), NONE);
        assert!(!self.add(99, 99, u64::MAX, 600_000, 1000).1);
        self.eager(from, 99, 610_000, 100);
        assert_eq!(self.outcome(), (99, Status::Success, WcOpcode::TagRecv, MATCHED, 99));
    }

    /// Sends a message of a header and the bytes that follow it at `at`.
    fn send(&self, from: usize, header: &[u8], at: usize, len: usize) {
        self.memory.fill(at, header);
        let data = [self.memory.sge(at, len)];
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
        self.senders[from].qp.post_send(&wr).unwrap();
        self.senders[from].qp.doorbell();
    }

    fn eager(&self, from: usize, tag: u64, at: usize, len: usize) {
        self.send(from, &header(EAGER, tag, &Rvh::default())[..TMH_LEN], at, len);
        assert_eq!(next(&self.senders[from].cq).status, Status::Success);
    }

    fn rvh(&self, at: usize, len: usize) -> Rvh {
        Rvh { va: self.memory.addr + at as u64, rkey: self.memory.mr.rkey(), len: len as u32 }
    }
}

fn header(operation: u8, tag: u64, rvh: &Rvh) -> [u8; 32] {
    let mut bytes = fin(&Tmh { app_ctx: APP_CTX, tag, ..Tmh::default() }, rvh);
    bytes[0] = operation;
    bytes
}

fn next(cq: &Cq) -> Completion {
    let (until, mut found) = (Instant::now() + Duration::from_secs(20), None);
    while found.is_none() {
        assert!(Instant::now() < until, "no completion");
        cq.poll(1, |completion| found = Some(*completion)).unwrap();
    }
    found.expect("just found")
}

#[test]
fn eager_messages_take_tags_by_mask_and_in_the_order_of_the_list() {
    let rig = Rig::new(2);
    for (wr_id, tag, mask) in [(1, 0x0500, 0xff00), (2, 0x0501, u64::MAX), (3, 0, 0)] {
        let _ = rig.add(wr_id, tag, mask, 600_000 + wr_id as usize * 10_000, 10_000);
    }
    // Each takes the oldest that matches, whichever connection it comes from.
    for (from, tag, wr_id, len) in [(0, 0x0501, 1, 100), (1, 0x0501, 2, 16), (0, 0x9999, 3, 4000)] {
        rig.eager(from, tag, 5000, len);
        let done = rig.next();
        assert_eq!((done.wr_id, done.flags, done.tag, done.app_ctx), (wr_id, MATCHED, tag, APP_CTX));
        assert_eq!((done.byte_len as usize, done.qp_num), (len - TMH_LEN, rig.receivers[from].num()));
        let stored = rig.memory.read(600_000 + wr_id as usize * 10_000, len - TMH_LEN);
        assert!(stored == rig.memory.read(5000 + TMH_LEN, len - TMH_LEN));
    }
    assert!(rig.is_quiet());
}

#[test]
fn tags_that_are_added_after_an_unexpected_message_wait_for_the_report() {
    let rig = Rig::new(1);
    (0..4).for_each(|id| rig.receive(500 + id, 700_000 + id as usize * 1000, 1000));
    assert!(!rig.add(1, 1, u64::MAX, 600_000, 1000).1);
    rig.eager(0, 2, 5000, 200);
    assert_eq!(rig.outcome(), (500, Status::Success, WcOpcode::TagRecv, NONE, 0));
    assert!(rig.memory.read(700_000, 200) == rig.memory.read(5000, 200), "with its header");
    // The tag is in the list before the program has seen the message.
    let (handle, wants_report) = rig.add(2, 2, u64::MAX, 610_000, 1000);
    assert!(wants_report);
    rig.eager(0, 2, 6000, 200);
    assert_eq!(rig.outcome(), (501, Status::Success, WcOpcode::TagRecv, NONE, 0));
    // Tags that were there before are matched.
    rig.eager(0, 1, 7000, 200);
    assert_eq!(rig.outcome(), (1, Status::Success, WcOpcode::TagRecv, MATCHED, 1));
    assert_eq!(rig.sync(1), WcFlags::TM_SYNC_REQ, "one of two messages");
    // A message without a tag is not counted.
    rig.send(0, &header(NO_TAG, 2, &Rvh::default()), 8000, 40);
    assert_eq!(rig.outcome(), (502, Status::Success, WcOpcode::NoTag, NONE, 0));
    rig.op(9, Some(2), TagOpKind::Delete(handle)).unwrap();
    assert_eq!(rig.outcome(), (9, Status::Success, WcOpcode::TagDel, NONE, 0));
    assert!(!rig.add(3, 2, u64::MAX, 620_000, 1000).1);
    rig.eager(0, 2, 9000, 200);
    assert_eq!(rig.outcome(), (3, Status::Success, WcOpcode::TagRecv, MATCHED, 2));
}

#[test]
fn a_tag_that_a_message_has_taken_cannot_be_deleted() {
    let rig = Rig::new(1);
    let (handle, _) = rig.add(1, 1, u64::MAX, 600_000, 1000);
    rig.eager(0, 1, 5000, 100);
    assert_eq!(rig.outcome().0, 1);
    for _ in 0..2 {
        rig.op(9, None, TagOpKind::Delete(handle)).unwrap();
        assert_eq!(rig.outcome(), (9, Status::TagError, WcOpcode::TagDel, NONE, 0));
    }
    // Without a completion, too.
    let silent = TagOp { wr_id: 1, signaled: false, unexpected: None, kind: TagOpKind::Delete(handle) };
    assert_eq!(rig.srq.post_op(&silent), Ok(0));
    assert!(rig.is_quiet());
}

#[test]
fn a_rendezvous_is_done_by_the_adapter() {
    for on_demand in [false, true] {
        let rig = Rig::new(1);
        let buffer = Memory::new(&rig.pd, 512 << 10, on_demand);
        for round in 0..3u64 {
            let len = 300_000 + round as usize;
            let sges = [buffer.sge(round as usize * 3, 100_000), buffer.sge(200_000, 300_000)];
            rig.op(5, None, TagOpKind::Add(TagBuffer { wr_id: round, tag: 7, mask: 0xff, sges: &sges })).unwrap();
            assert_eq!(rig.outcome().2, WcOpcode::TagAdd);
            let fin_at = 900_000;
            rig.senders[0].qp.post_recv(&RecvWr { wr_id: 8, sges: &[rig.memory.sge(fin_at, 32)] }).unwrap();
            let rvh = rig.rvh(1000 + round as usize, len);
            rig.send(0, &header(RENDEZVOUS, 0x107, &rvh), 600_000, 32);
            let success = Status::Success;
            assert_eq!(rig.outcome(), (round, success, WcOpcode::TagRecv, WcFlags::TM_MATCH, 0x107));
            let done = rig.next();
            assert_eq!((done.wr_id, done.status, done.flags), (round, success, WcFlags::TM_DATA_VALID));
            assert_eq!((done.byte_len as usize, done.tag), (len, 0));
            let mut opcodes = [(); 2].map(|()| next(&rig.senders[0].cq).opcode as u8);
            opcodes.sort_unstable();
            assert_eq!(opcodes, [WcOpcode::Send as u8, WcOpcode::Recv as u8]);
            assert_eq!(rig.memory.read(fin_at, 32), header(2, 0x107, &rvh));
            let stored = [buffer.read(round as usize * 3, 100_000), buffer.read(200_000, len - 100_000)].concat();
            assert!(stored == rig.memory.read(1000 + round as usize, len), "{on_demand} {round}");
        }
        assert!(rig.is_quiet());
    }
}

#[test]
fn a_buffer_that_is_too_short_for_a_rendezvous_is_left_to_the_program() {
    let rig = Rig::new(1);
    let _ = rig.add(1, 1, u64::MAX, 600_000, 99);
    let message = header(RENDEZVOUS, 1, &rig.rvh(1000, 100));
    rig.send(0, &message, 610_000, 32);
    assert_eq!(rig.outcome(), (1, Status::RendezvousIncomplete, WcOpcode::TagRecv, MATCHED, 1));
    assert_eq!(rig.memory.read(600_000, 32), message);
    assert_eq!(rig.receivers[0].query().qp_state, QpState::Rts);
}

#[test]
fn a_failed_message_ends_its_connection_and_no_other() {
    let rig = Rig::new(4);
    let rvh = Rvh { rkey: 0xbad, ..rig.rvh(0, 100) };
    let cases: [(&[u8], usize, Status); 3] = [
        (&header(RENDEZVOUS, 1, &rvh), 32, Status::RemoteAccess),
        (&header(EAGER, 1, &Rvh::default()), 1017, Status::LocalLength),
        (&header(EAGER, 1, &Rvh::default()), 20_000, Status::LocalLength),
    ];
    for (from, (header, len, status)) in cases.into_iter().enumerate() {
        let _ = rig.add(from as u64, 1, u64::MAX, 600_000, 1000);
        rig.send(from, header, 610_000, len);
        let mut done = rig.next();
        if done.flags == WcFlags::TM_MATCH {
            assert_eq!((done.wr_id, done.status), (from as u64, Status::Success));
            done = rig.next();
        }
        assert_eq!((done.wr_id, done.status, done.opcode), (from as u64, status, WcOpcode::TagRecv));
        assert_eq!(rig.receivers[from].query().qp_state, QpState::Error);
    }
    let _ = rig.add(9, 1, u64::MAX, 600_000, 1000);
    rig.eager(3, 1, 610_000, 100);
    assert_eq!(rig.outcome(), (9, Status::Success, WcOpcode::TagRecv, MATCHED, 1));
    assert!(rig.is_quiet());
}

/// The program never counts a message that fails, and a report of fewer messages would not let the list match new tags.
#[test]
fn an_unexpected_message_that_fails_is_not_counted() {
    let rig = Rig::new(3);
    let message = header(EAGER, 5, &Rvh::default());
    let invalidate = SendOp::SendInvalidate { rkey: 0xbad };
    let cases = [(SendOp::Send, 10_000, Status::LocalLength), (invalidate, 30_000, Status::WrFlushed)];
    for (from, (op, room, status)) in cases.into_iter().enumerate() {
        rig.receive(500, 700_000, room);
        rig.memory.fill(5000, &message[..TMH_LEN]);
        let data = [rig.memory.sge(5000, 30_000)];
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
        rig.senders[from].qp.post_send(&wr).unwrap();
        rig.senders[from].qp.doorbell();
        assert_eq!(rig.outcome(), (500, status, WcOpcode::TagRecv, NONE, 0));
        rig.matches_after(0, 2);
    }
}

/// The same for a QP that the program ends inside such a message, of which the sender sends no more.
#[test]
fn an_unexpected_message_that_ends_with_its_qp_is_not_counted() {
    for end in [Some(QpState::Error), Some(QpState::Reset), None] {
        let rig = Rig::new(2);
        // More than the sender's window.
        for id in 0..12 {
            rig.receive(500 + id, 550_000, 450_000);
            rig.send(0, &header(EAGER, 5, &Rvh::default())[..TMH_LEN], 0, 450_000);
        }
        let stop = QpAttr { qp_state: QpState::Error, ..QpAttr::default() };
        rig.senders[0].qp.modify(&stop, AttrMask::STATE).unwrap();
        let mut all = rig.rest();
        match end {
            Some(state) => rig.enter(0, state),
            None => rig.receivers[0].destroy().unwrap(),
        }
        all.extend(rig.rest());
        let seen = all.iter().filter(|completion| completion.status == Status::Success).count();
        rig.matches_after(seen as u32, 1);
    }
}

#[test]
fn a_rendezvous_under_way_completes_when_its_qp_ends() {
    for end in [Some(QpState::Error), Some(QpState::Reset), None] {
        let rig = Rig::new(1);
        let _ = rig.add(1, 1, u64::MAX, 600_000, 1000);
        // The adapter's requests do not begin in this state.
        rig.enter(0, QpState::Sqd);
        rig.send(0, &header(RENDEZVOUS, 1, &rig.rvh(1000, 100)), 610_000, 32);
        assert_eq!(rig.outcome(), (1, Status::Success, WcOpcode::TagRecv, WcFlags::TM_MATCH, 1));
        match end {
            Some(state) => rig.enter(0, state),
            None => rig.receivers[0].destroy().unwrap(),
        }
        assert_eq!(rig.outcome(), (1, Status::WrFlushed, WcOpcode::TagRecv, NONE, 0), "{end:?}");
        assert!(rig.is_quiet());
    }
}

/// The engine's thread sleeps when the operation is posted, and must wake up for the event. While the program polls another
/// CQ, these polls find no other work.
#[test]
fn an_operation_raises_the_event_of_a_moderated_queue() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_channel().unwrap();
    let cq = context.create_cq(16, Some(channel.clone()), 5).unwrap();
    let sizes = SrqCreate { max_wr: 1, max_sge: 1, cookie: 0 };
    let srq = pd.create_tm_srq(&sizes, &TagCreate { max_tags: 8, max_ops: 16 }, &cq).unwrap();
    cq.moderate(100, 1000).unwrap();
    let other = context.create_cq(1, None, 0).unwrap();
    let poll_other_until = |until: &dyn Fn() -> bool| {
        let at_most = Instant::now() + Duration::from_secs(20);
        while !until() && Instant::now() < at_most {
            assert_eq!(other.poll(1, |_| {}), Ok(0));
        }
    };
    let is_raised = |timeout| {
        let mut waits = libc::pollfd { fd: channel.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element, on the stack.
        unsafe { libc::poll(&raw mut waits, 1, timeout) == 1 }
    };
    for wr_id in 0..4 {
        cq.arm(false).unwrap();
        let begun = Instant::now();
        let polls = wr_id % 2 == 1;
        match polls {
            true => poll_other_until(&|| begun.elapsed() > Duration::from_millis(50)),
            false => std::thread::sleep(Duration::from_millis(50)),
        }
        srq.post_op(&TagOp { wr_id, signaled: true, unexpected: None, kind: TagOpKind::Sync }).unwrap();
        if polls {
            poll_other_until(&|| is_raised(0));
        }
        assert!(is_raised(if polls { 0 } else { 20_000 }), "no event, {polls}");
        let mut count = 0u64;
        // SAFETY: eight bytes onto the stack.
        assert_eq!(unsafe { libc::read(channel.fd(), (&raw mut count).cast(), 8) }, 8);
        assert_eq!(channel.pop_event(), Some(5));
        assert_eq!(next(&cq).wr_id, wr_id);
    }
}

#[test]
fn an_operation_that_overflows_the_queue_ends_its_qps() {
    let rig = Rig::with(1, &TagCreate { max_tags: 8, max_ops: 512 });
    for wr_id in 0..u64::from(rig.cq.cqe()) + 1 {
        rig.op(wr_id, None, TagOpKind::Sync).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(20);
    while rig.receivers[0].query().qp_state != QpState::Error {
        assert!(Instant::now() < until, "it goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What became of its tags, the program learns even when it has destroyed the QP.
#[test]
fn completions_of_tags_outlive_their_qp() {
    let mut rig = Rig::new(1);
    let _ = rig.add(1, 1, u64::MAX, 600_000, 1000);
    rig.eager(0, 1, 5000, 100);
    for qp in rig.receivers.drain(..) {
        qp.destroy().unwrap();
    }
    assert_eq!(rig.outcome(), (1, Status::Success, WcOpcode::TagRecv, MATCHED, 1));
}

#[test]
fn operations_and_sizes_are_limited() {
    let rig = Rig::with(0, &TagCreate { max_tags: 2, max_ops: 3 });
    let sges = [rig.memory.sge(0, 1); 5];
    let add = |count| TagOpKind::Add(TagBuffer { wr_id: 1, tag: 1, mask: 1, sges: &sges[..count] });
    assert_eq!(rig.op(1, None, add(5)), Err(PostError::TooManySges));
    assert!(rig.op(1, None, add(4)).is_ok() && rig.op(2, None, add(0)).is_ok());
    assert_eq!(rig.op(3, None, add(0)), Err(PostError::QueueFull), "the list is full");
    assert_eq!(rig.op(3, None, TagOpKind::Delete(77)), Err(PostError::Operation));
    rig.op(3, None, TagOpKind::Sync).unwrap();
    assert_eq!(rig.op(4, None, TagOpKind::Sync), Err(PostError::QueueFull), "three completions are not polled");
    assert_eq!([rig.next().wr_id, rig.next().wr_id, rig.next().wr_id], [1, 2, 3]);
    for _ in 0..10 {
        assert_eq!(rig.sync(0), NONE);
    }
    let sizes = SrqCreate { max_wr: 1, max_sge: 1, cookie: 0 };
    let limits = rig.context.limits();
    for (max_tags, max_ops) in [(0, 1), (1, 0), (u32::from(limits.max_tags) + 1, 1), (1, limits.max_tag_ops + 1)] {
        let refused = rig.pd.create_tm_srq(&sizes, &TagCreate { max_tags, max_ops }, &rig.cq).err();
        assert_eq!(refused, Some(Errno(libc::EINVAL)));
    }
    // RC only.
    for service in [Service::Uc, Service::Ud] {
        let receives = Receives::Shared(rig.srq.clone());
        let refused = rig.pd.create_qp_with(&create(service), &rig.cq, &rig.cq, receives).err();
        assert_eq!(refused, Some(Errno(libc::EOPNOTSUPP)));
    }
    let plain = rig.pd.create_srq(&sizes, None).unwrap();
    let sync = TagOp { wr_id: 1, signaled: true, unexpected: None, kind: TagOpKind::Sync };
    assert_eq!(plain.post_op(&sync), Err(PostError::Operation));
    assert_eq!(rig.cq.destroy(), Err(Errno(libc::EBUSY)), "the SRQ uses it");
    rig.srq.destroy().unwrap();
    rig.cq.destroy().unwrap();
}
