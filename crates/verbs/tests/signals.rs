//! `tests/c/signals.c`: handlers and masks of SIGSEGV and SIGBUS are the program's, whenever it sets them.

mod system;

#[test]
fn handlers_and_masks_are_the_programs() {
    system::check("signals", &["1"], &[]);
}
