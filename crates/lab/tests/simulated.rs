//! The micro-benchmark on the simulator: ideal adapters, and reproducible runs. The experiments test flawed adapters.

use std::time::Duration;
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Micro, Operation, Outcome, Runner, Sides, Workaround};

const BOTH: Sides = Sides { client: true, server: true };

fn run(micro: &Micro, profile: &str) -> Outcome {
    Simulated.run(micro, profile, 1).expect("it runs")
}

#[test]
fn pinned_memory_takes_a_round_trip() {
    for operation in [Operation::Read, Operation::Write, Operation::Send] {
        let outcome = run(&Micro { operation, ..Micro::default() }, "connectx4");
        assert_eq!((outcome.packets.requests, outcome.packets.responses), (1, 1), "{operation:?}");
        assert!((2..5).contains(&outcome.time.as_micros()), "{operation:?}: {:?}", outcome.time);
        assert_eq!(outcome.status, None);
        assert_eq!(outcome.completions, [Some(outcome.time)]);
        let whats: Vec<_> = outcome.steps.iter().map(|s| (s.from_client, s.operation, s.lost)).collect();
        assert_eq!(whats, [(true, Some(0), false), (false, Some(0), false)]);
    }
}

#[test]
fn an_ideal_adapter_only_waits_for_its_pages() {
    let micro = Micro { num_ops: 512, num_qps: 32, odp: BOTH, ack_timeout: 18, ..Micro::default() };
    for operation in [Operation::Read, Operation::Write, Operation::Send] {
        let outcome = run(&Micro { operation, ..micro.clone() }, "ideal");
        assert!(outcome.completions.iter().all(Option::is_some), "{operation:?}");
        assert_eq!((outcome.packets.repeated, outcome.timeouts, outcome.packets.lost), (0, 0, 0), "{operation:?}");
        assert!(outcome.time < Duration::from_millis(2), "{operation:?}: {:?}", outcome.time);
    }
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let micro = Micro { num_ops: 100, num_qps: 20, odp: BOTH, interval: Duration::from_micros(50), ..Micro::default() };
    let with = |seed| Simulated.run(&micro, "connectx4", seed).expect("it runs");
    assert_eq!(with(3), with(3));
    assert_ne!(with(3), with(4));
}

#[test]
fn operations_are_posted_at_their_intervals() {
    let micro = Micro { num_ops: 5, interval: Duration::from_millis(3), ..Micro::default() };
    let outcome = run(&micro, "connectx5");
    let posted: Vec<_> = outcome.steps.iter().filter(|s| s.from_client).map(|s| s.time.as_micros()).collect();
    assert_eq!(posted, [0, 3060, 6120, 9180, 12240]);
}

#[test]
fn a_wrong_peer_leads_to_retry_exceeded() {
    let micro = Micro { wrong_peer: true, retry_cnt: 3, ack_timeout: 17, ..Micro::default() };
    let outcome = run(&micro, "connectx4");
    assert_eq!(outcome.status.as_deref(), Some("transport retry counter exceeded"));
    assert_eq!((outcome.packets.requests, outcome.packets.responses), (4, 0));
    assert_eq!(outcome.packets.lost, 0, "packets to a QP that does not exist do not count as lost");
    // IBTA 9.7.6.1.3: each of the four timeouts is 1 to 4 times 4.096 µs · 2^17.
    let t_tr = Duration::from_nanos(4096 << 17);
    assert!((4 * t_tr..16 * t_tr).contains(&outcome.time), "{:?}", outcome.time);
}

#[test]
fn adaptive_retransmission_repeats_a_request_as_measured() {
    // T_o is about 537 ms, but the first retransmission leaves after 12.5 ms. Measured: 3661.8 ms in all, 13 packets.
    let micro = Micro { wrong_peer: true, retry_cnt: 7, ack_timeout: 14, ..Micro::default() };
    let outcome = run(&micro, "connectx6-roce");
    assert_eq!(outcome.status.as_deref(), Some("transport retry counter exceeded"));
    assert_eq!(outcome.packets.requests, 13);
    assert!((3661..3663).contains(&outcome.time.as_millis()), "{:?}", outcome.time);
    // On InfiniBand: eight timeouts.
    assert_eq!(run(&micro, "connectx6").packets.requests, 8);
}

