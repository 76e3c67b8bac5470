//! Runs `tests/c/signals.c`: the program controls its handlers and masks of SIGSEGV and SIGBUS at any time.

mod system;

#[test]
fn the_program_controls_its_handlers_and_masks() {
    system::check("signals", &["1"], &[]);
}
