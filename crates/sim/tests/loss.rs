//! Recovery from loss with correct data, and reproducible runs.

mod common;

use common::{Two, numbers};
use weir_sim::{Link, Loss, PacketEvent, Paging, QpSetup, Trace};
use weir_transport::{Profile, Status};
use weir_wire::Operation;

/// READs and WRITEs of various sizes over several QPs. Returns the trace's hash and the number of lost packets.
fn busy(seed: u64, loss: f64, paging: Paging) -> (u64, u64) {
    let mut two = Two::new(seed, Link::FDR.lossy(loss), Profile::ideal(), [paging; 2]);
    let trace = Trace::default();
    two.sim.observe(trace.watch());
    let setup = QpSetup { timeout: 1, retry_cnt: 7, ..QpSetup::default() };
    let qps: Vec<_> = (0..8).map(|_| two.connect(&setup)).collect();
    // The client reads half of the server's region, then writes the other half.
    let sizes = [1u32, 100, 4096, 4097, 30_000, 70_000];
    let (mut at, mut wr_id) = (0u64, 0);
    while at < 1 << 19 {
        let size = sizes[wr_id as usize % sizes.len()].min((1 << 19) - at as u32);
        two.read(qps[wr_id as usize % qps.len()], wr_id, at, size);
        (at, wr_id) = (at + u64::from(size), wr_id + 1);
    }
    two.run();
    assert!(two.notes.0.iter().all(|note| note.2 == Status::Success), "seed {seed}: {:?}", two.notes.0);
    assert_eq!(two.notes.0.len() as u64, wr_id, "seed {seed}");
    let region = two.regions[0];
    assert!(two.sim.bytes(&region)[..1 << 19] == numbers()[..1 << 19], "seed {seed}");
    two.sim.bytes_mut(&region)[1 << 19..].fill(7);
    for n in 0..16 {
        two.write(qps[n as usize % qps.len()], 1000 + n, (1 << 19) + n * 32_768, 32_768);
    }
    two.run();
    let region = two.regions[1];
    assert!(two.sim.bytes(&region)[1 << 19..].iter().all(|&byte| byte == 7), "seed {seed}");
    let total = two.sim.total();
    assert_eq!(total.arrived + total.lost(), total.sent(), "seed {seed}: {total:?}");
    (trace.hash(), total.lost())
}

#[test]
fn lost_packets_are_retransmitted_and_all_data_is_correct() {
    for seed in 0..20 {
        let (_, lost) = busy(seed, 0.03, Paging::Pinned);
        assert!(lost > 0, "seed {seed}");
    }
    assert_eq!(busy(1, 0.0, Paging::Pinned).1, 0);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let run = |seed, paging| busy(seed, 0.03, paging).0;
    for paging in [Paging::Pinned, Paging::OnDemand] {
        assert_eq!(run(7, paging), run(7, paging));
        assert_ne!(run(7, paging), run(8, paging));
    }
}

#[test]
fn a_packet_lost_by_a_rule_is_retransmitted() {
    let mut two = Two::new(1, Link::FDR, Profile::ideal(), [Paging::Pinned; 2]);
    let mut writes = 0;
    two.sim.lose_if(move |packet| {
        let middle = packet.headers.bth.opcode.operation() == Some(Operation::WriteMiddle);
        writes += u32::from(middle);
        middle && writes == 3
    });
    let lost = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let seen = lost.clone();
    two.sim.observe(move |packet| {
        if let PacketEvent::Sent { lost } = packet.event
            && (lost.is_some() || packet.repeated)
            && !packet.headers.bth.opcode.is_response()
        {
            seen.borrow_mut().push((packet.headers.bth.psn.get(), lost));
        }
    });
    let qp = two.connect(&QpSetup::default());
    two.write(qp, 1, 0, 40_960);
    two.run();
    let lost = lost.borrow();
    // The packet with PSN 3; then, after a sequence NAK, all packets from PSN 3 on. (PSN 9 had not been sent yet.)
    assert_eq!(lost[0], (3, Some(Loss::Rule)));
    assert_eq!(lost[1..], (3..9).map(|psn| (psn, None)).collect::<Vec<_>>());
    assert_eq!(two.sim.qp(qp).expect("the QP exists").retransmissions().sequence_naks, 1);
    assert_eq!(two.notes.0.len(), 1);
}
