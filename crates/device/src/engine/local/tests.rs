use super::*;
use crate::engine::peers::hello::Hello;
use crate::engine::testing::{Rig, connected, exchange};
use crate::local::endpoint::Side;
use crate::local::segment::Segment;
use crate::os::clock;
use crate::shared::qp::QpShared;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_transport::{Data, SendOp, Sge, Status};
use weir_wire::{Bth, Headers, Opcode, Operation, Psn};

const TOKEN: u64 = 9;

fn rigs() -> (Rig, Rig) {
    (Rig::sharing(5), Rig::sharing(6))
}

/// Gives two engines with connected QPs a ring, as their threads would.
fn join(a: &mut Rig, b: &mut Rig, qps: &[Arc<QpShared>; 2]) {
    join_as(a, b, qps, TOKEN);
}

fn join_as(a: &mut Rig, b: &mut Rig, qps: &[Arc<QpShared>; 2], token: u64) {
    let (made, file) = Segment::create().unwrap();
    let taken = Segment::open(&file).unwrap();
    let sockets = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    for (rig, qp, segment, side, socket) in
        [(a, &qps[0], made, Side::Maker, sockets.0), (b, &qps[1], taken, Side::Taker, sockets.1)]
    {
        let peer = rig.engine.peers.get(rig.entry(qp).peer.unwrap());
        let (key, incarnation) = (peer.key(), peer.incarnation.unwrap());
        let made = Made { endpoint: Endpoint::new(segment, side), socket, token };
        let added = rig.engine.add_ring(&rig.state, &key, incarnation, made, clock::now());
        assert!(added.is_ok());
        rig.take_bursts();
    }
}

/// Turns of both sides, without what they have sent by UDP.
fn turns(a: &mut Rig, b: &mut Rig) {
    for _ in 0..20 {
        a.turn();
        b.turn();
    }
}

fn write_to(to: &Sge) -> SendOp {
    SendOp::Write { remote_addr: to.addr, rkey: to.lkey }
}

/// Posts a WRITE of two packets at `a`, as work request 1. Returns its source, its target at `b`, and the
/// SGEs of both.
fn post_write(a: &mut Rig, b: &mut Rig, qps: &[Arc<QpShared>; 2]) -> (Vec<u8>, Vec<u8>, [Sge; 2]) {
    let (mut source, mut target) = (vec![7u8; 5000], vec![0u8; 5000]);
    let (from, to) = (a.register(&mut source), b.register(&mut target));
    a.post_send(&qps[0], 1, write_to(&to), Data::Gather(&[from]));
    (source, target, [from, to])
}

