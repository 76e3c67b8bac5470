//! What `weir doctor` finds in the micro-benchmark's requests, against the packets: the simulator runs it, and tells
//! both.

use std::time::Duration;
use weir_doctor::detect::detect;
use weir_doctor::expect::Expectation;
use weir_doctor::finding::Kind;
use weir_doctor::layout::{self, size_class, time_class};
use weir_doctor::trace::{Qp, Request, Trace};
use weir_lab::micro::sim::Simulated;
use weir_lab::micro::{Micro, Operation, Outcome, Sides};

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
            max_rd_atomic: micro.max_rd_atomic,
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
            // The adapter sends so many READs at once.
            let later = (1..u64::from(micro.max_rd_atomic)).map(|n| posted + n * step * u64::from(micro.num_qps));
            let later = later.take_while(|next| *next < done.min(u64::from(micro.num_ops) * step));
            let next = later.into_iter().find(|next| *next >= begun + layout::Request::TOGETHER);
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
                ahead: before(micro, outcome, operation).filter(|done| *done > posted).count() as u32,
                next: next.unwrap_or(0),
                ..Request::default()
            });
        }
    }
    requests.sort_by_key(|request| (request.done, request.posted));
    Trace { program: "weir-micro".into(), qps, requests, ..Trace::default() }
}

/// When the requests of a QP before an operation completed, ns.
fn before<'a>(micro: &'a Micro, outcome: &'a Outcome, operation: u32) -> impl Iterator<Item = u64> + 'a {
    let earlier = (0..operation).rev().filter(move |other| micro.qp(*other) == micro.qp(operation));
    earlier.filter_map(|other| Some(outcome.completions[other as usize]?.as_nanos() as u64))
}

/// How often a finding is right, and how often it is missed.
#[derive(Clone, Copy, Default, Debug)]
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

/// Seeds that were not used to choose the thresholds.
const SEEDS: [u64; 3] = [301, 302, 303];
/// Two of them have damming, all but `ideal` have flood.
const PROFILES: [&str; 5] = ["connectx4", "abci", "connectx6", "connectx5", "ideal"];

fn runs(profile: &str, micro: &Micro, seed: u64, loss: f64) -> Option<(Outcome, Vec<Kind>)> {
    // An adapter without ODP cannot run it.
    let outcome = Simulated.run_lossy(micro, profile, seed, loss).ok()?;
    let kinds = detect(&observed(micro, &outcome)).iter().map(|finding| finding.kind).collect();
    Some((outcome, kinds))
}

#[test]
fn few_requests_are_dammed_or_not() {
    let mut score = Score::default();
    for (profile, seed) in PROFILES.iter().flat_map(|profile| SEEDS.map(|seed| (profile, seed))) {
        for (odp, num_ops) in SIDES.into_iter().flat_map(|odp| [2, 3, 4].map(|num_ops| (odp, num_ops))) {
            for interval in [0, 150, 400, 800, 1700, 3300, 5500].map(Duration::from_micros) {
                for (rnr_timer, second) in
                    [(14, None), (1, None), (14, Some(Operation::Send)), (19, Some(Operation::Write))]
                {
                    let micro = Micro { odp, num_ops, interval, rnr_timer, second, ..Micro::default() };
                    if let Some((outcome, kinds)) = runs(profile, &micro, seed, 0.0) {
                        score.count(outcome.timeouts > 0, kinds.contains(&Kind::Damming));
                    }
                }
            }
        }
    }
    let clear = score;
    look_alikes(&mut score);
    println!("damming: {clear:?}, with losses: {score:?}");
    assert!(clear.precision() >= 0.98, "{clear:?}");
    assert!(score.right > 300 && score.precision() >= 0.98 && score.recall() >= 0.98, "{score:?}");
}

/// Losses on adapters without damming: few with ODP, many without.
fn look_alikes(score: &mut Score) {
    for (profile, seed) in ["connectx6", "connectx5"].iter().flat_map(|profile| SEEDS.map(|seed| (profile, seed))) {
        for (odp, num_ops) in SIDES.into_iter().flat_map(|odp| [2, 4].map(|num_ops| (odp, num_ops))) {
            for interval in [100, 300, 700, 1500, 3000].map(Duration::from_micros) {
                for loss in if odp == SIDES[0] { [0.05, 0.1, 0.3] } else { [0.01, 0.02, 0.05] } {
                    let micro = Micro { odp, num_ops, interval, ..Micro::default() };
                    if let Some((_, kinds)) = runs(profile, &micro, seed, loss) {
                        score.count(false, kinds.contains(&Kind::Damming));
                    }
                }
            }
        }
    }
}

/// A flood, by the packets: each READ was repeated three times or more. All READs share pages, as in the papers; of a
/// flood in which each READ has a page of its own, the times of the READs tell nothing.
#[test]
fn many_requests_are_flooded_dammed_or_not() {
    let (mut damming, mut flood) = (Score::default(), Score::default());
    for (profile, seed) in PROFILES.iter().flat_map(|profile| SEEDS.map(|seed| (profile, seed))) {
        for (odp, ack_timeout) in SIDES.into_iter().flat_map(|odp| [1, 18].map(|timeout| (odp, timeout))) {
            for (num_ops, num_qps, size) in [
                (128, 1, 32),
                (128, 16, 32),
                (128, 128, 32),
                (256, 128, 32),
                (512, 128, 32),
                (600, 8, 100),
                (1000, 10, 100),
                (1000, 30, 100),
                (1500, 50, 100),
                (2000, 2, 100),
            ] {
                let micro = Micro { odp, num_ops, num_qps, size, ack_timeout, ..Micro::default() };
                if let Some((outcome, kinds)) = runs(profile, &micro, seed, 0.0) {
                    let repeated = outcome.packets.repeated as f64 / f64::from(num_ops);
                    damming.count(outcome.timeouts > 0, kinds.contains(&Kind::Damming));
                    flood.count(repeated >= 3.0, kinds.contains(&Kind::Flood));
                }
            }
        }
    }
    println!("damming: {damming:?}, flood: {flood:?}");
    for score in [&damming, &flood] {
        assert!(score.right > 50, "{damming:?} {flood:?}");
        assert!(score.precision() >= 0.95 && score.recall() >= 0.95, "damming {damming:?}, flood {flood:?}");
    }
}
