//! What a program does with a QP that is stuck: it fails it, starts it again at an earlier PSN, or prefetches its memory.

mod common;

use common::{Notes, Two, micros, numbers};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weir_sim::{App, Backing, Done, Link, PacketEvent, Paging, QpId, QpSetup, Simulation};
use weir_transport::{Data, Delay, Instant, Profile, QpState, SendFlags, SendOp, SendWr, Status};
use weir_wire::Syndrome;

const PINNED: Paging = Paging::Pinned;
const DEMAND: Paging = Paging::OnDemand;

/// Near the end of the PSNs, which wrap during the test.
const SETUP: QpSetup = QpSetup { psn: [0xff_fffe, 77], ..DEFAULT };
const DEFAULT: QpSetup = QpSetup {
    mtu: weir_transport::Mtu::M4096,
    caps: weir_transport::QpCaps {
        max_send_wr: 16,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    },
    timeout: 14,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 14,
    max_rd_atomic: 4,
    psn: [0, 0],
};

fn slow_faults() -> Profile {
    let mut profile = Profile::ideal();
    profile.page_faults.resolve = Delay::exactly(micros(500));
    profile
}

fn until(two: &mut Two, time: Duration) {
    two.sim.run_until(Instant(0) + time, &mut two.notes);
}

fn statuses(two: &Two) -> Vec<(u64, Status)> {
    two.notes.0.iter().map(|note| (note.0, note.2)).collect()
}

#[test]
fn a_failed_qp_flushes_what_is_open_and_what_follows() {
    let mut two = Two::new(1, Link::FDR, slow_faults(), [DEMAND, PINNED]);
    let qp = two.connect(&SETUP);
    two.write(qp, 1, 0, 0);
    until(&mut two, micros(100));
    two.read(qp, 2, 0, 100);
    two.write(qp, 3, 0, 0);
    until(&mut two, micros(200));
    two.sim.fail(qp);
    two.write(qp, 4, 0, 0);
    two.run();
    let flushed = Status::WrFlushed;
    assert_eq!(statuses(&two), [(1, Status::Success), (2, flushed), (3, flushed), (4, flushed)]);
    assert_eq!(two.sim.qp(qp).expect("it exists").state(), QpState::Error);
    let client = two.regions[0];
    assert!(two.sim.bytes(&client).iter().all(|&byte| byte == 0), "the response waited for its page, and is lost");
    two.sim.fail(QpId { num: qp.num + 1, ..qp });
}

