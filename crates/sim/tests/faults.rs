//! Page faults on both sides, with the ideal profile and with adapters that have flaws.

mod common;

use common::{Notes, Two, micros, numbers};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weir_sim::{App, Done, Link, Loss, PacketEvent, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Delay, Instant, Profile, RecvWr, RequesterFaults, SendOp, Status};

const PINNED: Paging = Paging::Pinned;
const DEMAND: Paging = Paging::OnDemand;

fn connectx4() -> Profile {
    weir_profiles::load("connectx4").expect("it is embedded")
}

#[test]
fn with_the_ideal_profile_operations_wait_for_their_pages() {
    for paging in [[DEMAND, PINNED], [PINNED, DEMAND], [DEMAND, DEMAND]] {
        let mut two = Two::new(1, Link::FDR, Profile::ideal(), paging);
        let caps = weir_transport::QpCaps { max_recv_wr: 1, ..QpSetup::default().caps };
        let [qp, peer] = two.sim.connect(two.hosts[0], two.hosts[1], &QpSetup { caps, ..QpSetup::default() });
        two.read(qp, 1, 0, 100_000);
        two.write(qp, 2, 1 << 19, 100_000);
        let sges = [two.regions[1].sge(3 << 18, 5000)];
        two.sim.post_recv(peer, &RecvWr { wr_id: 4, sges: &sges }).expect("room in the receive queue");
        two.post(qp, 3, SendOp::Send, 0, 5000);
        two.run();
        let [client, server] = two.regions;
        assert!(two.sim.bytes(&client)[..100_000] == numbers()[..100_000]);
        assert!(two.sim.bytes(&server)[1 << 19..][..100_000].iter().all(|&byte| byte == 0));
        // The SEND carries the data that the READ returned.
        assert!(two.sim.bytes(&server)[3 << 18..][..5000] == numbers()[..5000]);
        assert_eq!(two.notes.0.len(), 4);
        let total = two.sim.total();
        assert_eq!((total.repeated, total.lost()), (0, 0), "{total:?}");
        for (host, paging) in two.hosts.into_iter().zip(paging) {
            // The pages of a message are resolved by a common fault.
            assert_eq!(two.sim.page_faults(host) > 0, paging == DEMAND);
            assert!(two.sim.page_faults(host) <= 3, "{}", two.sim.page_faults(host));
        }
    }
}

#[test]
fn all_accesses_to_a_missing_page_share_a_fault() {
    for profile in [Profile::ideal(), connectx4()] {
        let retransmits = matches!(profile.page_faults.requester, RequesterFaults::Discard { .. });
        let mut two = Two::new(1, Link::FDR, profile, [DEMAND, PINNED]);
        for n in 0..32 {
            let qp = two.connect(&QpSetup::default());
            two.read(qp, n, n * 128, 128);
        }
        two.run();
        assert_eq!(two.sim.page_faults(two.hosts[0]), 1);
        assert_eq!(two.notes.0.len(), 32);
        assert_eq!(two.sim.total().repeated > 0, retransmits);
        assert!(two.sim.is_present(&two.regions[0], 0) && !two.sim.is_present(&two.regions[0], 4096));
    }
}

#[test]
fn a_fault_takes_as_long_as_the_profile_says() {
    let mut profile = Profile::ideal();
    profile.page_faults.resolve = weir_transport::Delay { low: micros(250), high: micros(1000) };
    let mut times = BTreeSet::new();
    for seed in 0..50 {
        let mut two = Two::new(seed, Link::FDR, profile.clone(), [PINNED, DEMAND]);
        let qp = two.connect(&QpSetup::default());
        two.read(qp, 1, 0, 100);
        two.run();
        let time = two.notes.at(1);
        assert!((micros(252)..micros(1003)).contains(&time), "seed {seed}: {time:?}");
        times.insert(time);
    }
    assert!(times.len() > 45, "the times differ");
    let spread = *times.last().expect("many") - *times.first().expect("many");
    assert!(spread > micros(500), "the times span the range: {spread:?}");
}

#[test]
fn an_adapter_may_resolve_faults_serially() {
    for (serial, most) in [(false, 1.0), (true, 8.0)] {
        let mut profile = Profile::ideal();
        profile.page_faults.resolve = weir_transport::Delay::exactly(micros(300));
        profile.page_faults.serial = serial;
        let mut two = Two::new(1, Link::FDR, profile, [PINNED, DEMAND]);
        for n in 0..8 {
            let qp = two.connect(&QpSetup::default());
            two.read(qp, n, n * 4096, 100);
        }
        two.run();
        assert_eq!(two.sim.page_faults(two.hosts[1]), 8);
        let last = (0..8).map(|n| two.notes.at(n)).max().expect("eight");
        assert!((last.as_secs_f64() / micros(300).as_secs_f64() - most).abs() < 0.1, "{serial}: {last:?}");
    }
}

/// Makes random pages absent while the test reads and writes the regions.
struct Unmapper {
    notes: Notes,
    regions: [Region; 2],
    draw: u64,
    every: Duration,
    left: u32,
}

impl App for Unmapper {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        self.notes.completed(sim, done);
    }

    fn timer(&mut self, sim: &mut Simulation, _: u64) {
        for region in self.regions {
            self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = (self.draw >> 33) % 248 * 4096;
            sim.set_present(&region, page..page + 8 * 4096, false);
        }
        self.left -= 1;
        if self.left > 0 {
            sim.set_timer(sim.after(self.every), 0);
        }
    }
}

