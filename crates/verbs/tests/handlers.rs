//! Runs `tests/c/handlers.c`: signal handlers destroy objects while the thread is in a call of the library.

mod system;

#[test]
fn objects_are_destroyed_in_handlers_or_refused() {
    system::check("handlers", &["1", "20"], &[]);
}
