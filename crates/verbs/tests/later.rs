//! Runs `tests/c/later.c`: functions of releases after that of the installed headers.

mod system;

#[test]
fn the_program_of_later_releases_passes() {
    system::check("later", &[], &[]);
}
