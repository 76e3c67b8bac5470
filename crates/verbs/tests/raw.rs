//! Runs `tests/c/raw.c`: raw packet QPs, steering rules, counters and receive work queues.

mod system;

/// One test: both ways of the program are compiled to one file.
#[test]
#[ignore = "needs root"]
fn the_program_of_raw_qps_passes() {
    system::check("raw", &[], &[]);
    system::check("raw", &["unprivileged"], &[]);
}
