//! Runs the threads of a model in every interleaving.

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// Starts a thread of a model.
pub type Spawn<'a, A> = &'a dyn Fn(fn(&A)) -> JoinHandle<()>;

/// Runs `body` in all interleavings of the threads that it starts, with at most `preemptions` preemptions. It gets a new
/// adapter each time.
pub fn check<A: Send + Sync + 'static>(
    preemptions: usize,
    adapter: fn() -> Arc<A>,
    body: impl Fn(&A, Spawn<'_, A>) + Send + Sync + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let adapter = adapter();
        let spawn = |work: fn(&A)| {
            let adapter = adapter.clone();
            thread::spawn(move || work(&adapter))
        };
        body(&adapter, &spawn);
    });
}
