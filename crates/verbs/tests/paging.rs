//! Runs `tests/c/paging.c`: ODP memory of every kind, and refused registrations.

mod system;

#[test]
fn the_paging_program_passes() {
    // With an ICRC the payload is staged (copied) before it is sent.
    for icrc in ["auto", "always"] {
        print!("{}", system::check("paging", &["1"], &[("WEIR_ICRC", icrc)]));
    }
}
