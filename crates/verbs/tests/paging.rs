//! Runs `tests/c/paging.c`: on-demand memory of every kind, and refused registrations.

mod system;

#[test]
fn on_demand_memory() {
    // With an ICRC the payload is staged (copied) before it is sent.
    for icrc in ["auto", "always"] {
        print!("{}", system::check("paging", &["1"], &[("WEIR_ICRC", icrc)]));
    }
}
