//! Links and switches: rate, latency, overflowing buffers, and parallel routes.

mod common;

use common::{Notes, Two, micros};
use std::sync::Arc;
use std::time::Duration;
use weir_sim::{App, Backing, Done, Link, Loss, PacketEvent, Paging, QpSetup, Simulation, Trace};
use weir_transport::{Data, Mtu, Profile, SendFlags, SendOp, SendWr, Status};

const PINNED: [Paging; 2] = [Paging::Pinned; 2];

#[test]
fn a_write_takes_its_time_on_the_wire_and_two_latencies() {
    let link = Link::ethernet(10.0);
    let mut two = Two::new(1, link, Profile::ideal(), PINNED);
    let qp = two.connect(&QpSetup::default());
    two.write(qp, 1, 0, 4096);
    two.run();
    // BTH 12, RETH 16, payload, ICRC 4; the ACK: BTH 12, AETH 4, ICRC 4; both with the overhead of Ethernet; 0.8 ns
    // per byte.
    let (there, back) = (12 + 16 + 4096 + 4 + 66, 12 + 4 + 4 + 66);
    let expected =
        Duration::from_nanos((there as f64 * 0.8).ceil() as u64 + (back as f64 * 0.8).ceil() as u64) + micros(2);
    let difference = two.notes.at(1).abs_diff(expected);
    assert!(difference <= Duration::from_nanos(1), "{:?}, not {expected:?}", two.notes.at(1));
}

#[test]
fn a_long_message_is_sent_at_the_links_rate() {
    for (operation, link) in [("write", Link::FDR), ("read", Link::FDR), ("write", Link::ethernet(100.0))] {
        let mut two = Two::new(1, link, Profile::ideal(), PINNED);
        let qp = two.connect(&QpSetup::default());
        for wr_id in 0..16 {
            if operation == "read" { two.read(qp, wr_id, 0, 1 << 20) } else { two.write(qp, wr_id, 0, 1 << 20) }
        }
        two.run();
        let rate = (16u64 << 23) as f64 / two.notes.at(15).as_secs_f64();
        let share = rate / link.rate;
        // Headers take 1 to 2.3 %, two latencies less than 1 %.
        assert!((0.96..0.995).contains(&share), "{operation} over {link:?}: {share}");
    }
}

/// The WRITE arrives long before the last packet of the response leaves, which has the bytes that it changes.
#[test]
fn a_write_behind_a_read_does_not_change_what_it_reads() {
    const LEN: usize = 1 << 18;
    const LAST: usize = LEN - 4096;
    for late_reads in [false, true] {
        let mut two = Two::new(1, Link::FDR, Profile { late_reads, ..Profile::ideal() }, PINNED);
        let qp = two.connect(&QpSetup::default());
        two.read(qp, 0, 0, LEN as u32);
        let zeros = [two.regions[0].sge(1 << 19, 4096)];
        let op = SendOp::Write { remote_addr: two.regions[1].addr + LAST as u64, rkey: two.regions[1].key };
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&zeros) };
        two.sim.post_send(qp, &wr).unwrap();
        two.run();
        assert!(two.notes.at(1) >= two.notes.at(0));
        let [client, server] = two.regions;
        let read = &two.sim.bytes(&client)[LAST..LEN];
        assert_eq!(read.iter().all(|&byte| byte == 0), late_reads);
        assert!(late_reads || *read == common::numbers()[LAST..LEN]);
        assert!(two.sim.bytes(&server)[LAST..LEN].iter().all(|&byte| byte == 0), "the WRITE was executed");
    }
}

#[test]
fn small_packets_are_sent_at_the_links_rate_without_rounding_loss() {
    let link = Link::ethernet(100.0);
    let mut two = Two::new(1, link, Profile::ideal(), PINNED);
    let qp = two.connect(&QpSetup { caps: caps(1000), timeout: 0, ..QpSetup::default() });
    (0..1000).for_each(|wr_id| two.write(qp, wr_id, 0, 1));
    two.run();
    // 12 + 16 + 1 + 3 + 4 + 66 bytes of 80 ps.
    let expected = Duration::from_nanos(1000 * 102 * 80 / 1000) + micros(2);
    let difference = two.notes.at(999).abs_diff(expected);
    assert!(difference < Duration::from_nanos(200), "{:?}, not {expected:?}", two.notes.at(999));
}

#[test]
fn qps_share_a_port_fairly() {
    let mut two = Two::new(1, Link::FDR, Profile::ideal(), PINNED);
    let qps = [(); 4].map(|()| two.connect(&QpSetup::default()));
    for (n, qp) in qps.into_iter().enumerate() {
        two.write(qp, n as u64, 0, 1 << 20);
    }
    two.run();
    let ends = [0, 1, 2, 3].map(|n| two.notes.at(n).as_secs_f64());
    assert!(ends.iter().all(|end| end / ends[3] > 0.99), "{ends:?}");
}

fn caps(max_send_wr: u32) -> weir_transport::QpCaps {
    weir_transport::QpCaps { max_send_wr, ..QpSetup::default().caps }
}

