//! Runs `tests/c/domains.c`: parent and thread domains, imports, and the errors of refused calls.

mod system;

#[test]
fn domains_imports_and_refusals() {
    system::check("domains", &[], &[]);
}
