//! Runs `tests/c/mapped.c`: memory under MRs is truncated, unmapped, moved or protected, before and during transfers.

mod system;

#[test]
fn memory_that_goes_away_ends_transfers_and_not_the_program() {
    system::check("mapped", &["1"], &[]);
}