#[test]
fn a_qp_starts_again_at_an_earlier_psn_and_the_peer_executes_no_write_twice() {
    for profile in [slow_faults(), weir_profiles::load("connectx4").expect("it is embedded")] {
        let name = profile.name.clone();
        let mut two = Two::new(1, Link::FDR, profile, [DEMAND, PINNED]);
        let pinned = two.sim.register(two.hosts[0], Backing::Bytes(vec![0; 16_384]), PINNED);
        let qp = two.connect(&SETUP);
        let [client, server] = two.regions;
        let post = |two: &mut Two, wr_id, op, sge| {
            let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[sge]) };
            two.sim.post_send(qp, &wr).expect("room in the send queue");
        };
        let read = SendOp::Read { remote_addr: server.addr, rkey: server.key };
        let write = SendOp::Write { remote_addr: server.addr + 0x10000, rkey: server.key };
        // A READ of two packets at PSN 0xfffffe, into a missing page, and a WRITE at PSN 0.
        post(&mut two, 1, read, client.sge(0, 8192));
        post(&mut two, 2, write, pinned.sge(12_288, 100));
        until(&mut two, micros(300));
        assert_eq!(two.sim.page_faults(two.hosts[0]), 1);
        // The ideal adapter sends the READ when its page is present; the other drops the response.
        let executed = two.sim.bytes(&server)[0x10000..][..100] == [0; 100];
        assert_eq!(executed, name == "connectx4");
        two.sim.fail(qp);
        until(&mut two, micros(300));
        assert_eq!(statuses(&two), [(1, Status::WrFlushed), (2, Status::WrFlushed)], "{name}");
        two.notes = Notes::default();
        two.sim.start_again(qp, SETUP.psn[0]);
        // If the peer executes the WRITE again, it changes this again.
        two.sim.bytes_mut(&server)[0x10000..][..100].fill(7);
        // In turn: the second adapter loses what arrives while it replays a READ.
        let turns = [(1, read, pinned.sge(0, 8192)), (2, write, pinned.sge(12_288, 100)), (3, read, pinned.sge(0, 4))];
        for (turn, (wr_id, op, sge)) in (1..).zip(turns) {
            post(&mut two, wr_id, op, sge);
            until(&mut two, micros(300 + turn * 150));
        }
        assert_eq!(statuses(&two), [1, 2, 3].map(|wr_id| (wr_id, Status::Success)), "{name}");
        assert!(two.sim.bytes(&pinned)[..8192] == numbers()[..8192], "{name}");
        let left = if executed { 7 } else { 0 };
        assert!(two.sim.bytes(&server)[0x10000..][..100].iter().all(|&byte| byte == left), "{name}");
        two.run();
        // The page has come after the first READ had ended.
        assert!(two.sim.is_present(&client, 0) && two.sim.bytes(&client).iter().all(|&byte| byte == 0), "{name}");
        let attr = two.sim.qp(qp).expect("it exists").attr();
        assert_eq!((attr.sq_psn.get(), attr.rq_psn.get(), attr.max_rd_atomic), (2, 77, 4), "{name}");
    }
}

/// Starts the QP again when the timer is due, and repeats the READ.
struct Again {
    qp: QpId,
    wr: Box<dyn Fn(&mut Simulation)>,
    done: Vec<(u64, Status)>,
}

impl App for Again {
    fn completed(&mut self, _: &mut Simulation, done: &Done) {
        self.done.push((done.completion.wr_id, done.completion.status));
    }

    fn timer(&mut self, sim: &mut Simulation, _: u64) {
        sim.fail(self.qp);
        sim.start_again(self.qp, SETUP.psn[0]);
        (self.wr)(sim);
    }
}