/// Many senders and a receiver at the same switch.
fn incast(senders: usize, buffer: u64) -> (Simulation, Notes, u64) {
    let mut sim = Simulation::new(1);
    let profile = Arc::new(Profile::ideal());
    let sink = sim.add_host(&profile);
    let switch = sim.add_switch(buffer);
    sim.link(sink, switch, Link::ethernet(25.0));
    let data: Vec<u8> = (0..1u32 << 16).map(|n| (n * 7 + n / 256) as u8).collect();
    let to = sim.register(sink, Backing::Bytes(vec![0; senders << 16]), Paging::Pinned);
    for n in 0..senders as u64 {
        let host = sim.add_host(&profile);
        sim.link(host, switch, Link::ethernet(25.0));
        let from = sim.register(host, Backing::Bytes(data.clone()), Paging::Pinned);
        let [qp, _] = sim.connect(host, sink, &QpSetup::default());
        let op = SendOp::Write { remote_addr: to.addr + (n << 16), rkey: to.key };
        let sges = [from.sge(0, 1 << 16)];
        let wr = SendWr { wr_id: n, op, flags: SendFlags::SIGNALED, data: Data::Gather(&sges) };
        sim.post_send(qp, &wr).expect("an empty queue");
    }
    let mut notes = Notes::default();
    sim.run(&mut notes);
    assert!(notes.0.iter().all(|note| note.2 == Status::Success));
    for chunk in sim.bytes(&to).chunks(1 << 16) {
        assert!(chunk == data, "the data arrives unchanged");
    }
    let drops = sim.drops(switch);
    (sim, notes, drops)
}

#[test]
fn packets_lost_in_full_buffers_are_retransmitted() {
    let (sim, notes, drops) = incast(8, 64 << 10);
    assert_eq!(notes.0.len(), 8);
    assert!(drops > 0);
    let total = sim.total();
    assert_eq!((total.lost_in_buffers, total.lost()), (drops, drops));
    assert_eq!(total.arrived + drops, total.sent());
    assert!(total.repeated >= drops, "{total:?}");
    // With enough buffer nothing is lost, and the receiver's link is always busy.
    let (sim, notes, drops) = incast(8, 1 << 20);
    assert_eq!((drops, sim.total().repeated), (0, 0));
    let wire = (8 << 16) as f64 * 8.0 / 25e9;
    let time = notes.0.iter().map(|note| (note.1 - weir_transport::Instant(0)).as_secs_f64()).fold(0.0, f64::max);
    assert!((1.0..1.1).contains(&(time / wire)), "{time} s, {wire} s on the wire");
}

#[test]
fn latencies_of_switches_add_up_over_parallel_routes() {
    // Two leaves, two spines.
    let mut sim = Simulation::new(1);
    let profile = Arc::new(Profile::ideal());
    let [a, b] = [(); 2].map(|()| sim.add_host(&profile));
    let [leaf_a, leaf_b, spine, other] = [(); 4].map(|()| sim.add_switch(1 << 20));
    let link = Link::ethernet(100.0);
    sim.link(a, leaf_a, link);
    sim.link(b, leaf_b, link);
    for up in [spine, other] {
        sim.link(leaf_a, up, link);
        sim.link(up, leaf_b, link);
    }
    let from = sim.register(a, Backing::Phantom(64), Paging::Pinned);
    let to = sim.register(b, Backing::Phantom(64), Paging::Pinned);
    let trace = Trace::default();
    sim.observe(trace.watch());
    for wr_id in 0..64 {
        let [qp, _] = sim.connect(a, b, &QpSetup::default());
        let op = SendOp::Write { remote_addr: to.addr, rkey: to.key };
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[from.sge(0, 64)]) };
        sim.post_send(qp, &wr).expect("an empty queue");
    }
    let mut notes = Notes::default();
    sim.run(&mut notes);
    assert_eq!(notes.0.len(), 64);
    // Four links in each direction, of a microsecond each; a packet takes 13 ns at most, and 63 packets precede the
    // last.
    assert!((micros(8)..micros(10)).contains(&notes.at(0)), "{:?}", notes.at(0));
    assert!(!trace.is_empty());
}

#[test]
fn a_packet_beyond_the_mtu_is_lost() {
    let link = Link { mtu: Mtu::M1024, ..Link::FDR };
    let mut two = Two::new(1, link, Profile::ideal(), PINNED);
    let lost = std::rc::Rc::new(std::cell::Cell::new(0));
    let seen = lost.clone();
    two.sim.observe(move |packet| {
        seen.set(seen.get() + u32::from(packet.event == PacketEvent::Sent { lost: Some(Loss::TooLong) }));
    });
    let qp = two.connect(&QpSetup { retry_cnt: 1, timeout: 1, ..QpSetup::default() });
    two.write(qp, 1, 0, 1024);
    two.write(qp, 2, 0, 1025);
    two.run();
    assert_eq!(two.notes.0.iter().map(|note| note.2).collect::<Vec<_>>(), [Status::Success, Status::RetryExceeded]);
    assert_eq!(lost.get(), 2, "sent twice");
}

#[test]
fn packets_for_a_destroyed_qp_are_lost() {
    struct Destroyer;
    impl App for Destroyer {
        fn completed(&mut self, _: &mut Simulation, done: &Done) {
            panic!("{done:?}");
        }
    }
    let mut two = Two::new(1, Link::FDR, Profile::ideal(), PINNED);
    let [qp, peer] = two.sim.connect(two.hosts[0], two.hosts[1], &QpSetup { timeout: 0, ..QpSetup::default() });
    two.write(qp, 1, 0, 1 << 16);
    two.sim.destroy(peer);
    let [again, _] = two.sim.connect(two.hosts[1], two.hosts[0], &QpSetup::default());
    assert_ne!(again, peer, "its number is not reused at once");
    two.sim.run(&mut Destroyer);
    assert_eq!(two.sim.total().lost_without_destination, 16);
    assert_eq!(two.sim.total().arrived, 0);
}
