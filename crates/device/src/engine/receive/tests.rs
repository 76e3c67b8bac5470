use super::*;
use crate::config::{Framing, Icrc};
use crate::engine::testing::{FIRST_PSN, Rig, address, connected};
use crate::shared::arrival_errors::ArrivalErrorKind::{Changed, Translated};
use std::net::{IpAddr, SocketAddr};
use weir_transport::{AttrMask, Data, Psn, QpAttr, SendOp};
use weir_wire::{Aeth, Bth, Destination, Deth, Headers, Placement};
use weir_wire::{Opcode, Operation};

/// A peer that is no Weir process: its QPN is of no slot.
const FOREIGN: u32 = 17;
const QKEY: u32 = 0x1111;

/// A datagram to be received.
#[derive(Clone)]
struct Datagram {
    from: SocketAddr,
    to: IpAddr,
    to_port: u16,
    bth: Bth,
    payload: Vec<u8>,
    end: End,
    /// It is a frame, not a RoCE packet.
    framed: bool,
}

/// The last four bytes.
#[derive(Clone, Copy)]
enum End {
    /// The ICRC with this IPv4 Identification and Don't Fragment bit.
    Icrc(u16, bool),
    /// A wrong ICRC: with bits of it changed.
    Wrong(u32),
    Tag(u32),
}

impl Datagram {
    /// A SEND from a port of an address to a QP.
    fn send(rig: &Rig, qp: &QpShared, from: (IpAddr, u16), to_port: u16, end: End) -> Datagram {
        let opcode = Opcode::new(qp.service, Operation::SendOnly);
        let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.num, Psn::new(FIRST_PSN)) };
        let (from, payload) = (from.into(), b"payload!".to_vec());
        Datagram { from, to: rig.address, to_port, bth, payload, end, framed: false }
    }

    /// From a foreign adapter.
    fn foreign(rig: &Rig, qp: &QpShared) -> Datagram {
        Datagram::send(rig, qp, (address(9), 49_152), ROCE_PORT, End::Icrc(7, true))
    }

    fn with(&self, change: impl FnOnce(&mut Datagram)) -> Datagram {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    /// The packet of another operation, and its PSN's distance from the first.
    fn operation(&self, operation: Operation, psn: u32, payload: &[u8]) -> Datagram {
        let mut changed = self.clone();
        changed.bth.opcode = Opcode::new(Service::Rc, operation);
        changed.bth.psn = Psn::new(FIRST_PSN + psn);
        changed.payload = payload.to_vec();
        changed
    }

    fn bytes(&self) -> Vec<u8> {
        let mut headers = Headers::new(self.bth);
        headers.put(Aeth::new(31, 0));
        headers.put(Deth { qkey: QKEY.into(), src_qp: FOREIGN.into() });
        let mut bytes = if self.framed { self.frame_header(&headers) } else { roce_header(&headers) };
        bytes.extend(&self.payload);
        let envelope = |ip_id, dont_fragment| {
            let (src, src_port, dst_port) = (self.from.ip(), self.from.port(), self.to_port);
            Envelope { src, dst: self.to, src_port, dst_port, ip_id, dont_fragment }
        };
        let end = match self.end {
            End::Icrc(id, dont_fragment) => icrc::compute(&envelope(id, dont_fragment), &bytes),
            End::Wrong(bits) => icrc::compute(&envelope(0, true), &bytes) ^ bits,
            End::Tag(tag) => tag,
        };
        bytes.extend(end.to_le_bytes());
        bytes
    }

    /// The header of a frame. Each message is one packet, so the PSN tells its number.
    fn frame_header(&self, headers: &Headers) -> Vec<u8> {
        let destination = Destination::Message { number: self.bth.psn.get() - FIRST_PSN };
        let placement = Placement { destination, offset: 0, length: self.payload.len() as u32 };
        let mut bytes = vec![0; frame::HEADER_LEN];
        frame::emit(headers, &placement, &mut bytes);
        bytes
    }

    fn arrive(&self, rig: &mut Rig) {
        rig.arrive(self.from, self.to, self.to_port, &[self.bytes()]);
        rig.turn();
    }
}

fn roce_header(headers: &Headers) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes
}

/// A named change of a datagram.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Datagram));
/// A change after which the datagram is not accepted, and how many P_Key violations it counts.
type BadChange<'a> = (&'a str, &'a dyn Fn(&mut Datagram), u64);

