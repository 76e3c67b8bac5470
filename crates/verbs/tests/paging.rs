//! `tests/c/paging.c`: memory on demand, of every kind, and what is refused of it.

mod system;

#[test]
fn memory_on_demand() {
    // Where packets carry an ICRC, what is sent is copied first.
    for icrc in ["auto", "always"] {
        print!("{}", system::check("paging", &["1"], &[("WEIR_ICRC", icrc)]));
    }
}
