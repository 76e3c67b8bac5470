//! Scenarios that `weir analyze` once took for something else.

use weir_analyze::FindingKind;
use weir_lab::detectors::score;

/// Whether the analysis says the truth about this kind in a scenario.
fn is_right(seed: u64, kind: FindingKind) -> bool {
    score(seed).unwrap().errors.iter().all(|error| error.kind != kind)
}

#[test]
fn reads_that_wait_for_a_timeout_after_their_page_has_come_are_no_flood() {
    assert!(is_right(4_002_006, FindingKind::Flood));
}

#[test]
fn a_row_that_a_full_switch_cuts_did_not_come_twice() {
    assert!(is_right(3_003_042, FindingKind::OutOfWindow));
}