#[test]
fn all_data_is_correct_while_pages_are_invalidated() {
    for (name, seeds) in [("ideal", 20), ("connectx4", 5), ("connectx5", 5), ("connectx6", 5), ("connectx6-roce", 5)] {
        for seed in 0..seeds {
            let profile = weir_profiles::load(name).expect("it is embedded");
            let mut two = Two::new(seed, Link::FDR.lossy(0.002), profile, [DEMAND, DEMAND]);
            let qps: Vec<QpId> = (0..6).map(|_| two.connect(&QpSetup { timeout: 10, ..QpSetup::default() })).collect();
            for n in 0..64 {
                // The lower half of the server's region is read; its upper half is written from that of the client's
                // region.
                let (qp, at) = (qps[n as usize % 6], n * 8192);
                if n % 2 == 0 { two.read(qp, n, at, 8192) } else { two.write(qp, n, (1 << 19) + at, 8000) }
            }
            two.sim.bytes_mut(&two.regions[0].clone())[1 << 19..].fill(9);
            let every = if name == "ideal" { micros(5) } else { micros(150) };
            let mut app = Unmapper { notes: Notes::default(), regions: two.regions, draw: seed, every, left: 40 };
            two.sim.set_timer(Instant(0) + micros(2), 0);
            two.sim.run(&mut app);
            assert_eq!(app.notes.0.len(), 64, "{name}, seed {seed}");
            assert!(two.hosts.iter().all(|&host| two.sim.page_faults(host) > 20), "{name}, seed {seed}");
            assert!(app.notes.0.iter().all(|note| note.2 == Status::Success), "{name}, seed {seed}: {:?}", app.notes.0);
            for qp in 0..6 {
                let mut order = app.notes.0.iter().map(|note| note.0).filter(|wr_id| wr_id % 6 == qp);
                assert!(order.clone().is_sorted(), "{name}, seed {seed}: {:?}", order.collect::<Vec<_>>());
                assert_eq!(order.next(), Some(qp));
            }
            let client = two.sim.bytes(&two.regions[0].clone()).to_vec();
            let server = two.sim.bytes(&two.regions[1].clone()).to_vec();
            let numbers = numbers();
            for at in (0..64).map(|n| n * 8192) {
                if at / 8192 % 2 == 0 {
                    assert!(client[at..][..8192] == numbers[at..][..8192], "{name}, seed {seed}: READ at {at}");
                } else {
                    let at = at + (1 << 19);
                    assert!(server[at..][..8000].iter().all(|&b| b == 9), "{name}, seed {seed}: WRITE at {at}");
                    assert!(
                        server[at + 8000..][..192] == numbers[at + 8000..][..192],
                        "{name}, seed {seed}: after the WRITE at {at}"
                    );
                }
            }
        }
    }
}

#[test]
fn packets_lost_by_the_adapter_are_observed_and_counted() {
    let mut two = Two::new(1, Link::FDR, connectx4(), [PINNED, DEMAND]);
    let qp = two.connect(&QpSetup { timeout: 1, ..QpSetup::default() });
    let lost = Rc::new(Cell::new(0));
    let seen = lost.clone();
    two.sim.observe(move |packet| {
        seen.set(seen.get() + u32::from(packet.event == PacketEvent::Lost(Loss::Adapter)));
    });
    two.read(qp, 1, 0, 100);
    // In the middle of the RNR wait.
    two.sim.run_until(Instant(0) + micros(2000), &mut two.notes);
    two.read(qp, 2, 0, 100);
    two.run();
    assert_eq!((lost.get(), two.sim.total().lost_by_adapter), (1, 1));
    assert_eq!(two.sim.qp(qp).expect("the QP exists").retransmissions().ack_timeouts, 1);
    assert!(two.notes.at(1) < micros(10_000) && two.notes.at(2) > micros(100_000));
}

/// 128 READs over 128 QPs into the same page; its fault takes 650 µs. Returns the packet count, and the times of the
/// first and the last completion.
fn into_one_page(mut profile: Profile) -> (u64, Duration, Duration) {
    profile.page_faults.resolve = Delay::exactly(micros(650));
    let mut two = Two::new(1, Link::FDR, profile, [DEMAND, PINNED]);
    for n in 0..128 {
        let qp = two.connect(&QpSetup { timeout: 18, ..QpSetup::default() });
        two.read(qp, n, n * 32, 32);
    }
    two.run();
    assert_eq!(two.notes.0.len(), 128);
    let times = || (0..128).map(|n| two.notes.at(n));
    (two.sim.total().sent(), times().min().expect("some"), times().max().expect("some"))
}

#[test]
fn in_a_flood_reads_that_dropped_twice_complete_late_and_are_repeated() {
    let flooded = into_one_page(connectx4());
    let calm = into_one_page(Profile { flood: None, ..connectx4() });
    assert!(flooded.0 > calm.0 && flooded.1 < micros(1000), "{flooded:?}, {calm:?}");
    // The stale events of the 127 other READs are served first: 127 × 40 µs.
    assert!(calm.2 < micros(2000) && flooded.2 > micros(5000) && flooded.2 < micros(8000), "{flooded:?}, {calm:?}");
}

#[test]
#[should_panic(expected = "no on-demand paging")]
fn an_adapter_without_on_demand_paging_refuses_such_memory() {
    Two::new(1, Link::FDR, Profile { on_demand: false, ..Profile::ideal() }, [DEMAND, PINNED]);
}