fn statuses(rig: &Rig) -> Vec<(u64, Status)> {
    rig.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

/// The connection of a rig's ring ends.
fn end(rig: &mut Rig) {
    rig.engine.end_ring(&rig.state, TOKEN, clock::now());
}

fn a_of(rig: &Rig) -> std::net::SocketAddr {
    (rig.address, rig.port).into()
}

/// The first word of the next record that a rig's consumer reads.
fn next_prefix(writer: &Rig) -> &AtomicU64 {
    let ring = writer.engine.rings.rings[0].as_ref().unwrap();
    ring.endpoint.producer.next_prefix()
}

#[test]
fn packets_take_the_ring_and_no_datagram_leaves() {
    for service in [Service::Rc, Service::Uc] {
        let (mut a, mut b) = rigs();
        let qps = connected(&mut a, &mut b, service);
        join(&mut a, &mut b, &qps);
        let (mut source, mut target) = (vec![7u8; 100_000], vec![0u8; 100_000]);
        let (from, to) = (a.register(&mut source), b.register(&mut target));
        a.post_send(&qps[0], 1, write_to(&to), Data::Gather(&[from]));
        turns(&mut a, &mut b);
        assert!(target == source, "{service:?}");
        assert_eq!(statuses(&a), [(1, Status::Success)]);
        assert!(a.take_sent().is_empty() && b.take_sent().is_empty());
        let sent = a.engine.shown.traffic.bytes_sent.get();
        assert!(sent > 100_000 && b.engine.shown.traffic.bytes_received.get() >= sent, "both sides count");
    }
}

#[test]
fn a_packet_needs_the_tag_and_a_qp_of_its_peer() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    let mut third = Rig::sharing(7);
    let others = connected(&mut third, &mut b, Service::Rc);
    let right = |rig: &Rig, qp: &Arc<QpShared>| rig.entry(qp).connection.tag;
    let (tag, of_other) = (right(&b, &qps[1]), right(&b, &others[1]));
    let mut send = |b: &mut Rig, dest: u32, tag: u32| {
        let opcode = Opcode::new(weir_wire::Service::Rc, Operation::SendOnly);
        let headers =
            Headers::new(Bth { ack_req: true, ..Bth::new(opcode, dest, Psn::new(crate::engine::testing::FIRST_PSN)) });
        let producer = &mut a.engine.rings.rings[0].as_mut().unwrap().endpoint.producer;
        let room = producer.reserve(headers.len(), 0).unwrap();
        headers.emit(producer.buffers(&room).0);
        producer.commit(room, tag);
        producer.publish();
        b.turn();
        a.turn();
    };
    let expected = |rig: &Rig, qp: &Arc<QpShared>| rig.entry(qp).shared.lock().attr().rq_psn.get();
    let sqn = crate::engine::testing::FIRST_PSN;
    send(&mut b, qps[1].num, tag ^ 1);
    send(&mut b, others[1].num, of_other);
    send(&mut b, qps[1].num ^ 1, tag);
    assert_eq!((expected(&b, &qps[1]), expected(&b, &others[1])), (sqn, sqn), "none was taken");
    let mut memory = [0u8; 8];
    let sge = b.register(&mut memory);
    b.post_recv(&qps[1], 1, &[sge]);
    send(&mut b, qps[1].num, tag);
    assert_eq!(statuses(&b), [(1, Status::Success)]);
}

#[test]
fn a_peer_that_lies_loses_its_ring_and_udp_goes_on() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    next_prefix(&a).store(u64::MAX, Ordering::Relaxed);
    b.turn();
    let closed = b.engine.take_closed_ring().unwrap();
    assert!(closed.token == TOKEN && closed.state == Use::Lie(a_of(&a)));
    // The thread frees it, and the other side sees the end of the connection.
    end(&mut a);
    assert!(a.engine.take_closed_ring().is_some());
    let (source, target, _) = post_write(&mut a, &mut b, &qps);
    exchange(&mut a, &mut b);
    assert_eq!((target == source, statuses(&a)), (true, vec![(1, Status::Success)]));
    // It gets no other ring.
    let key = b.engine.peers.get(b.entry(&qps[1]).peer.unwrap()).key();
    assert!(b.engine.keys_of_connector(&key).is_none());
}

#[test]
fn packets_that_are_in_a_ring_when_its_peer_ends_are_taken() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    let (source, target, _) = post_write(&mut a, &mut b, &qps);
    a.turn();
    drop(a);
    end(&mut b);
    assert!(target == source);
    assert!(b.engine.take_closed_ring().is_some() && b.engine.take_closed_ring().is_none());
    end(&mut b);
}

#[test]
fn a_qp_changes_its_path_only_where_no_packet_is_overtaken() {
    for (service, moves) in [(Service::Rc, true), (Service::Uc, false)] {
        let (mut a, mut b) = rigs();
        let qps = connected(&mut a, &mut b, service);
        let (mut source, mut target) = (vec![7u8; 64], vec![0u8; 64]);
        let (from, to) = (a.register(&mut source), b.register(&mut target));
        a.post_send(&qps[0], 1, write_to(&to), Data::Gather(&[from]));
        a.turn();
        let first = a.take_bursts();
        assert!(!first.is_empty());
        join(&mut a, &mut b, &qps);
        // The first packet is still in flight, as far as a QP can know.
        a.post_send(&qps[0], 2, write_to(&to), Data::Gather(&[from]));
        a.turn();
        let second = a.take_sent();
        assert_eq!(second.len(), usize::from(!moves), "{service:?}: it waits, or goes the old way");
        for sent in first.into_iter().flat_map(|burst| burst.groups).chain(second) {
            b.arrive((a.address, a.port).into(), sent.to.ip(), sent.to.port(), &sent.datagrams);
        }
        turns(&mut a, &mut b);
        let ids: Vec<u64> = statuses(&a).iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 2], "{service:?}");
        a.post_send(&qps[0], 3, write_to(&to), Data::Gather(&[from]));
        a.turn();
        assert_eq!(a.take_sent().is_empty(), moves, "{service:?}");
    }
}

