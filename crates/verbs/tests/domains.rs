//! `tests/c/domains.c`: parent and thread domains, imports, and what is refused with which error.

mod system;

#[test]
fn domains_imports_and_refusals() {
    system::check("domains", &[], &[]);
}
