//! What `weir doctor` finds in the micro-benchmark's requests, against the packets: the simulator runs it, and tells both.

use std::time::Duration;
use weir_doctor::detect::detect;
use weir_doctor::expect::Expectation;
use weir_doctor::finding::Kind;
use weir_doctor::layout::{size_class, time_class};
use weir_doctor::trace::{Qp, Request, Trace};
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Micro, Operation, Outcome, Runner, Sides};

/// What the layer would have left of a run's client.
fn observed(micro: &Micro, outcome: &Outcome) -> Trace {
    // The simulated client posts every 0.2 µs, and usleep returns 60 µs late.
    let step = if micro.interval.is_zero() { 200 } else { micro.interval.as_nanos() as u64 + 60_000 };
    let opcode = |operation| match operation {
        Operation::Write => 0,
        Operation::Send => 2,
        Operation::Read => 4,
    };
    let mut qps = vec![
        Qp {
            device: "sim".into(),
            service: 2,
            min_rnr_timer: micro.rnr_timer,
            timeout: micro.ack_timeout,
            retry_cnt: micro.retry_cnt,
            ..Qp::default()
        };
        micro.num_qps as usize
    ];
    let expectations: Vec<Expectation> = qps.iter().map(|_| Expectation::default()).collect();
    let mut served = vec![0; qps.len()];
    let mut requests = vec![];
    for (at, done) in outcome.completions.iter().enumerate() {
        let (operation, Some(done)) = (at as u32, done) else { continue };
        let (qp, done, posted) = (micro.qp(operation) as usize, done.as_nanos() as u64, at as u64 * step);
        let begun = posted.max(served[qp]);
        served[qp] = done;
        let time = done.saturating_sub(begun);
        qps[qp].served[size_class(micro.size)][time_class(time)] += 1;
        if expectations[qp].is_late(micro.size, time) {
            requests.push(Request {
                qp,
                posted,
                begun,
                done,
                missing: done,
                address: if micro.odp.client { 0x10000 + micro.offset(operation) } else { 0 },
                bytes: micro.size,
                opcode: opcode(micro.kind(operation)),
                odp: micro.odp.client,
                ..Request::default()
            });
        }
    }
    requests.sort_by_key(|request| (request.done, request.posted));
    Trace { program: "weir-micro".into(), qps, requests, ..Trace::default() }
}

/// How often a finding is right, and how often it is missed.
#[derive(Default, Debug)]
struct Score {
    right: u32,
    wrong: u32,
    missed: u32,
}

impl Score {
    fn count(&mut self, is: bool, found: bool) {
        match (is, found) {
            (true, true) => self.right += 1,
            (false, true) => self.wrong += 1,
            (true, false) => self.missed += 1,
            (false, false) => {}
        }
    }

    fn precision(&self) -> f64 {
        f64::from(self.right) / f64::from(self.right + self.wrong)
    }

    fn recall(&self) -> f64 {
        f64::from(self.right) / f64::from(self.right + self.missed)
    }
}

const SIDES: [Sides; 4] = [
    Sides { client: false, server: false },
    Sides { client: true, server: false },
    Sides { client: false, server: true },
    Sides { client: true, server: true },
];

#[test]
fn few_requests_are_dammed_or_not() {
    let mut score = Score::default();
    for (profile, seed) in [("connectx4", 1), ("connectx4", 2), ("connectx6", 1), ("connectx5", 1), ("ideal", 1)] {
        for odp in SIDES {
            for num_ops in [2, 3, 4] {
                for interval in [0, 100, 300, 500, 1000, 2000, 4000, 6000] {
                    for (rnr_timer, second) in
                        [(14, None), (1, None), (14, Some(Operation::Send)), (20, Some(Operation::Write))]
                    {
                        let interval = Duration::from_micros(interval);
                        let micro = Micro { odp, num_ops, interval, rnr_timer, second, ..Micro::default() };
                        let Ok(outcome) = Simulated.run(&micro, profile, seed) else { continue };
                        let findings = detect(&observed(&micro, &outcome));
                        let found = findings.iter().any(|finding| finding.kind == Kind::Damming);
                        if found != (outcome.timeouts > 0) {
                            println!(
                                "{profile} {micro:?} timeouts {} {:?} {findings:?}",
                                outcome.timeouts, outcome.completions
                            );
                        }
                        score.count(outcome.timeouts > 0, found);
                    }
                }
            }
        }
    }
    println!("damming {score:?} {} {}", score.precision(), score.recall());
}

#[test]
fn many_requests_are_flooded_or_not() {
    let (mut damming, mut flood) = (Score::default(), Score::default());
    for operation in [Operation::Read, Operation::Write] {
        for (profile, seed) in [("connectx4", 1), ("connectx6", 1), ("connectx5", 1), ("ideal", 1)] {
            for odp in SIDES {
                for (num_ops, num_qps, size) in [
                    (128, 1, 32),
                    (128, 16, 32),
                    (128, 128, 32),
                    (256, 128, 32),
                    (512, 128, 32),
                    (512, 8, 100),
                    (1000, 10, 100),
                    (1000, 30, 100),
                    (2000, 50, 100),
                    (2000, 2, 100),
                    (2000, 20, 4096),
                ] {
                    for ack_timeout in [1, 18] {
                        let micro = Micro { operation, odp, num_ops, num_qps, size, ack_timeout, ..Micro::default() };
                        let Ok(outcome) = Simulated.run(&micro, profile, seed) else { continue };
                        let findings = detect(&observed(&micro, &outcome));
                        let has = |kind| findings.iter().any(|finding| finding.kind == kind);
                        let ratio = outcome.packets.repeated as f64 / f64::from(num_ops);
                        let kinds: Vec<String> = findings
                            .iter()
                            .filter(|f| f.kind != Kind::PageFault)
                            .map(|f| format!("{}x{}", f.kind.name(), f.requests))
                            .take(3)
                            .collect();
                        println!(
                            "{profile:9} {operation:?} {}{} ops {num_ops} qps {num_qps} size {size} ack {ack_timeout} ratio {ratio:.1} timeouts {} time {:?}: {kinds:?}",
                            odp.client as u8, odp.server as u8, outcome.timeouts, outcome.time
                        );
                        damming.count(outcome.timeouts > 0, has(Kind::Damming));
                        if operation == Operation::Read {
                            flood.count(ratio >= 8.0, has(Kind::Flood));
                        }
                    }
                }
            }
        }
    }
    println!("damming {damming:?} {} {}", damming.precision(), damming.recall());
    println!("flood {flood:?} {} {}", flood.precision(), flood.recall());
}