#[test]
fn a_qp_that_always_has_more_to_send_changes_over_too() {
    const COUNT: u64 = 64;
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    let (mut source, mut target) = (vec![7u8; 100_000], vec![0u8; 100_000]);
    let (from, to) = (a.register(&mut source), b.register(&mut target));
    (0..COUNT).for_each(|id| a.post_send(&qps[0], id, write_to(&to), Data::Gather(&[from])));
    a.turn();
    let first = a.take_bursts();
    join(&mut a, &mut b, &qps);
    a.turn();
    assert!(a.take_sent().is_empty(), "it waits for the ACKs of what it has sent");
    for sent in first.into_iter().flat_map(|burst| burst.groups) {
        b.arrive((a.address, a.port).into(), sent.to.ip(), sent.to.port(), &sent.datagrams);
    }
    (0..10).for_each(|_| turns(&mut a, &mut b));
    assert_eq!(statuses(&a), (0..COUNT).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    assert!(a.take_sent().is_empty() && target == source);
}

#[test]
fn a_ring_ends_with_the_last_qp_of_its_peer() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    a.engine.disconnect(qps[0].num);
    assert!(a.engine.take_closed_ring().is_some());
    assert_eq!(a.engine.rings.count, 0);
}

/// Sends empty messages over UC, which their receiver looks for at times of this test's choice.
struct Messages {
    a: Rig,
    b: Rig,
    qps: [Arc<QpShared>; 2],
    sent: u64,
    now: Instant,
}

impl Messages {
    fn new() -> Messages {
        let (mut a, mut b) = rigs();
        let qps = connected(&mut a, &mut b, Service::Uc);
        join(&mut a, &mut b, &qps);
        Messages { a, b, qps, sent: 0, now: clock::now() }
    }

    fn send(&mut self, count: u64) {
        for _ in 0..count {
            self.sent += 1;
            self.a.post_send(&self.qps[0], self.sent, SendOp::Send, Data::Inline(&[]));
        }
        self.a.turn();
    }

    fn receive(&mut self, wr_id: u64) {
        self.b.post_recv(&self.qps[1], wr_id, &[]);
    }

    /// What arrives when the receiver looks at its rings after `wait`.
    fn look(&mut self, wait: Duration) -> Vec<u64> {
        self.now = self.now + wait;
        self.b.engine.receive_by_rings(&self.b.state, self.now);
        self.b.engine.completions.publish();
        self.b.completions().iter().map(|completion| completion.wr_id).collect()
    }

