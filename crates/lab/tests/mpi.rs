//! MPI programs in virtual time.

use std::sync::Arc;
use std::time::Duration;
use weir_lab::mpi::measure::{Found, Run};
use weir_lab::mpi::osu::{Test, scripts};
use weir_lab::mpi::{Op, Script};
use weir_msg::Scheme;

const LONG: u64 = 256 << 10;

fn run(scheme: Scheme, scripts: Vec<Script>, pressure: f64, seed: u64) -> Found {
    let profile = Arc::new(weir_profiles::load("connectib").unwrap());
    let nodes = scripts.len();
    let mut run = Run::new(scheme, nodes, scripts, &profile);
    (run.cluster.pressure, run.cluster.seed) = (pressure, seed);
    run.found()
}

/// Two processes send to each other, compute, and wait.
fn overlapping(times: u32) -> Vec<Script> {
    let script = |other: usize| {
        let mut script = Script { times, ..Script::default() };
        let (sent, received) = (script.buffer(LONG), script.buffer(LONG));
        script.body = vec![
            Op::Mark,
            Op::Irecv { from: other, tag: 0, buffer: received, len: LONG, req: 0 },
            Op::Isend { to: other, tag: 0, buffer: sent, len: LONG, req: 0 },
            Op::Compute(Duration::from_millis(10)),
            Op::WaitAll,
        ];
        script.last = vec![Op::Mark];
        script
    };
    vec![script(1), script(0)]
}

#[test]
fn all_programs_of_all_schemes_end() {
    for scheme in Scheme::ALL {
        for test in [Test::Latency, Test::Bandwidth, Test::Put, Test::Get] {
            for len in [1, 4096, 16 << 10, 32 << 10, LONG] {
                let found = run(scheme, scripts(test, len, LONG, 3), 0.0, 1);
                assert!(found.time > 0.0 && found.round > 1.0, "{scheme} {test:?} {len}: {found:?}");
            }
        }
    }
}

#[test]
fn pages_are_missing_in_the_first_round_only() {
    let faults = |scheme, times| run(scheme, scripts(Test::Latency, LONG, LONG, times), 0.0, 1).whole.faults;
    // The buffers to send and to receive, in each process.
    assert_eq!((faults(Scheme::OdpNative, 1), faults(Scheme::OdpNative, 9)), (2.0, 2.0));
    assert_eq!((faults(Scheme::OdpOptimal, 9), faults(Scheme::PinDown, 9)), (0.0, 0.0));
}

#[test]
fn pages_that_are_taken_while_a_process_computes_are_missing_again() {
    let found = |scheme| run(scheme, overlapping(10), 1000.0, 1);
    let [pinned, native, enhanced, optimal] =
        [Scheme::PinDown, Scheme::OdpNative, Scheme::OdpEnhanced, Scheme::OdpOptimal].map(found);
    assert_eq!((pinned.whole.taken, pinned.whole.faults), (0.0, 0.0));
    assert!(native.whole.taken > 500.0, "{native:?}");
    assert_eq!(native.whole.faults, 20.0, "each buffer in each round");
    // Only the first receive, which matches after its process has computed, is prefetched in time.
    assert_eq!(enhanced.whole.faults, 19.0);
    assert_eq!(optimal.whole.faults, 0.0);
    assert!(optimal.round < 1.01 * pinned.round && native.round > 1.1 * pinned.round, "{optimal:?} {native:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let one = |seed| format!("{:?}", run(Scheme::OdpNative, overlapping(5), 10.0, seed));
    assert_eq!(one(3), one(3));
    assert_ne!(one(3), one(4));
}

#[test]
fn only_pinned_memory_counts() {
    let pinned = |scheme| run(scheme, overlapping(1), 0.0, 1).pinned;
    let buffers = 2.0 * LONG as f64;
    assert_eq!(pinned(Scheme::PinDown) - pinned(Scheme::OdpOptimal), buffers);
}

/// The second and the third process put into the window of the first, which computes between calls.
#[test]
fn a_window_is_granted_to_each_that_asks() {
    let origin = || {
        let mut script = Script { times: 4, ..Script::default() };
        let buffer = script.buffer(LONG);
        script.body = vec![Op::Lock(0), Op::Put { to: 0, buffer, at: 0, len: LONG }, Op::Unlock(0)];
        script
    };
    let mut target = Script { times: 3, body: vec![Op::Compute(Duration::from_millis(1))], ..Script::default() };
    target.window = Some(target.buffer(LONG));
    let found = run(Scheme::OdpOptimal, vec![target, origin(), origin()], 0.0, 1);
    // Programs begin at 1 ms. The target serves requests after it has computed. Eight WRITEs follow each other.
    let each = LONG as f64 * 8.0 / 54.545e9;
    assert!(found.time > 4e-3 + 8.0 * each && found.time < 5e-3, "{found:?}");
}