/// Checks that the protocol gets none of the changed datagrams.
fn none_is_accepted(rig: &mut Rig, qp: &QpShared, good: &Datagram, changes: &[BadChange<'_>]) {
    let next = qp.lock().attr().rq_psn;
    for (name, change, violations) in changes {
        let before = rig.state.pkey_violations();
        good.with(change).arrive(rig);
        assert_eq!(rig.state.pkey_violations() - before, *violations, "{name}");
        untouched(rig, qp, next, name);
    }
}

fn untouched(rig: &Rig, qp: &QpShared, next: Psn, name: &str) {
    assert_eq!(qp.lock().attr().rq_psn, next, "{name}");
    assert!(rig.take_sent().is_empty() && rig.completions().is_empty(), "{name}");
}

/// Checks that the QP executes each of the changed datagrams, which get consecutive PSNs.
fn each_is_accepted(rig: &mut Rig, qp: &QpShared, good: &Datagram, changes: &[Change<'_>]) {
    let mut memory = vec![0; 64];
    let sge = rig.register(&mut memory);
    for (name, change) in changes {
        memory.fill(0);
        rig.post_recv(qp, 77, &[sge]);
        let next = qp.lock().attr().rq_psn;
        // Nothing is sent to a process that may not be the peer.
        let acks = qp.service == Service::Rc && !matches!(rig.link(qp), Link::Asking { .. });
        good.with(|datagram| datagram.bth.psn = next).with(change).arrive(rig);
        let completions: Vec<_> = rig.completions().iter().map(|completion| completion.wr_id).collect();
        assert_eq!(completions, [77], "{name}");
        let header = if qp.service == Service::Ud { 40 } else { 0 };
        assert_eq!(memory[header..header + good.payload.len()], good.payload, "{name}");
        assert_eq!(rig.take_sent().len(), usize::from(acks), "an ACK: {name}");
    }
    // The region goes with its memory.
    rig.state.regions.remove(sge.lkey).unwrap();
}

/// An engine with an RC QP that has a foreign adapter as its peer.
fn with_foreign_peer() -> (Rig, Arc<QpShared>, Datagram) {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = rig.add_qp(Service::Rc);
    rig.connect(&qp, address(9), FOREIGN);
    let good = Datagram::foreign(&rig, &qp);
    (rig, qp, good)
}

fn tag(rig: &Rig, qp: &QpShared) -> u32 {
    rig.entry(qp).connection.tag
}

#[test]
fn packets_of_a_foreign_peer_need_its_address_and_an_icrc() {
    let (mut rig, qp, good) = with_foreign_peer();
    let (port, tag) = (rig.port, tag(&rig, &qp));
    none_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[
            ("no slot", &|d| d.bth.dest_qp &= (1 << 14) - 1, 0),
            ("another slot", &|d| (d.to_port, d.bth.dest_qp) = (port, d.bth.dest_qp ^ 3 << 14), 0),
            ("no QP of that number", &|d| d.bth.dest_qp ^= 1, 0),
            ("a multicast QPN without a group", &|d| d.bth.dest_qp = MULTICAST_QPN, 0),
            ("another source address", &|d| d.from.set_ip(address(8)), 0),
            ("another destination address", &|d| d.to = address(6), 0),
            ("a wrong ICRC", &|d| d.end = End::Wrong(1 << 31), 0),
            ("a wrong ICRC in every byte", &|d| d.end = End::Wrong(0x0101_0101), 0),
            ("a tag by port 4791", &|d| d.end = End::Tag(tag), 0),
            ("a tag from a port of no slot", &|d| (d.to_port, d.end) = (port, End::Tag(tag)), 0),
            ("another partition", &|d| d.bth.pkey = 0x8001, 1),
            ("no partition", &|d| d.bth.pkey = 0, 1),
            ("another partition, limited", &|d| d.bth.pkey = 0x7ffe, 1),
            ("another partition and a wrong ICRC", &|d| (d.bth.pkey, d.end) = (0x8001, End::Wrong(1)), 0),
            ("an unknown transport version", &|d| d.bth.version = 1, 0),
            ("a frame", &|d| d.framed = true, 0),
            ("an unknown service", &|d| d.bth.opcode = Opcode(0xe4), 0),
            ("more pad than payload", &|d| (d.bth.pad, d.payload) = (3, Vec::new()), 0),
        ],
    );
    each_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[
            ("as sent by an adapter", &|_| {}),
            ("any Identification", &|d| d.end = End::Icrc(0xffff, true)),
            ("Don't Fragment is clear", &|d| d.end = End::Icrc(0, false)),
            ("from another port", &|d| d.from.set_port(1)),
            ("to the slot's port", &|d| d.to_port = port),
            ("a limited member of the partition", &|d| d.bth.pkey = 0x7fff),
        ],
    );
}