    fn dropped(&self) -> u64 {
        self.b.engine.shown.traffic.without_receive.get()
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn uc_messages_wait_in_the_ring_for_receives() {
    let mut messages = Messages::new();
    messages.receive(1);
    messages.send(100);
    assert_eq!(messages.look(MS), [1]);
    for wr_id in 2..=100 {
        assert!(messages.look(MS).is_empty());
        messages.receive(wr_id);
        assert_eq!(messages.look(MS), [wr_id]);
    }
    assert_eq!(messages.dropped(), 0);
}

#[test]
fn uc_messages_without_a_receive_are_dropped_after_a_while() {
    let mut messages = Messages::new();
    messages.send(3);
    assert!(messages.look(Duration::ZERO).is_empty() && messages.look(19 * MS).is_empty());
    assert_eq!((messages.dropped(), messages.b.engine.rings.next()), (0, Some((messages.now + receive_wait::LOOK).0)));
    // The first has waited long enough, and the others do not wait after it.
    assert!(messages.look(MS).is_empty());
    assert_eq!((messages.dropped(), messages.b.engine.rings.next()), (3, None));
    messages.send(1);
    assert!(messages.look(MS).is_empty());
    assert_eq!(messages.dropped(), 4);
    // A receive shows that the program means to receive.
    messages.receive(1);
    messages.send(2);
    assert_eq!(messages.look(MS), [1]);
    messages.receive(2);
    assert_eq!(messages.look(19 * MS), [2]);
    assert_eq!(messages.dropped(), 4);
}

#[test]
fn a_ring_does_not_wait_for_a_qp_that_is_gone() {
    let mut messages = Messages::new();
    let _keeps_the_ring = connected(&mut messages.a, &mut messages.b, Service::Rc);
    messages.send(1);
    assert!(messages.look(MS).is_empty());
    assert!(messages.b.engine.rings.next().is_some());
    messages.b.engine.disconnect(messages.qps[1].num);
    messages.look(MS);
    assert_eq!((messages.b.engine.rings.next(), messages.b.engine.rings.count), (None, 1));
    assert!(messages.b.engine.rings.rings[0].as_ref().is_some_and(|ring| !ring.wait.is_waiting()));
}

#[test]
fn other_qps_wait_behind_uc_only_for_the_time_of_all_waits() {
    let mut messages = Messages::new();
    let rc = connected(&mut messages.a, &mut messages.b, Service::Rc);
    let (mut source, mut target) = (vec![7u8; 64], vec![0u8; 64]);
    let (from, to) = (messages.a.register(&mut source), messages.b.register(&mut target));
    messages.send(200);
    messages.a.post_send(&rc[0], 1, write_to(&to), Data::Gather(&[from]));
    messages.a.turn();
    let mut waited = Duration::ZERO;
    // The program posts each receive late.
    for wr_id in 1.. {
        waited += 15 * MS;
        if !messages.look(15 * MS).is_empty() || target == source {
            break;
        }
        messages.receive(wr_id);
        messages.look(Duration::ZERO);
    }
    assert!(target == source && waited <= 120 * MS, "after {waited:?}");
}

#[test]
fn a_question_of_flow_control_is_answered_when_all_packets_before_it_are_taken() {
    let mut messages = Messages::new();
    messages.send(1);
    assert!(messages.look(Duration::ZERO).is_empty());
    messages.b.take_bursts();
    let peer = messages.b.entry(&messages.qps[1]).peer.unwrap();
    let (mut hello, _) = Hello::decode(&ask(&mut messages.a, &messages.qps[0])).unwrap();
    hello.mark = 77;
    let mut bytes = vec![0; crate::engine::peers::hello::MAX_LEN];
    let len = hello.encode(&[], &mut bytes);
    bytes.truncate(len);
    let marks = |rig: &Rig| -> Vec<u32> {
        let groups = rig.take_bursts().into_iter().flat_map(|burst| burst.groups);
        groups.flat_map(|group| group.datagrams).filter_map(|bytes| Some(Hello::decode(&bytes)?.0.mark)).collect()
    };
    messages.b.arrive(a_of(&messages.a), messages.b.address, messages.b.port, &[bytes]);
    messages.b.turn();
    assert!(messages.b.engine.rings.rings[0].as_ref().is_some_and(|ring| ring.peer == peer && ring.answer.is_some()));
    assert!(!marks(&messages.b).contains(&77), "a packet waits");
    messages.receive(1);
    messages.b.turn();
    assert_eq!(marks(&messages.b), [77]);
}

/// A hello by which a rig asks the peer of a QP.
fn ask(rig: &mut Rig, qp: &Arc<QpShared>) -> Vec<u8> {
    let peer = rig.entry(qp).peer.unwrap();
    rig.take_bursts();
    rig.engine.peers.ask_soon(peer, clock::now());
    rig.engine.send_due_hellos(&rig.state, clock::now());
    rig.engine.flush();
    let mut groups = rig.take_bursts().into_iter().flat_map(|burst| burst.groups);
    groups.next().unwrap().datagrams[0].clone()
}

#[test]
fn uc_messages_of_a_peer_that_has_ended_wait_for_receives_too() {
    let mut messages = Messages::new();
    messages.send(2);
    messages.b.engine.end_ring(&messages.b.state, TOKEN, messages.now);
    assert!(messages.b.engine.take_closed_ring().is_none());
    for wr_id in 1..=2 {
        messages.receive(wr_id);
        assert_eq!(messages.look(MS), [wr_id]);
    }
    assert!(messages.b.engine.take_closed_ring().is_some_and(|ring| ring.token == TOKEN));
}

#[test]
fn a_ring_is_emptied_before_another_takes_its_place() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    let (source, target, [from, to]) = post_write(&mut a, &mut b, &qps);
    a.turn();
    join_as(&mut a, &mut b, &qps, TOKEN + 1);
    assert!(target == source);
    for rig in [&mut a, &mut b] {
        assert!(rig.engine.take_closed_ring().is_some_and(|ring| ring.token == TOKEN));
        assert_eq!(rig.engine.rings.count, 1);
    }
    turns(&mut a, &mut b);
    assert_eq!(statuses(&a), [(1, Status::Success)]);
    // The end of the old connection does not end the new one.
    end(&mut a);
    a.post_send(&qps[0], 2, write_to(&to), Data::Gather(&[from]));
    turns(&mut a, &mut b);
    assert_eq!((statuses(&a), a.take_sent().len()), (vec![(2, Status::Success)], 0));
}

#[test]
fn a_peer_without_qps_gets_no_ring() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    let peer = a.entry(&qps[0]).peer.unwrap();
    let (key, incarnation) = (a.engine.peers.get(peer).key(), a.engine.peers.get(peer).incarnation.unwrap());
    // A datagram was sent to it, so that its entry stays.
    let route = a.engine.peers.get(peer).route;
    a.engine.peers.peer_of_datagram(route, qps[1].num, clock::now());
    a.engine.disconnect(qps[0].num);
    let (segment, _file) = Segment::create().unwrap();
    let socket = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap().0;
    let made = Made { endpoint: Endpoint::new(segment, Side::Maker), socket, token: TOKEN };
    assert!(a.engine.add_ring(&a.state, &key, incarnation, made, clock::now()).is_err());
    assert_eq!(a.engine.rings.count, 0);
}

