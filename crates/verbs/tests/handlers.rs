//! Runs `tests/c/handlers.c`: signal handlers destroy objects while the thread is in a call of the library.

mod system;

use std::fs;
use std::path::Path;

#[test]
fn objects_are_destroyed_in_handlers_or_refused() {
    system::check("handlers", &["1", "20"], &[]);
}

/// With a log, in which the refused calls appear: a handler that wrote to it could wait for what its thread holds.
#[test]
fn refused_calls_are_logged_after_the_handler() {
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join("handlers.log");
    // Weir appends to it.
    let _ = fs::remove_file(&log);
    system::check("handlers", &["1", "20"], &[("WEIR_LOG", "warn"), ("WEIR_LOG_FILE", log.to_str().unwrap())]);
    let lines = fs::read_to_string(&log).unwrap();
    assert!(lines.contains("it was called by a signal handler"), "{lines}");
}
