//! Payload that is sent in place, directly from application memory, has left before its work request completes.

mod common;

use common::{End, open, pair};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use weir_device::{Mr, Pd, Qp};
use weir_transport::{Access, AttrMask, Data, QpAttr, QpState, SendFlags, SendOp, SendWr, Sge, Status};

const SENT: u8 = 0x11;
const USED_AGAIN: u8 = 0xee;

/// The program moves a QP to the error state in the middle of a burst, sees its work requests flushed, and reuses the
/// memory: no byte of the new contents may reach the peer.
#[test]
fn memory_of_a_flushed_work_request_is_not_read_any_more() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let (source, target) = (Memory::new(&pd, 128 << 10), Memory::new(&pd, 128 << 10));
    let error = QpAttr { qp_state: QpState::Error, ..QpAttr::default() };
    let mut flushed = 0;
    for round in 0..400 {
        source.fill(SENT);
        let [a, b] = pair(&pd, &context);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..8).for_each(|id| post_write(&a.qp, id, &[source.sge()], target.addr(), target.mr.rkey()));
                a.qp.doorbell();
            });
            std::thread::sleep(Duration::from_micros(round % 40 * 5));
            a.qp.modify(&error, AttrMask::STATE).unwrap();
            let last = wait_for(&a, 7);
            source.fill(USED_AGAIN);
            flushed += u32::from(last == Status::WrFlushed);
        });
        let_arrive(&b);
        assert_eq!(target.find(USED_AGAIN), None, "in round {round}");
    }
    assert!(flushed > 50, "the QP was ended too late for this test: {flushed}");
}

/// The same when a work request fails in the middle of a burst because part of its memory is not registered any more.
#[test]
fn memory_of_a_denied_work_request_is_not_read_any_more() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let (source, target) = (Memory::new(&pd, 2 << 20), Memory::new(&pd, (2 << 20) + 4096));
    let mut denied = 0;
    for round in 0..200 {
        source.fill(SENT);
        let end = Memory::new(&pd, 4096);
        let [a, b] = pair(&pd, &context);
        post_write(&a.qp, 7, &[source.sge(), end.sge()], target.addr(), target.mr.rkey());
        a.qp.doorbell();
        end.mr.dereg().unwrap();
        let ended = AtomicBool::new(false);
        let status = std::thread::scope(|scope| {
            // Another thread drives the engine, so that this thread sees the completion as soon as it is visible.
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    b.cq.poll(1, |_| {}).unwrap();
                }
            });
            let status = wait_for(&a, 7);
            source.fill(USED_AGAIN);
            ended.store(true, Ordering::Relaxed);
            status
        });
        denied += u32::from(status == Status::LocalProtection);
        let_arrive(&b);
        assert_eq!(target.find(USED_AGAIN), None, "in round {round}: {status:?}");
    }
    assert!(denied > 50, "the region ended too late for this test: {denied}");
}

/// Registered memory that the engine and the test access concurrently.
struct Memory {
    bytes: Vec<AtomicU8>,
    mr: Arc<Mr>,
}

impl Memory {
    fn new(pd: &Arc<Pd>, len: usize) -> Memory {
        let bytes: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
        let addr = bytes.as_ptr().addr() as u64;
        let mr = pd.reg_mr(addr, len as u64, addr, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        Memory { bytes, mr }
    }

    fn addr(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.addr(), length: self.bytes.len() as u32, lkey: self.mr.lkey() }
    }

    fn fill(&self, value: u8) {
        self.bytes.iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
    }

    fn find(&self, value: u8) -> Option<usize> {
        self.bytes.iter().position(|byte| byte.load(Ordering::Relaxed) == value)
    }
}

/// Posts an RDMA WRITE without ringing the doorbell.
fn post_write(qp: &Qp, wr_id: u64, sges: &[Sge], remote_addr: u64, rkey: u32) {
    let op = SendOp::Write { remote_addr, rkey };
    qp.post_send(&SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(sges) }).unwrap();
}

/// Polls until this work request has completed.
fn wait_for(end: &End, wr_id: u64) -> Status {
    let mut found = None;
    while found.is_none() {
        let look = |completion: &weir_transport::Completion| {
            found = found.or((completion.wr_id == wr_id).then_some(completion.status));
        };
        end.cq.poll(16, look).unwrap();
    }
    found.expect("just found")
}

/// Receives packets that are still in flight.
fn let_arrive(end: &End) {
    let until = Instant::now() + Duration::from_millis(2);
    while Instant::now() < until {
        end.cq.poll(1, |_| {}).unwrap();
    }
}