#[test]
fn packets_of_a_weir_peer_without_icrc_need_the_tag_and_both_slot_ports() {
    let (mut a, mut b) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
    let [qp, _] = connected(&mut a, &mut b, Service::Rc);
    let tag = tag(&a, &qp);
    a.take_sent();
    let good = Datagram::send(&a, &qp, (b.address, b.port), a.port, End::Tag(tag));
    none_is_accepted(
        &mut a,
        &qp,
        &good,
        &[
            ("another tag", &|d| d.end = End::Tag(tag ^ 1), 0),
            ("an ICRC", &|d| d.end = End::Icrc(0, true), 0),
            ("another source port", &|d| d.from.set_port(d.from.port() + 1), 0),
            ("port 4791", &|d| d.to_port = ROCE_PORT, 0),
            ("an ICRC by port 4791", &|d| (d.to_port, d.end) = (ROCE_PORT, End::Icrc(0, true)), 0),
            ("another source address", &|d| d.from.set_ip(address(8)), 0),
            ("another partition", &|d| d.bth.pkey = 0x8001, 1),
        ],
    );
    each_is_accepted(&mut a, &qp, &good, &[("tagged", &|_| {}), ("again", &|_| {})]);
}

#[test]
fn packets_of_a_weir_peer_with_icrc_need_an_identification_that_its_kernel_assigns() {
    let (mut a, mut b) = (Rig::new(5, Icrc::Always), Rig::new(6, Icrc::Auto));
    let [qp, _] = connected(&mut a, &mut b, Service::Rc);
    let tag = tag(&a, &qp);
    a.take_sent();
    let good = Datagram::send(&a, &qp, (b.address, b.port), a.port, End::Icrc(0, true));
    none_is_accepted(
        &mut a,
        &qp,
        &good,
        &[
            ("a tag", &|d| d.end = End::Tag(tag), 0),
            ("a larger Identification", &|d| d.end = End::Icrc(IDS_OF_WEIR, true), 0),
            ("Don't Fragment is clear", &|d| d.end = End::Icrc(0, false), 0),
            ("a wrong ICRC", &|d| d.end = End::Wrong(1 << 31), 0),
            ("port 4791", &|d| d.to_port = ROCE_PORT, 0),
        ],
    );
    each_is_accepted(
        &mut a,
        &qp,
        &good,
        &[("Identification 0", &|_| {}), ("the largest Identification", &|d| d.end = End::Icrc(IDS_OF_WEIR - 1, true))],
    );
}

#[test]
fn a_peer_that_has_proven_nothing_yet_may_send_with_an_icrc_or_the_tag() {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = rig.add_qp(Service::Rc);
    rig.connect(&qp, address(6), 6 << 14 | 1);
    assert!(matches!(rig.link(&qp), Link::Asking { .. }));
    let (tag, slots) = (tag(&rig, &qp), ((address(6), rig.port + 1), rig.port));
    let good = Datagram::send(&rig, &qp, slots.0, slots.1, End::Icrc(0, true));
    // Without a receive, a SEND that is accepted would leave no trace: nothing is sent to this peer yet.
    let mut memory = vec![0; 8];
    rig.post_recv(&qp, 76, &[rig.register(&mut memory)]);
    none_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[
            ("a wrong ICRC", &|d| d.end = End::Wrong(1), 0),
            ("another tag", &|d| d.end = End::Tag(tag ^ 1), 0),
            ("the tag by port 4791", &|d| (d.to_port, d.end) = (ROCE_PORT, End::Tag(tag)), 0),
            ("a frame by port 4791", &|d| (d.to_port, d.framed) = (ROCE_PORT, true), 0),
        ],
    );
    good.arrive(&mut rig);
    assert_eq!(rig.completions()[0].wr_id, 76);
    each_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[
            ("an ICRC", &|_| {}),
            ("an ICRC by port 4791", &|d| d.to_port = ROCE_PORT),
            ("the tag", &|d| d.end = End::Tag(tag)),
            ("a frame", &|d| d.framed = true),
        ],
    );
}

#[test]
fn a_process_with_framing_roce_takes_no_frames() {
    for framing in [Framing::Auto, Framing::Roce] {
        let (mut a, mut b) = (Rig::with_framing(5, Icrc::Auto, framing), Rig::new(6, Icrc::Auto));
        let [qp, _] = connected(&mut a, &mut b, Service::Rc);
        a.take_sent();
        let good = Datagram::send(&a, &qp, (b.address, b.port), a.port, End::Tag(tag(&a, &qp)));
        match framing {
            Framing::Roce => none_is_accepted(&mut a, &qp, &good, &[("a frame", &|d| d.framed = true, 0)]),
            _ => each_is_accepted(&mut a, &qp, &good, &[("a frame", &|d| d.framed = true)]),
        }
        each_is_accepted(&mut a, &qp, &good, &[("a RoCE packet", &|_| {})]);
    }
}

