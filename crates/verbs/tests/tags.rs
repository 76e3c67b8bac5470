//! Runs `tests/c/tags.c`: tag matching by the verbs.

mod system;

#[test]
fn the_tags_program_passes() {
    system::check("tags", &["1"], &[]);
}
