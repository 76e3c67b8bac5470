use super::*;
use crate::config::{Framing, Icrc};
use crate::engine::peers::connection::TRIES;
use crate::engine::testing::{FIRST_PSN, Rig, Sent, address, connected, exchange};
use crate::os::clock;
use crate::shared::qp::QpShared;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{AttrMask, Data, Psn, QpAttr, SendOp, Status};
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;
use weir_wire::{Operation, Packet, ROCE_PORT, frame};

/// QPNs of foreign adapters: of no slot.
const FOREIGN: u32 = 17;

/// Adds an RC QP to a foreign adapter with this address; the adapter's QPN differs by it, too.
fn foreign_qp(rig: &mut Rig, number: u16) -> Arc<QpShared> {
    let qp = rig.add_qp(Service::Rc);
    rig.connect(&qp, address(number), FOREIGN + u32::from(number));
    qp
}

/// The destination QPNs and PSNs of packets.
fn numbers(groups: &[Sent]) -> Vec<(u32, u32)> {
    let datagrams = groups.iter().flat_map(|group| &group.datagrams);
    let bths = datagrams.map(|datagram| Packet::parse(datagram).unwrap().headers.bth);
    bths.map(|bth| (bth.dest_qp, bth.psn.get())).collect()
}

fn is_waiting(rig: &Rig, qp: &QpShared) -> bool {
    let entry = rig.entry(qp);
    let waits = entry.waiting.map(|waiting| waiting.reason);
    assert!(waits.is_none() || waits == entry.peer.map(WaitReason::Peer), "{waits:?}");
    waits.is_some()
}

fn send(rig: &mut Rig, qp: &QpShared) {
    rig.post_send(qp, 1, SendOp::Send, Data::Inline(b"request!"));
    rig.turn();
}

