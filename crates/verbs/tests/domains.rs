//! Runs `tests/c/domains.c`: parent and thread domains, imports, and the errors of refused calls.

mod system;

#[test]
fn the_domains_program_passes() {
    system::check("domains", &[], &[]);
}
