use super::*;
use crate::config::Icrc;
use crate::engine::testing::{Rig, connected, exchange};
use crate::local::endpoint::Side;
use crate::local::segment::Segment;
use crate::shared::qp::QpShared;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_transport::{Data, SendOp, Sge, Status};
use weir_wire::{Bth, Headers, Opcode, Operation, Psn};

const TOKEN: u64 = 9;

fn rigs() -> (Rig, Rig) {
    (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto))
}

/// Gives two engines with connected QPs a ring, as their threads would.
fn join(a: &mut Rig, b: &mut Rig, qps: &[Arc<QpShared>; 2]) {
    let (made, file) = Segment::create().unwrap();
    let taken = Segment::open(&file).unwrap();
    let sockets = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
    for (rig, qp, segment, side, socket) in
        [(a, &qps[0], made, Side::Maker, sockets.0), (b, &qps[1], taken, Side::Taker, sockets.1)]
    {
        let peer = rig.engine.peers.get(rig.entry(qp).peer.unwrap());
        let (key, incarnation) = (peer.key(), peer.incarnation.unwrap());
        let added = rig.engine.add_ring(&key, incarnation, Endpoint::new(segment, side), socket, TOKEN);
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

fn statuses(rig: &Rig) -> Vec<(u64, Status)> {
    rig.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
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
    let mut third = Rig::new(7, Icrc::Auto);
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
    assert!(b.engine.take_closed_ring().is_some_and(|ring| ring.token == TOKEN));
    // The thread frees it, and the other side sees the end of the connection.
    assert!(a.engine.end_ring(&a.state, TOKEN, crate::os::clock::now()).is_some());
    let (mut source, mut target) = (vec![7u8; 5000], vec![0u8; 5000]);
    let (from, to) = (a.register(&mut source), b.register(&mut target));
    a.post_send(&qps[0], 1, write_to(&to), Data::Gather(&[from]));
    exchange(&mut a, &mut b);
    assert_eq!((target == source, statuses(&a)), (true, vec![(1, Status::Success)]));
}

#[test]
fn packets_that_are_in_a_ring_when_its_peer_ends_are_taken() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    let (mut source, mut target) = (vec![7u8; 5000], vec![0u8; 5000]);
    let (from, to) = (a.register(&mut source), b.register(&mut target));
    a.post_send(&qps[0], 1, write_to(&to), Data::Gather(&[from]));
    a.turn();
    drop(a);
    assert!(b.engine.end_ring(&b.state, TOKEN, crate::os::clock::now()).is_some());
    assert!(target == source);
    assert!(b.engine.end_ring(&b.state, TOKEN, crate::os::clock::now()).is_none());
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
        assert_eq!(second.len(), 1, "{service:?}");
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
fn a_ring_ends_with_the_last_qp_of_its_peer() {
    let (mut a, mut b) = rigs();
    let qps = connected(&mut a, &mut b, Service::Rc);
    join(&mut a, &mut b, &qps);
    a.engine.disconnect(qps[0].num);
    assert!(a.engine.take_closed_ring().is_some());
    assert_eq!(a.engine.rings.count, 0);
}
