//! Adapters with the flaws of a ConnectX-4, and the packet ladder that a capture at the requester shows.

#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;
use weir_transport::testing::{PagingSetup, Pair, Setup, address};
use weir_transport::*;
use weir_wire::{Aeth, Operation, Syndrome};

pub const US: Duration = Duration::from_micros(1);
pub const MS: Duration = Duration::from_millis(1);

/// Which nodes have ODP memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odp {
    Client,
    Server,
    Both,
}

/// Approximately the thesis' measurements of a ConnectX-4, with fixed times instead of random ones.
pub fn flawed() -> Profile {
    let exactly = |us| Delay::exactly(Duration::from_micros(us));
    Profile {
        name: "flawed".into(),
        ack_timeout: AckTimeout {
            least_exponent: 16,
            floor: Duration::ZERO,
            factor: Spread::exactly(1.9),
            growth: 1,
            adaptive: Adaptive::default(),
        },
        rnr_wait: RnrWait { factor: Spread::exactly(3.0), powers_of_two: true, discards: true },
        page_faults: PageFaults {
            requester: RequesterFaults::Discard { retransmit: exactly(520) },
            responder: ResponderFaults::RnrNak { read_after: 138 * US },
            resolve: exactly(480),
            ..Profile::ideal().page_faults
        },
        repeated_read: exactly(80),
        damming: true,
        ..Profile::ideal()
    }
}

/// T_o of that profile.
pub const TIMEOUT: Duration = Duration::from_nanos((4096 << 16) / 10 * 19);
/// The thesis' micro-benchmark: RNR timer 1.28 ms, C_ACK 1, retry 7, max_rd_atomic 4, MTU 4096.
pub fn setup(profile: Profile) -> Setup {
    let paging = PagingSetup { page: 4096, resolve: Duration::ZERO, notice: Duration::ZERO, held: 0 };
    Setup {
        paging: Some(paging),
        profile,
        mtu: Mtu::M4096,
        timeout: 1,
        min_rnr_timer: 14,
        latency: US,
        // Hardware adapters acknowledge at once.
        tuning: Tuning { ack_delay: Duration::ZERO, ..Tuning::default() },
        ..Setup::default()
    }
}

/// A pair; a node without ODP has all its pages present.
pub fn pair(setup: &Setup, odp: Odp) -> Pair {
    let mut pair = setup.pair();
    for (node, warm) in [(0, odp == Odp::Server), (1, odp == Odp::Client)] {
        if warm {
            pair.paging(node).prefetch(address(0), 1 << 20, true);
        }
    }
    pair.run_until_idle();
    pair
}

/// Advances the time to `time`.
pub fn until(pair: &mut Pair, time: Instant) {
    loop {
        pair.transmit();
        if pair.next_event().is_none_or(|next| next > time) {
            break;
        }
        pair.step();
    }
    pair.now = pair.now.max(time);
}

/// Posts operations of 100 bytes, `interval` apart, and runs until idle. Returns the ladder.
pub fn run(pair: &mut Pair, operations: &[fn(usize) -> SendOp], interval: Duration) -> Vec<Step> {
    let start = pair.now;
    for (i, operation) in operations.iter().enumerate() {
        until(pair, start + interval * i as u32);
        pair.post(i as u64, operation(100 * i), 100 * i, 100);
    }
    pair.run_until_idle();
    assert!(pair.outcomes(0, Queue::Send).iter().all(|(_, status)| *status == Status::Success));
    assert_eq!(pair.completions(0, Queue::Send).len(), operations.len());
    ladder(pair, start)
}

/// One packet in a capture at the requester.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub at: Duration,
    /// Kind of packet, its operation (counted from 1), and whether the adapter lost it: "READ 2 lost".
    pub what: String,
}

/// The packets since `start`. All operations consist of one packet.
pub fn ladder(pair: &Pair, start: Instant) -> Vec<Step> {
    let first = Psn::new(Setup::default().psn[0]);
    let mut steps: Vec<Step> = pair
        .wire
        .log
        .iter()
        .filter(|sent| sent.at >= start)
        .map(|sent| {
            // The capture is at the requester.
            let at = sent.at - start + if sent.from == 1 { pair.wire.latency } else { Duration::ZERO };
            let syndrome = sent.headers.get::<Aeth>().map(|aeth| Syndrome::from_byte(aeth.syndrome()));
            let name = match (sent.headers.bth.opcode.operation(), syndrome) {
                (Some(Operation::ReadRequest), _) => "READ",
                (Some(Operation::ReadResponseOnly), _) => "response",
                (Some(Operation::WriteOnly), _) => "WRITE",
                (Some(Operation::SendOnly), _) => "SEND",
                (Some(Operation::Acknowledge), Some(Syndrome::RnrNak(_))) => "RNR NAK",
                (Some(Operation::Acknowledge), Some(Syndrome::Nak(_))) => "NAK",
                (Some(Operation::Acknowledge), Some(Syndrome::Ack(_))) => "ACK",
                other => panic!("unexpected packet: {other:?}"),
            };
            let number = sent.headers.bth.psn.since(first) + 1;
            let lost = if sent.dammed { " lost" } else { "" };
            Step { at, what: format!("{name} {number}{lost}") }
        })
        .collect();
    steps.sort_by_key(|step| step.at);
    steps
}

/// Compares a ladder with the expected one: times in ms, within a tolerance.
pub fn compare(ladder: &[Step], expected: &[(f64, &str)], tolerance: f64) {
    let text: String =
        ladder.iter().map(|step| format!("{:>9.3} {}\n", step.at.as_secs_f64() * 1e3, step.what)).collect();
    let what: Vec<&str> = ladder.iter().map(|step| step.what.as_str()).collect();
    assert_eq!(what, expected.iter().map(|(_, what)| *what).collect::<Vec<_>>(), "\n{text}");
    for (step, (at, what)) in ladder.iter().zip(expected) {
        let ms = step.at.as_secs_f64() * 1e3;
        assert!((ms - at).abs() <= tolerance, "{what} at {ms}, not at {at}\n{text}");
    }
}
