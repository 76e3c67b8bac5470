//! The hand-over on real threads. `tests/handover.rs` checks it in a model.

use crate::shared::handover::Handover;
use std::time::Duration;

/// A signal handler that unmaps memory interrupted its thread where it leaves the engine to sleepers.
#[test]
fn a_signal_handler_does_not_wait_for_the_lock_of_its_own_thread() {
    let engine = Handover::new((), 1);
    let at_most = Duration::from_millis(2);
    let within = || engine.attempt(|()| engine.wait_in_handler_within(at_most, |()| (), |()| ()), |()| ());
    let asleep = engine.asleep.lock();
    assert_eq!(within(), Some(None), "the thread holds the engine and the lock");
    drop(asleep);
    assert_eq!(within(), Some(None), "the thread holds the engine");
    assert_eq!(engine.wait_in_handler_within(at_most, |()| (), |()| ()), Some(()));
}
