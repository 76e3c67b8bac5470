use super::*;
use crate::config::Icrc;
use crate::engine::testing::{FIRST_PSN, Rig, address, connected, exchange};
use crate::shared::drop_log::DropNote;
use crate::shared::qp::QpShared;
use std::sync::Arc;
use weir_transport::{AttrMask, Data, DropCause, Psn, QpAttr, QpState, SendOp};
use weir_wire::{Bth, Deth, Headers, Opcode, Operation};

const QKEY: u32 = 0x1111;
/// The QP of the sender of datagrams.
const SENDER: u32 = 17;

fn datagram_qp(rig: &mut Rig) -> Arc<QpShared> {
    let qp = rig.add_qp(Service::Ud);
    let attr = QpAttr { qkey: QKEY, ..QpAttr::default() };
    rig.modify(&qp, QpState::Init, &attr, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY);
    rig.modify(&qp, QpState::Rtr, &attr, AttrMask::empty());
    qp
}

/// A datagram of an adapter at address 9 comes.
fn arrive(rig: &mut Rig, qp: &QpShared, qkey: u32, payload: &[u8]) {
    let opcode = Opcode::new(Service::Ud, Operation::SendOnly);
    let mut headers = Headers::new(Bth::new(opcode, qp.num, Psn::new(FIRST_PSN)));
    headers.put(Deth { qkey: qkey.into(), src_qp: SENDER.into() });
    rig.arrive_foreign_packet(9, &headers, payload);
    rig.turn();
}

#[test]
fn a_datagram_that_is_dropped_is_noted_for_the_log() {
    let mut rig = Rig::new(5, Icrc::Auto);
    let qp = datagram_qp(&mut rig);
    let mut memory = [0; 48];
    let sge = rig.register(&mut memory);
    let note = |why| DropNote { qp: qp.num, sender: SENDER, from: Some(address(9)), why };
    let mut wanted = vec![note(DropCause::QKey { sent: 7, own: QKEY })];
    arrive(&mut rig, &qp, 7, b"payload!");
    assert_eq!(rig.state.dropped.noted(), wanted);
    arrive(&mut rig, &qp, QKEY, b"payload!");
    wanted.push(note(DropCause::NoReceive));
    assert_eq!(rig.state.dropped.noted(), wanted);
    rig.post_recv(&qp, 1, &[sge]);
    arrive(&mut rig, &qp, QKEY, b"longer payload!!");
    wanted.push(note(DropCause::TooLong { room: 48 }));
    assert_eq!(rig.state.dropped.noted(), wanted);
    let mtu = 4096;
    arrive(&mut rig, &qp, QKEY, &[0; 4100]);
    wanted.push(note(DropCause::AboveMtu { length: 4100, mtu }));
    assert_eq!(rig.state.dropped.noted(), wanted);
    assert!(rig.completions().is_empty(), "all were dropped");
    arrive(&mut rig, &qp, QKEY, b"payload!");
    assert_eq!((rig.completions().len(), rig.state.dropped.noted().len()), (1, 4), "it fits");
    // A kind is noted once in a minute.
    arrive(&mut rig, &qp, 8, b"payload!");
    assert_eq!(rig.state.dropped.noted(), wanted);
}

#[test]
fn a_message_of_uc_that_is_dropped_is_noted_for_the_log() {
    let (mut a, mut b) = (Rig::new(6, Icrc::Auto), Rig::new(7, Icrc::Auto));
    let [from, to] = connected(&mut a, &mut b, Service::Uc);
    let (mut long, mut small) = ([0; 64], [0; 16]);
    let (source, short) = (a.register(&mut long), b.register(&mut small));
    let note = |why| DropNote { qp: to.num, sender: from.num, from: None, why };
    let send = |a: &mut Rig, b: &mut Rig, op| {
        a.post_send(&from, 1, op, Data::Gather(&[source]));
        exchange(a, b);
    };
    let mut wanted = vec![note(DropCause::NoReceive)];
    send(&mut a, &mut b, SendOp::Send);
    assert_eq!(b.state.dropped.noted(), wanted);
    b.post_recv(&to, 2, &[short]);
    send(&mut a, &mut b, SendOp::Send);
    wanted.push(note(DropCause::TooLong { room: 16 }));
    assert_eq!(b.state.dropped.noted(), wanted);
    send(&mut a, &mut b, SendOp::Write { remote_addr: 0x1000, rkey: 0x5_0000 });
    wanted.push(note(DropCause::Refused));
    assert_eq!(b.state.dropped.noted(), wanted);
    assert!(a.state.dropped.noted().is_empty() && b.completions().is_empty());
}