#[test]
fn a_ud_qp_takes_datagrams_of_any_peer_with_an_icrc_to_its_own_address() {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = rig.add_qp(Service::Ud);
    let attr = QpAttr { qkey: QKEY, ..QpAttr::default() };
    rig.modify(&qp, QpState::Init, &attr, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY);
    rig.modify(&qp, QpState::Rtr, &attr, AttrMask::empty());
    let good = Datagram::foreign(&rig, &qp);
    none_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[
            ("a wrong ICRC", &|d| d.end = End::Wrong(1), 0),
            ("a group address", &|d| d.to = [224, 0, 0, 5].into(), 0),
            ("another partition", &|d| d.bth.pkey = 0x8001, 1),
        ],
    );
    each_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[("from a peer", &|_| {}), ("from another peer", &|d| d.from = (address(200), 7).into())],
    );
}

#[test]
fn truncated_datagrams_and_garbage_are_dropped() {
    let (mut rig, qp, good) = with_foreign_peer();
    let (bytes, next) = (good.bytes(), Psn::new(FIRST_PSN));
    let mut random = 1u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let step = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (random >> 56) as u8
        };
        std::iter::repeat_with(step).take(len).collect()
    };
    for len in 0..bytes.len() {
        let mut garbage = noise(len);
        if len >= 8 {
            // To the QP, so that the checks see it.
            garbage[5..8].copy_from_slice(&qp.num.to_be_bytes()[1..]);
        }
        for datagram in [bytes[..len].to_vec(), garbage] {
            rig.arrive(good.from, good.to, good.to_port, &[datagram]);
            rig.turn();
            untouched(&rig, &qp, next, &format!("{len} bytes"));
        }
    }
    each_is_accepted(&mut rig, &qp, &good, &[("all bytes", &|_| {})]);
}

#[test]
fn a_hello_by_port_4791_is_ignored() {
    let (mut a, mut b) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
    let qp = b.add_qp(Service::Rc);
    b.connect(&qp, a.address, 5 << 14 | 1);
    let hello = b.take_bursts().remove(0).groups.remove(0);
    assert!(hello.datagrams[0].starts_with(&MAGIC) && hello.to == (a.address, a.port).into());
    for (port, answers) in [(ROCE_PORT, false), (a.port, true)] {
        a.arrive((b.address, b.port).into(), a.address, port, &hello.datagrams);
        a.turn();
        assert_eq!(!a.take_bursts().is_empty(), answers, "port {port}");
    }
}

#[test]
fn the_datagrams_of_a_buffer_are_handled_in_order_whatever_their_qps() {
    let (mut rig, x, of_x) = with_foreign_peer();
    let y = rig.add_qp(Service::Rc);
    rig.connect(&y, address(9), FOREIGN + 1);
    let of_y = Datagram::foreign(&rig, &y);
    let mut memory = vec![0; 64];
    let sge = rig.register(&mut memory);
    for (qp, first) in [(&x, 10), (&y, 20)] {
        (first..first + 4).for_each(|wr_id| rig.post_recv(qp, wr_id, &[sge]));
    }
    let at = |datagram: &Datagram, psn| datagram.operation(Operation::SendOnly, psn, b"payload!").bytes();
    let damaged = of_x.with(|datagram| datagram.end = End::Wrong(1)).bytes();
    let other = of_x.with(|datagram| datagram.bth.dest_qp &= (1 << 14) - 1).bytes();
    let buffer =
        [at(&of_x, 0), at(&of_x, 1), damaged.clone(), at(&of_y, 0), other, at(&of_x, 2), damaged, at(&of_y, 1)];
    rig.arrive(of_x.from, of_x.to, of_x.to_port, &buffer);
    rig.arrive(of_x.from, of_x.to, of_x.to_port, &[at(&of_x, 3), at(&of_y, 2)]);
    rig.turn();
    let order: Vec<u64> = rig.completions().iter().map(|completion| completion.wr_id).collect();
    assert_eq!(order, [10, 11, 20, 12, 21, 13, 22]);
    assert_eq!(rig.state.shown.traffic.packets_received.get(), 10, "dropped ones count too");
}