#[test]
fn a_ring_is_asked_for_again_when_it_ends_and_attempts_are_limited() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    let peer = a.entry(&qps[0]).peer.unwrap();
    let mut now = clock::now();
    let mut attempts = 0;
    // Each ring ends as soon as it is there.
    loop {
        now = now + Duration::from_secs(1);
        let Some(wanted) = a.engine.take_wanted_ring(now) else { break };
        attempts += 1;
        assert_eq!(wanted.key, a.engine.peers.get(peer).key());
        let (segment, _file) = Segment::create().unwrap();
        let socket = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap().0;
        let made = Made { endpoint: Endpoint::new(segment, Side::Maker), socket, token: TOKEN };
        assert!(a.engine.add_ring(&a.state, &wanted.key, wanted.keys.acceptor, made, now).is_ok());
        a.engine.end_ring(&a.state, TOKEN, now);
        assert!(a.engine.take_closed_ring().is_some());
    }
    assert_eq!(attempts, TRIES);
    // The side with the larger slot waits for the other.
    join(&mut a, &mut b, &qps);
    end(&mut b);
    assert_eq!(b.engine.peers.get(b.entry(&qps[1]).peer.unwrap()).ring, RingState::None);
}

#[test]
fn a_qp_that_responds_by_udp_goes_on_so_until_its_responses_have_arrived() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    let (mut source, mut target) = (vec![7u8; 64], vec![0u8; 64]);
    let (from, to) = (b.register(&mut source), a.register(&mut target));
    a.post_send(&qps[0], 1, SendOp::Read { remote_addr: from.addr, rkey: from.lkey }, Data::Gather(&[to]));
    exchange(&mut a, &mut b);
    assert_eq!(statuses(&a), [(1, Status::Success)]);
    join(&mut a, &mut b, &qps);
    let (peer, index) = (b.entry(&qps[1]).peer.unwrap(), b.index(&qps[1]));
    let incarnation = b.engine.peers.get(peer).incarnation.unwrap();
    let sent = b.entry(&qps[1]).responded_by_udp.unwrap();
    assert_eq!(b.engine.way_of(peer, index, incarnation, sent), Way::Udp);
    // The peer has the response, or it would not send requests by the ring.
    a.post_send(&qps[0], 2, SendOp::Read { remote_addr: from.addr, rkey: from.lkey }, Data::Gather(&[to]));
    turns(&mut a, &mut b);
    assert_eq!((statuses(&a), b.entry(&qps[1]).path), (vec![(2, Status::Success)], Path::Ring));
}
