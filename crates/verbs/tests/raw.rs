//! Runs `tests/c/raw.c`: raw packet QPs, steering rules, counters and receive work queues.

mod system;

#[test]
#[ignore = "needs root"]
fn the_program_of_raw_qps_passes() {
    system::check("raw", &[], &[]);
}

#[test]
#[ignore = "needs root"]
fn a_raw_qp_needs_a_privilege() {
    system::check("raw", &["unprivileged"], &[]);
}