#[test]
fn an_ack_at_the_end_of_a_buffer_is_handled_first_unless_it_follows_other_responses() {
    let (mut rig, qp, from_peer) = with_foreign_peer();
    let mut memory = vec![0; 64];
    let sge = rig.register(&mut memory);
    let order = |rig: &mut Rig, buffer: &[Datagram]| -> Vec<u64> {
        rig.arrive(
            from_peer.from,
            from_peer.to,
            from_peer.to_port,
            &buffer.iter().map(Datagram::bytes).collect::<Vec<_>>(),
        );
        rig.turn();
        rig.completions().iter().map(|completion| completion.wr_id).collect()
    };
    rig.post_recv(&qp, 1, &[sge]);
    rig.post_send(&qp, 2, SendOp::Send, Data::Inline(&[]));
    rig.turn();
    let request = from_peer.operation(Operation::SendOnly, 0, b"sixteen bytes of");
    let ack = |psn| from_peer.operation(Operation::Acknowledge, psn, &[]);
    assert_eq!(order(&mut rig, &[request, ack(0)]), [2, 1]);
    // An ACK before the READ response would show that the response is lost.
    rig.post_send(
        &qp,
        3,
        SendOp::Read { remote_addr: 0, rkey: 1 },
        Data::Gather(&[weir_transport::Sge { length: 8, ..sge }]),
    );
    rig.post_send(&qp, 4, SendOp::Send, Data::Inline(&[]));
    rig.turn();
    let response = from_peer.operation(Operation::ReadResponseOnly, 1, b"response");
    assert_eq!(order(&mut rig, &[response, ack(2)]), [3, 4]);
    assert_eq!(qp.lock().retransmissions().implied_naks, 0);
}

#[test]
fn a_retired_qp_acknowledges_duplicates_and_nothing_new() {
    let (mut rig, qp, good) = with_foreign_peer();
    each_is_accepted(&mut rig, &qp, &good, &[("before it is destroyed", &|_| {})]);
    rig.engine.remove_qp(&rig.state, qp.num, Arc::new(()));
    let next = qp.lock().attr().rq_psn;
    good.arrive(&mut rig);
    let acks: Vec<_> = rig.take_sent().into_iter().flat_map(|group| group.datagrams).collect();
    assert!(acks.len() == 1 && Opcode(acks[0][0]).operation() == Some(Operation::Acknowledge), "{acks:x?}");
    none_is_accepted(
        &mut rig,
        &qp,
        &good,
        &[
            ("a new request", &|d| d.bth.psn = next, 0),
            ("a duplicate without payload", &|d| d.payload.clear(), 0),
            ("a response", &|d| d.bth.opcode = Opcode::new(Service::Rc, Operation::Acknowledge), 0),
        ],
    );
    // UC has no ACKs.
    let uc = rig.add_qp(Service::Uc);
    rig.connect(&uc, address(9), FOREIGN + 1);
    let arrival = Arrival { to: rig.address, ..Arrival::new(good.from, ROCE_PORT, 0, 0) };
    let index = rig.engine.table.index(uc.num).unwrap();
    assert!(rig.engine.checks(index, &arrival).is_some());
    rig.engine.remove_qp(&rig.state, uc.num, Arc::new(()));
    assert!(rig.engine.checks(index, &arrival).is_none());
}

#[test]
fn what_was_changed_on_the_way_is_counted_and_noted_for_the_log() {
    let (mut rig, qp, good) = with_foreign_peer();
    let next = qp.lock().attr().rq_psn;
    let counted = |rig: &Rig| {
        let traffic = &rig.engine.shown.traffic;
        (traffic.wrong_sender.get(), traffic.wrong_icrc.get())
    };
    good.with(|d| d.from.set_ip(address(8))).arrive(&mut rig);
    good.with(|d| d.end = End::Wrong(1)).arrive(&mut rig);
    untouched(&rig, &qp, next, "both are dropped");
    assert_eq!(counted(&rig), (1, 1));
    let noted = rig.state.arrival_errors.noted();
    assert_eq!(noted.iter().map(|error| error.kind).collect::<Vec<_>>(), [Translated, Changed]);
    assert!(noted.iter().all(|error| (error.qp, error.peer) == (qp.num, address(9))), "{noted:?}");
    // Once its peer has been heard, packets of others say nothing about the way.
    let (mut rig, qp, good) = with_foreign_peer();
    each_is_accepted(&mut rig, &qp, &good, &[("from the peer", &|_| {})]);
    good.with(|d| d.from.set_ip(address(8))).arrive(&mut rig);
    assert_eq!((counted(&rig), rig.state.arrival_errors.noted()), ((1, 0), vec![]));
}