#[test]
fn a_qp_can_start_again_at_any_moment() {
    for name in weir_profiles::names() {
        let profile = weir_profiles::load(name).expect("it is embedded");
        if !profile.on_demand {
            continue;
        }
        for at in (0..2000).step_by(125) {
            let mut two = Two::new(at, Link::FDR.lossy(0.01), profile.clone(), [DEMAND, DEMAND]);
            let pinned = two.sim.register(two.hosts[0], Backing::Bytes(vec![0; 20_000]), PINNED);
            let qp = two.connect(&SETUP);
            two.read(qp, 1, 0, 20_000);
            let server = two.regions[1];
            let wr = move |sim: &mut Simulation| {
                let op = SendOp::Read { remote_addr: server.addr, rkey: server.key };
                let data = [pinned.sge(0, 20_000)];
                let wr = SendWr { wr_id: 2, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
                sim.post_send(qp, &wr).expect("room in the send queue");
            };
            two.sim.set_timer(Instant(0) + micros(at), 0);
            let mut app = Again { qp, wr: Box::new(wr), done: vec![] };
            two.sim.run(&mut app);
            let first = app.done[0];
            assert!(first == (1, Status::Success) || first == (1, Status::WrFlushed), "{name}, {at} µs: {first:?}");
            assert_eq!(app.done[1..], [(2, Status::Success)], "{name}, {at} µs");
            assert!(two.sim.bytes(&pinned) == &numbers()[..20_000], "{name}, {at} µs");
        }
    }
}

#[test]
fn a_prefetch_takes_the_time_of_a_page_fault() {
    let mut two = Two::new(1, Link::FDR, slow_faults(), [DEMAND, PINNED]);
    let qp = two.connect(&SETUP);
    let [client, server] = two.regions;
    let at = |micro| Instant(0) + micros(micro);
    assert_eq!(two.sim.prefetch(&server, 0..100), at(0), "pinned memory");
    assert_eq!(two.sim.prefetch(&client, 4000..4200), at(500));
    until(&mut two, micros(200));
    assert_eq!(two.sim.prefetch(&client, 0..4096), at(500), "it is under way");
    assert_eq!(two.sim.prefetch(&client, 8000..9000), at(700), "one page more");
    until(&mut two, micros(699));
    assert!(two.sim.is_present(&client, 4096) && !two.sim.is_present(&client, 8192));
    until(&mut two, micros(700));
    assert_eq!(two.sim.prefetch(&client, 0..12_288), at(700));
    two.read(qp, 1, 0, 12_000);
    two.run();
    assert!(two.notes.at(1) < micros(720) && two.sim.page_faults(two.hosts[0]) == 0);
    // A READ that meets a prefetch under way joins it.
    let begun = two.sim.now();
    assert_eq!(two.sim.prefetch(&client, 40_000..40_100), begun + micros(500));
    two.read(qp, 2, 40_000, 100);
    two.run();
    let took = two.notes.at(2) - (begun - Instant(0));
    assert!((micros(500)..micros(510)).contains(&took), "{took:?}");
    assert!(two.sim.bytes(&client)[40_000..][..100] == numbers()[40_000..][..100]);
}

#[test]
fn the_delay_that_a_qp_asks_for_can_change() {
    let profile = weir_profiles::load("connectx5").expect("it is embedded");
    let mut two = Two::new(1, Link::FDR, profile, [PINNED, DEMAND]);
    let [qp, peer] = two.sim.connect(two.hosts[0], two.hosts[1], &SETUP);
    two.sim.set_min_rnr_timer(peer, 1);
    let asked = Rc::new(Cell::new(0));
    let seen = asked.clone();
    two.sim.observe(move |packet| {
        let aeth = packet.headers.get::<weir_wire::Aeth>().filter(|_| packet.event == PacketEvent::Arrived);
        if let Some(Syndrome::RnrNak(timer)) = aeth.map(|aeth| Syndrome::from_byte(aeth.syndrome())) {
            seen.set(timer.code());
        }
    });
    two.read(qp, 1, 0, 100);
    two.run();
    assert_eq!(asked.get(), 1);
    assert!(two.notes.at(1) < micros(1500), "{:?}", two.notes.at(1));
}

#[test]
fn a_qp_that_starts_again_has_nothing_of_before() {
    let mut two = Two::new(1, Link::FDR, slow_faults(), [DEMAND, PINNED]);
    let qp = two.connect(&SETUP);
    let client = two.regions[0];
    two.sim.set_present(&client, 0..8192, true);
    two.read(qp, 1, 0, 100);
    // The page leaves while the READ is on its way: the response is held until a page fault ends.
    two.sim.set_present(&client, 0..4096, false);
    until(&mut two, micros(100));
    assert_eq!(two.sim.page_faults(two.hosts[0]), 1);
    let repeated = Rc::new(Cell::new(0));
    let seen = repeated.clone();
    two.sim.observe(move |packet| seen.set(seen.get() + u32::from(packet.repeated)));
    two.sim.fail(qp);
    // The same bytes to another place, and no packet until the page fault is over: a response could only be the old one.
    two.sim.lose_if(|packet| packet.at < Instant(0) + micros(1000));
    two.sim.start_again(qp, SETUP.psn[0]);
    let op = SendOp::Read { remote_addr: two.regions[1].addr, rkey: two.regions[1].key };
    two.post(qp, 2, op, 4096, 100);
    until(&mut two, micros(1000));
    assert_eq!((statuses(&two).len(), repeated.get()), (1, 0));
    assert!(two.sim.is_present(&client, 0));
    two.run();
    assert_eq!(statuses(&two), [(1, Status::WrFlushed), (2, Status::Success)]);
    let contents = two.sim.bytes(&client);
    assert!(contents[..4096] == [0; 4096] && contents[4096..][..100] == numbers()[..100]);
}