#[test]
fn workarounds_post_more() {
    let micro = Micro { num_ops: 2, odp: BOTH, ..Micro::default() };
    let dummy = Workaround::Dummy { every: Duration::from_micros(100) };
    let outcome = run(&Micro { workaround: Some(dummy), ..micro.clone() }, "connectx4");
    assert!(outcome.steps.iter().any(|step| step.from_client && step.operation.is_none()));
    let again = Workaround::Again { after: Duration::from_micros(100) };
    for operation in [Operation::Read, Operation::Send] {
        let micro = Micro { operation, workaround: Some(again), ..micro.clone() };
        let outcome = run(&micro, "connectx4");
        assert!(outcome.completions.iter().all(Option::is_some));
        let first = outcome.steps.iter().filter(|step| step.from_client && step.operation == Some(0));
        assert!(first.count() > 1);
    }
}

#[test]
fn a_guard_ends_what_a_timeout_would() {
    let interval = Duration::from_millis(1);
    let odp = Sides { client: false, server: true };
    let dammed = Micro { num_ops: 2, interval, odp, ..Micro::default() };
    let plain = run(&dammed, "connectx4");
    assert!(plain.timeouts == 1 && plain.time > Duration::from_millis(300), "{:?}", plain.time);
    let guarded = run(&Micro { guards: "dummy".parse().unwrap(), ..dammed }, "connectx4");
    assert!(guarded.timeouts == 0 && guarded.time < Duration::from_millis(10), "{:?}", guarded.time);
    assert!(guarded.completions.iter().all(Option::is_some) && guarded.completions.len() == 2);
    // A dummy belongs to no operation.
    assert!(guarded.steps.iter().any(|step| step.from_client && step.operation.is_none()));
    let flooded = Micro { num_ops: 512, num_qps: 128, size: 32, ack_timeout: 18, ..Micro::default() };
    let flooded = Micro { odp: Sides { client: true, server: false }, ..flooded };
    let [plain, again] = ["none", "reissue"]
        .map(|list| run(&Micro { guards: list.parse().unwrap_or_default(), ..flooded.clone() }, "connectx6"));
    assert!(plain.time > 10 * again.time, "{:?}, {:?}", plain.time, again.time);
    // The operations have the packets of both times.
    assert!(again.steps.iter().all(|step| step.operation.is_some()));
    assert!(again.completions.iter().all(Option::is_some));
}

#[test]
fn impossible_parameters_are_refused() {
    let run = |micro: Micro, profile| Simulated.run(&micro, profile, 1).map(|_| ()).map_err(|e| format!("{e:#}"));
    assert!(run(Micro { odp: BOTH, ..Micro::default() }, "connectx3").is_err_and(|e| e.contains("on-demand")));
    assert!(run(Micro { num_qps: 0, ..Micro::default() }, "ideal").is_err());
    let invalidate = Micro { odp: BOTH, invalidate: 1, ..Micro::default() };
    assert!(run(invalidate, "ideal").is_err_and(|e| e.contains("live only")));
    assert!(run(Micro::default(), "connectx7").is_err());
}

#[test]
fn operations_in_turn_follow_completions() {
    let micro = Micro { num_ops: 3, in_turn: true, interval: Duration::from_micros(26), odp: BOTH, ..Micro::default() };
    for micro in [micro.clone(), Micro { num_qps: 3, ..micro }] {
        let outcome = run(&micro, "connectx4");
        for operation in 1..3 {
            let before = outcome.completions[operation as usize - 1].expect("completed");
            let sent = outcome.steps.iter().find(|s| s.from_client && s.operation == Some(operation)).expect("sent");
            assert_eq!((sent.time - before).as_micros(), 26, "{micro:?}");
        }
    }
}
