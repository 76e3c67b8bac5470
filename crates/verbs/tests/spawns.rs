//! Runs `tests/c/spawns.c`: programs are started, and the process ends, while a thread transfers.

mod system;

#[test]
fn transfers_go_on_while_programs_are_started() {
    system::check("spawns", &["1", "10"], &[]);
}
