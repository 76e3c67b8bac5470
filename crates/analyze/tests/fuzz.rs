//! Hostile captures and reports of adapters.

use weir_analyze::testing::fuzz_analyze;

#[test]
fn any_packets_at_any_time_give_a_report() {
    weir_trials::run("analyze", fuzz_analyze);
}
