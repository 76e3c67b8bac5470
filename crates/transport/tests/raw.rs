//! Raw QPs: each Ethernet frame is a message, without headers, acknowledgements or peer.

use std::sync::Arc;
use weir_transport::testing::{Memory, Region, TestHost};
use weir_transport::{
    Access, AttrMask, Data, Egress, Instant, Limits, Outgoing, Payload, PostError, Profile, Progress, Qp, QpAttr,
    QpCaps, QpInit, QpState, Queue, RecvWr, Refused, SendFlags, SendOp, SendWr, Service, Sge, Status, Tuning,
};

const BASE: u64 = 0x1000;
const KEY: u32 = 7;
const LIMIT: usize = 100;

/// Takes frames, as many as there is room for.
struct Frames {
    lengths: Vec<usize>,
    room: usize,
}

impl Egress for Frames {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        if self.lengths.len() == self.room {
            return Err(Refused::Full);
        }
        assert!(matches!(packet.payload, Payload::Gather { .. }) && packet.to.is_none());
        self.lengths.push(packet.payload.len());
        Ok(())
    }
}

fn setup() -> (Qp, TestHost) {
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 };
    let init = QpInit { qp_num: 5, service: Service::Raw, caps, sq_sig_all: true };
    let mut qp = Qp::new(init, Arc::new(Profile::ideal()), Tuning::default());
    qp.set_ethernet_limit(LIMIT);
    let mut memory = Memory::new(BASE, 1000);
    memory.register(Region { key: KEY, addr: BASE, len: 1000, access: Access::LOCAL_WRITE, mapped: true }, |_| 0);
    (qp, TestHost::new(memory))
}

fn modify(qp: &mut Qp, host: &mut TestHost, state: QpState, mask: AttrMask) -> bool {
    let attr = QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() };
    qp.modify(Instant(0), &attr, mask | AttrMask::STATE, host).is_ok()
}

fn sge(at: u64, length: u32) -> Sge {
    Sge { addr: BASE + at, length, lkey: KEY }
}

fn send(qp: &mut Qp, wr_id: u64, length: u32) -> Result<(), PostError> {
    let sges = [sge(0, length)];
    qp.post_send(&SendWr { wr_id, op: SendOp::Send, flags: SendFlags::empty(), data: Data::Gather(&sges) })
}

fn poll(qp: &mut Qp, host: &mut TestHost, frames: &mut Frames) -> Progress {
    let limits = Limits { request_bytes: usize::MAX, read_bytes: usize::MAX };
    qp.poll_transmit(Instant(0), limits, host, frames)
}

#[test]
fn frames_are_complete_when_they_have_left() {
    let (mut qp, mut host) = setup();
    assert!(!modify(&mut qp, &mut host, QpState::Init, AttrMask::PORT | AttrMask::QKEY), "no Q_Key");
    assert!(modify(&mut qp, &mut host, QpState::Init, AttrMask::PORT));
    assert!(modify(&mut qp, &mut host, QpState::Rtr, AttrMask::empty()));
    assert_eq!(send(&mut qp, 1, 60), Err(PostError::State));
    assert!(modify(&mut qp, &mut host, QpState::Rts, AttrMask::empty()));
    let write = SendOp::Write { remote_addr: 0, rkey: 0 };
    let wr = SendWr { wr_id: 0, op: write, flags: SendFlags::empty(), data: Data::Gather(&[]) };
    assert_eq!(qp.post_send(&wr), Err(PostError::Operation));
    for (wr_id, length) in [(1, 60), (2, LIMIT as u32), (3, 60)] {
        assert_eq!(send(&mut qp, wr_id, length), Ok(()));
    }
    let mut frames = Frames { lengths: Vec::new(), room: 2 };
    assert_eq!(poll(&mut qp, &mut host, &mut frames), Progress::Full);
    frames.room = 9;
    assert_eq!(poll(&mut qp, &mut host, &mut frames), Progress::Idle);
    assert_eq!(frames.lengths, [60, LIMIT, 60]);
    assert_eq!(host.outcomes(Queue::Send), [1, 2, 3].map(|id| (id, Status::Success)));
    assert_eq!((qp.poll_timeout(), qp.in_flight().request_bytes), (None, 0));
    assert_eq!(send(&mut qp, 4, LIMIT as u32 + 1), Ok(()));
    poll(&mut qp, &mut host, &mut frames);
    assert_eq!((host.outcomes(Queue::Send)[3], qp.state()), ((4, Status::LocalLength), QpState::Sqe));
}

#[test]
fn frames_take_receives_in_order_and_are_dropped_without() {
    let (mut qp, mut host) = setup();
    let frame = [9; 60];
    assert!(modify(&mut qp, &mut host, QpState::Init, AttrMask::PORT));
    for (wr_id, length) in [(1, 60), (2, 59), (3, 500)] {
        qp.post_recv(&RecvWr { wr_id, sges: &[sge(wr_id * 100, 10), sge(wr_id * 100 + 10, length - 10)] }).unwrap();
    }
    qp.handle_ethernet(&frame, &mut host);
    assert!(host.journal.is_empty(), "before RTR");
    assert!(modify(&mut qp, &mut host, QpState::Rtr, AttrMask::empty()));
    for _ in 0..4 {
        qp.handle_ethernet(&frame, &mut host);
    }
    let expected = [(1, Status::Success), (2, Status::LocalLength), (3, Status::Success)];
    assert_eq!(host.outcomes(Queue::Receive), expected);
    let first = host.completions(Queue::Receive)[0];
    assert_eq!((first.byte_len, first.src_qp, first.flags.bits()), (60, 0, 0));
    assert_eq!(host.memory.borrow().bytes(BASE + 300, 60), frame);
}