#[test]
fn a_posted_request_leaves_once_by_the_carrier() {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = foreign_qp(&mut rig, 9);
    rig.turn();
    assert!(rig.take_bursts().is_empty());
    send(&mut rig, &qp);
    let sent = rig.take_sent();
    let [Sent { to, from, datagrams, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((*to, *from), ((address(9), ROCE_PORT).into(), rig.address));
    let (src_port, dst_port) = (rig.port, ROCE_PORT);
    let envelope = Envelope { src: *from, dst: to.ip(), src_port, dst_port, ip_id: 0, dont_fragment: true };
    assert_eq!(icrc::verify(&envelope, &datagrams[0]), Verdict::Good);
    assert_eq!(Packet::parse(&datagrams[0]).unwrap().payload, b"request!");
    assert_eq!(numbers(&sent), [(FOREIGN + 9, FIRST_PSN)]);
    assert_eq!(rig.state.shown.traffic.packets_sent.get(), 1);
    rig.turn();
    assert!(rig.take_bursts().is_empty() && rig.engine.ready.is_empty() && !is_waiting(&rig, &qp));
    rig.arrive_foreign(&qp, 9, Operation::Acknowledge, Psn::new(FIRST_PSN));
    rig.turn();
    assert_eq!(rig.completions()[0].status, Status::Success);
}

#[test]
fn requests_wait_until_the_peer_has_proven_itself() {
    let (mut a, mut b) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
    let (x, y) = (a.add_qp(Service::Rc), b.add_qp(Service::Rc));
    a.connect(&x, b.address, y.num);
    send(&mut a, &x);
    assert!(a.wire().has_sent(b"WEIR") && a.take_sent().is_empty() && is_waiting(&a, &x));
    b.connect(&y, a.address, x.num);
    let mut memory = vec![0; 8];
    b.post_recv(&y, 2, &[b.register(&mut memory)]);
    let until = clock::now() + Duration::from_secs(10);
    let mut done = [Vec::new(), Vec::new()];
    while done.iter().any(Vec::is_empty) {
        assert!(clock::now() < until, "{done:?}");
        exchange(&mut a, &mut b);
        done[0].extend(a.completions().iter().map(|completion| completion.wr_id));
        done[1].extend(b.completions().iter().map(|completion| completion.wr_id));
    }
    assert!(done == [[1], [2]] && memory == b"request!" && !is_waiting(&a, &x));
}

#[test]
fn payload_leaves_in_frames_if_both_processes_offer_them() {
    for (own, other, framed) in [
        (Framing::Auto, Framing::Auto, true),
        (Framing::Auto, Framing::Roce, false),
        (Framing::Roce, Framing::Auto, false),
    ] {
        let mut a = Rig::with_framing(5, Icrc::Auto, own);
        let mut b = Rig::with_framing(6, Icrc::Auto, other);
        let [x, _] = connected(&mut a, &mut b, Service::Rc);
        a.take_bursts();
        let mut memory = vec![7; 3000];
        let sge = a.register(&mut memory);
        send(&mut a, &x);
        a.post_send(&x, 2, SendOp::Write { remote_addr: 0, rkey: 1 }, Data::Gather(&[sge]));
        a.turn();
        let datagrams: Vec<_> = a.take_sent().into_iter().flat_map(|group| group.datagrams).collect();
        let found: Vec<_> = datagrams.iter().map(|datagram| frame::is_frame(datagram)).collect();
        assert_eq!(found, [framed; 4], "a SEND, and a WRITE of three packets: {own:?}, {other:?}");
    }
}

#[test]
fn a_qp_in_the_error_state_flushes_what_is_posted_with_and_without_a_peer() {
    let connect: [fn(&mut Rig, &Arc<QpShared>); 3] = [
        |rig, qp| {
            let mask = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            rig.modify(qp, QpState::Init, &QpAttr::default(), mask);
        },
        |rig, qp| rig.connect(qp, address(9), FOREIGN),
        |rig, qp| rig.connect(qp, address(6), 6 << 14 | 1),
    ];
    for (at, connect) in connect.iter().enumerate() {
        let mut rig = Rig::new(5, Icrc::Auto);
        let qp = rig.add_qp(Service::Rc);
        connect(&mut rig, &qp);
        rig.modify(&qp, QpState::Error, &QpAttr::default(), AttrMask::empty());
        send(&mut rig, &qp);
        let flushed: Vec<_> = rig.completions().iter().map(|completion| completion.status).collect();
        assert_eq!(flushed, [Status::WrFlushed], "{at}");
        assert!(rig.take_sent().is_empty(), "{at}");
    }
}

/// The kernel numbers the packets of a connected socket: no ICRC may cover the number.
#[test]
fn packets_with_an_icrc_need_identification_0() {
    for (icrc, any_id) in [(Icrc::Auto, true), (Icrc::Always, false)] {
        let (mut a, mut b) = (Rig::new(5, icrc), Rig::new(6, icrc));
        for service in [Service::Rc, Service::Uc] {
            let [x, _] = connected(&mut a, &mut b, service);
            a.take_sent();
            send(&mut a, &x);
            let sent: Vec<bool> = a.take_sent().iter().map(|group| group.any_id).collect();
            assert_eq!(sent, [any_id], "{icrc:?} {service:?}");
        }
    }
}

#[test]
fn what_is_known_of_the_peer_process_decides_whether_requests_leave() {
    #[derive(Debug, PartialEq)]
    enum Outcome {
        Sent,
        Waits,
        Discarded,
    }
    use Outcome::*;
    let replaced: fn(&mut Peer) = |peer| peer.incarnation = peer.incarnation.map(|incarnation| incarnation ^ 1);
    let suspected: fn(&mut Peer) = |peer| peer.suspected = Some(0);
    let silent: fn(&mut Peer) = |peer| peer.suspected = Some(TRIES + 1);
    for (at, (icrc, change, outcome)) in [
        (Icrc::Always, (|_| ()) as fn(&mut Peer), Sent),
        (Icrc::Always, suspected, Waits),
        (Icrc::Always, silent, Discarded),
        (Icrc::Always, replaced, Discarded),
        // The peer's tag shows that its process is the same.
        (Icrc::Auto, suspected, Sent),
        (Icrc::Auto, silent, Sent),
        (Icrc::Auto, replaced, Discarded),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut a, mut b) = (Rig::new(5, icrc), Rig::new(6, icrc));
        let [x, _] = connected(&mut a, &mut b, Service::Rc);
        a.take_bursts();
        let id = a.entry(&x).peer.unwrap();
        let peer = a.engine.peers.get_mut(id);
        peer.next_attempt = None;
        change(peer);
        send(&mut a, &x);
        let found = match (a.take_sent().len(), is_waiting(&a, &x)) {
            (1, false) => Sent,
            (0, true) => Waits,
            (0, false) => Discarded,
            other => panic!("{at}: {other:?}"),
        };
        assert_eq!(found, outcome, "{at}");
        assert_eq!(x.lock().in_flight().request_bytes > 0, found != Waits, "{at}");
    }
}

#[test]
fn requests_stop_at_the_window_and_go_on_when_an_ack_opens_it() {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = foreign_qp(&mut rig, 9);
    let mut memory = vec![7; 200 << 10];
    let sge = rig.register(&mut memory);
    let peer = rig.entry(&qp).peer.unwrap();
    rig.post_send(&qp, 1, SendOp::Write { remote_addr: 0, rkey: 1 }, Data::Gather(&[sge]));
    let (mut sent, mut windows) = (0, 0);
    while rig.completions().is_empty() {
        rig.turn();
        let found = numbers(&rig.take_sent());
        let psns = (sent..).take(found.len()).map(|psn| (FOREIGN + 9, FIRST_PSN + psn));
        assert!(!found.is_empty() && found.iter().copied().eq(psns), "each packet once, in order");
        sent += found.len() as u32;
        let left = rig.engine.peers.room(peer, true);
        assert_eq!(is_waiting(&rig, &qp), sent < 200, "{sent} packets");
        assert!(sent == 200 || left < 1024 + 28 + PACKET_COST, "{left} bytes are left of the window");
        rig.turn();
        assert!(rig.take_bursts().is_empty(), "the window is full");
        windows += 1;
        rig.arrive_foreign(&qp, 9, Operation::Acknowledge, Psn::new(FIRST_PSN + sent - 1));
        rig.engine.receive(&rig.state, clock::now());
        rig.engine.completions.publish();
        assert!(rig.engine.peers.room(peer, true) > left && !is_waiting(&rig, &qp));
    }
    assert_eq!((sent, windows), (200, 3));
}

#[test]
fn qps_take_turns_and_a_full_outbox_leaves_them_ready() {
    let mut rig = Rig::new(5, Icrc::Auto);
    // Each packet is a group.
    rig.wire().segments = 1;
    let mut memory = vec![7; 80 << 10];
    let sge = rig.register(&mut memory);
    let peers = [9, 10, 11, 12];
    // Connecting takes a turn, so that all are connected before the first request is posted.
    for qp in peers.map(|number| foreign_qp(&mut rig, number)) {
        rig.post_send(&qp, 1, SendOp::Write { remote_addr: 0, rkey: 1 }, Data::Gather(&[sge]));
    }
    rig.turn();
    let bursts: Vec<_> = rig.take_bursts().iter().map(|burst| numbers(&burst.groups)).collect();
    let dests: Vec<u32> = bursts.iter().map(|burst| burst[0].0 - FOREIGN).collect();
    assert_eq!(dests, [9, 10, 11, 12, 9, 10, 11, 12]);
    assert_eq!(dests.len(), FLUSHES);
    for (round, burst) in bursts.iter().enumerate().map(|(at, burst)| (at / 4, burst)) {
        let first = FIRST_PSN + (round * OUTBOX_GROUPS) as u32;
        assert!(burst.iter().map(|(_, psn)| *psn).eq(first..first + OUTBOX_GROUPS as u32));
        assert!(burst.iter().all(|(dest, _)| *dest == burst[0].0), "one QP fills the outbox");
    }
    // Arrivals come first; the next turn is due at once.
    assert_eq!(rig.engine.ready.len(), peers.len());
    assert!(rig.engine.next_due <= clock::now().0);
    rig.turn();
    let rest = numbers(&rig.take_sent());
    let last = FIRST_PSN + 64..FIRST_PSN + 80;
    let expected = peers.iter().flat_map(|peer| last.clone().map(|psn| (FOREIGN + u32::from(*peer), psn)));
    assert!(rest.len() == 64 && expected.clone().all(|number| rest.contains(&number)), "{rest:?}");
    assert!(rig.engine.ready.is_empty());
}

#[test]
fn the_ack_leaves_before_the_completion_is_published() {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = foreign_qp(&mut rig, 9);
    rig.post_recv(&qp, 7, &[]);
    rig.watch_completions();
    rig.arrive_foreign(&qp, 9, Operation::SendOnly, Psn::new(FIRST_PSN));
    rig.turn();
    let bursts = rig.take_bursts();
    let [burst] = &bursts[..] else { panic!("{} bursts", bursts.len()) };
    let ack = Packet::parse(&burst.groups[0].datagrams[0]).unwrap();
    assert_eq!(ack.headers.bth.opcode.operation(), Some(Operation::Acknowledge));
    assert!(burst.published.is_empty(), "{:?}", burst.published);
    assert_eq!(rig.completions()[0].wr_id, 7);
}

#[test]
fn unacknowledged_packets_stop_at_the_window_and_go_on_when_the_peer_has_taken_them() {
    let (mut a, mut b) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
    let [x, y] = connected(&mut a, &mut b, Service::Uc);
    let mut source: Vec<u8> = (0..4u32 << 20).map(|n| (n % 251) as u8).collect();
    let mut target = vec![0; source.len()];
    let (from, to) = (a.register(&mut source), b.register(&mut target));
    let id = a.entry(&x).peer.unwrap();
    let window = a.engine.peers.unreliable_room(id);
    a.post_send(&x, 1, SendOp::Write { remote_addr: to.addr, rkey: to.lkey }, Data::Gather(&[from]));
    a.turn();
    assert!(window < source.len() && is_waiting(&a, &x));
    assert!(a.engine.peers.unreliable_room(id) < 1024 + 28 + PACKET_COST);
    let until = clock::now() + Duration::from_secs(10);
    while a.completions().is_empty() {
        assert!(clock::now() < until, "the window does not open");
        exchange(&mut a, &mut b);
    }
    exchange(&mut a, &mut b);
    assert!(source == target && !is_waiting(&a, &x) && y.lock().state() == QpState::Rts);
}
