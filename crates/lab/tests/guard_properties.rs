//! The guarantees of a program's requests under guards, for all guards, adapters and sides with ODP memory, over links
//! that lose, delay, duplicate and damage packets, while pages leave memory.

mod guard_setup;

use guard_setup::{Case, GUARDS, cases, run};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Of a list of guards: runs, and those in which it acted.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    runs: u32,
    failed: u32,
    dummies: u32,
    starts: u32,
    prefetches: u32,
}

/// Runs cases, and counts what the guards did in them.
fn check(count: u32, strategy: impl Strategy<Value = Case>) -> BTreeMap<&'static str, Seen> {
    let seen: RefCell<BTreeMap<&str, Seen>> = RefCell::default();
    let mut runner = TestRunner::new(Config { cases: count, failure_persistence: None, ..Config::default() });
    let ran = runner.run(&strategy, |case| {
        let ran = run(&case).map_err(TestCaseError::fail)?;
        let mut seen = seen.borrow_mut();
        let seen = seen.entry(case.guards).or_default();
        seen.runs += 1;
        seen.failed += u32::from(ran.failed);
        seen.dummies += u32::from(ran.acts.dummies > 0);
        seen.starts += u32::from(ran.acts.starts > 0);
        seen.prefetches += u32::from(ran.acts.prefetches > 0);
        Ok(())
    });
    if let Err(TestError::Fail(why, case)) = &ran {
        panic!("{why}\nseed {}: {case:#?}", case.seed);
    }
    ran.expect("enough cases");
    seen.into_inner()
}

fn total(seen: &BTreeMap<&'static str, Seen>, lists: &[&str], of: impl Fn(&Seen) -> u32) -> f64 {
    let each = || lists.iter().filter_map(|list| seen.get(list));
    f64::from(each().map(&of).sum::<u32>()) / f64::from(each().map(|seen| seen.runs).sum::<u32>())
}

#[test]
fn requests_complete_once_in_order_with_the_right_bytes() {
    let seen = check(800, cases());
    println!("{seen:#?}");
    assert!(GUARDS.iter().all(|list| seen[list].runs > 50 && seen[list].failed == 0));
    // Most of the cases have nothing for a guard to do.
    assert!(total(&seen, &["dummy", "rnr,dummy", "dummy,reissue", "auto"], |seen| seen.dummies) > 0.3);
    assert!(total(&seen, &["reissue", "dummy,reissue", "auto"], |seen| seen.starts) > 0.05);
    assert!(total(&seen, &["prefetch", "auto"], |seen| seen.prefetches) > 0.3);
    for list in ["none", "rnr"] {
        let Seen { dummies, starts, prefetches, .. } = seen[list];
        assert_eq!((dummies, starts, prefetches), (0, 0, 0), "{list}");
    }
}

#[test]
fn each_request_of_a_qp_that_fails_completes_once() {
    let gone = (cases(), 0u64..8000, 0u8..3).prop_map(|(case, gone, retry_cnt)| Case {
        gone: Some(gone),
        retry_cnt,
        same_ids: false,
        // A lost packet must not be what ends the QP.
        loss: 0.0,
        disorder: 0.0,
        ..case
    });
    let seen = check(400, gone);
    println!("{seen:#?}");
    assert!(total(&seen, &GUARDS, |seen| seen.failed) > 0.5);
    assert!(total(&seen, &["dummy", "rnr,dummy", "dummy,reissue", "auto"], |seen| seen.dummies) > 0.3);
    assert!(total(&seen, &["reissue", "dummy,reissue", "auto"], |seen| seen.starts) > 0.05);
}
