use super::*;
use crate::config::Icrc;
use crate::engine::testing::{FIRST_PSN, Rig, connected, exchange};
use crate::os::clock;
use crate::stat::sheet;
use crate::tap::record::Record;
use crate::tap::ring::Reader;
use std::fs::File;
use weir_transport::{Data, SendOp, Service};
use weir_wire::Operation;

/// What the engine's thread does.
fn renew(rig: &mut Rig) -> Option<Box<Tap>> {
    let words = &rig.engine.shown.tap;
    let new = words.is_watched(clock::now().0).then(|| Box::new(Tap::create(words).unwrap()));
    if new.is_none() {
        words.end_watch(clock::now().0);
    }
    rig.engine.exchange_tap(new)
}

fn reader(rig: &Rig) -> Reader {
    let (nonce, file) = rig.engine.shown.tap.announced().unwrap().unwrap();
    Reader::open(&File::open(format!("/proc/self/fd/{file}")).unwrap(), nonce).unwrap()
}

fn read(reader: &mut Reader) -> Vec<Record> {
    let mut records = Vec::new();
    reader.read(|_, record| records.push(record));
    assert_eq!(reader.missed(), 0);
    records
}

#[test]
fn a_watcher_sees_what_both_sides_send_and_receive() {
    let (mut a, mut b) = (Rig::new(1, Icrc::Auto), Rig::new(2, Icrc::Auto));
    let qps = connected(&mut a, &mut b, Service::Rc);
    let mut memory = [7; 100];
    let sge = b.register(&mut memory);
    b.post_recv(&qps[1], 1, &[sge]);
    for rig in [&mut a, &mut b] {
        rig.engine.shown.tap.watch(clock::now().0);
        renew(rig);
    }
    let mut readers = [reader(&a), reader(&b)];
    a.post_send(&qps[0], 1, SendOp::Send, Data::Inline(&[5; 42]));
    exchange(&mut a, &mut b);
    let [of_a, of_b] = readers.each_mut().map(read);
    for (records, own, other, sends) in [(&of_a, &qps[0], &qps[1], true), (&of_b, &qps[1], &qps[0], false)] {
        let [send, ack] = records[..] else { panic!("{records:?}") };
        assert_eq!((send.own_qp, send.other_qp, send.sent), (own.num, other.num, sends));
        assert_eq!((ack.own_qp, ack.other_qp, ack.sent), (own.num, other.num, !sends));
        assert_eq!((send.headers.bth.opcode.operation(), send.payload), (Some(Operation::SendOnly), 42));
        assert_eq!(ack.headers.bth.opcode.operation(), Some(Operation::Acknowledge));
        assert_eq!((send.headers.bth.psn.get(), ack.headers.bth.psn.get()), (FIRST_PSN, FIRST_PSN));
        assert_eq!((send.headers.bth.dest_qp, ack.headers.bth.dest_qp), (qps[1].num, qps[0].num));
        assert!(send.time <= ack.time);
    }
    assert_eq!((of_a[0].local, of_a[0].remote), (a.address, b.address));
    assert_eq!((of_b[0].local, of_b[0].remote), (b.address, a.address));
}

#[test]
fn the_tap_is_asked_for_and_freed_once_each() {
    let mut rig = Rig::new(3, Icrc::Auto);
    rig.turn();
    assert_eq!(rig.state.pace.take_tasks(), ThreadTasks::NONE, "nothing is done without a watcher");
    rig.engine.shown.tap.watch(clock::now().0);
    rig.turn();
    assert!(rig.state.pace.take_tasks().contains(ThreadTasks::TAP));
    rig.turn();
    assert_eq!(rig.state.pace.take_tasks(), ThreadTasks::NONE, "it was asked");
    renew(&mut rig);
    rig.turn();
    assert_eq!(rig.state.pace.take_tasks(), ThreadTasks::NONE);
    assert!(rig.engine.has_tap());
    // The watcher has died more than two seconds ago.
    rig.engine.shown.tap.watch(clock::now().0 - sheet::Tap::AHEAD);
    rig.turn();
    assert!(rig.state.pace.take_tasks().contains(ThreadTasks::TAP));
    assert!(renew(&mut rig).is_some() && !rig.engine.has_tap());
    assert!(rig.engine.shown.tap.announced().is_none());
    rig.turn();
    assert_eq!(rig.state.pace.take_tasks(), ThreadTasks::NONE);
}
