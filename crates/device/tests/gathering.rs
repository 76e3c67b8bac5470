//! Model checks that no request waits for ever while requests gather: the real source on loom's primitives, in every
//! interleaving.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/shared/gathering.rs"]
mod gathering;

use gathering::Gathering;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The parts of an adapter that decide when a request leaves.
struct Adapter {
    gathering: Gathering,
    /// Requests of the QP are in flight.
    busy: AtomicBool,
    /// The QP's doorbell.
    rung: AtomicBool,
    engine: Mutex<()>,
}

impl Adapter {
    /// A program has posted many requests in a row; the QP is `busy`.
    fn new(busy: bool) -> Arc<Adapter> {
        let gathering = Gathering::new();
        let in_flight = AtomicBool::new(true);
        while !gathering.may_wait(&in_flight, || 0) {}
        Arc::new(Adapter {
            gathering,
            busy: AtomicBool::new(busy),
            rung: AtomicBool::new(false),
            engine: Mutex::new(()),
        })
    }

    /// A turn that takes the doorbell, and sends.
    fn turn(&self) {
        let _held = self.engine.lock().unwrap();
        self.rung.store(false, Ordering::Release);
    }

    /// A turn in which the last ACK arrives.
    fn acknowledged(&self) {
        let _held = self.engine.lock().unwrap();
        if self.busy.swap(false, Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            if self.rung.load(Ordering::Acquire) {
                self.rung.store(false, Ordering::Release);
            }
        }
    }

    fn post(&self) {
        self.rung.store(true, Ordering::Release);
        if !self.gathering.may_wait(&self.busy, || 0) {
            self.turn();
        }
    }

    /// The engine's thread, which leaves the doorbell alone until it sleeps.
    fn thread(&self) {
        self.gathering.thread_wakes();
        self.gathering.thread_sleeps();
        if self.rung.load(Ordering::Acquire) {
            self.turn();
        }
    }
}

fn model(busy: bool, other: fn(&Adapter)) {
    loom::model(move || {
        let adapter = Adapter::new(busy);
        let other_thread = {
            let adapter = adapter.clone();
            thread::spawn(move || other(&adapter))
        };
        adapter.post();
        other_thread.join().unwrap();
        assert!(!adapter.rung.load(Ordering::Relaxed), "a request waits, and no turn will take it");
    });
}

#[test]
fn the_thread_takes_the_requests_that_wait_before_it_sleeps() {
    model(false, Adapter::thread);
}

#[test]
fn the_turn_that_ends_the_flight_takes_the_requests_that_wait() {
    model(true, Adapter::acknowledged);
}

#[test]
fn requests_wait_only_in_a_long_row_of_posts_and_only_briefly() {
    loom::model(|| {
        let (gathering, in_flight) = (Gathering::new(), AtomicBool::new(true));
        gathering.burst_left(1_000_000);
        let waits = |now: u64| gathering.may_wait(&in_flight, || now);
        assert_eq!((0..20).position(|_| waits(1_001_000)), Some(7), "the eighth post waits, and all after it");
        assert!(waits(1_004_999));
        assert!(!waits(1_005_000), "the first post after 5 µs takes all that wait");
        gathering.burst_left(1_006_000);
        assert!(waits(1_006_000));
        gathering.polled();
        assert!(!waits(1_006_000), "a poll ends the row");
    });
}
