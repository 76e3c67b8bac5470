//! Runs `tests/c/memory_limit.c`: a program that runs out of memory gets ENOMEM and is not aborted.

mod system;

#[test]
fn out_of_memory_returns_an_error_and_does_not_abort() {
    system::check("memory_limit", &["1"], &[]);
}
