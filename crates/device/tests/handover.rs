//! Model checks the engine's hand-over and the doorbells: the real source on loom's primitives, in every interleaving.

mod sync {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

    pub use crate::ranked::{RankedCondvar, RankedGuard, RankedMutex, rank};
}

/// The interface of `os/locks.rs` on loom's primitives. There is no account of the order: loom reports a deadlock.
mod ranked {
    use loom::sync::{Condvar, Mutex, MutexGuard};
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub mod rank {
        pub const LEAF: u8 = 0;
        pub const SLEEPERS: u8 = 1;
    }

    pub struct RankedMutex<T, const RANK: u8>(Mutex<T>);

    pub struct RankedGuard<'a, T, const RANK: u8>(MutexGuard<'a, T>);

    pub struct RankedCondvar(Condvar);

    impl<T, const RANK: u8> RankedMutex<T, RANK> {
        pub fn new(value: T) -> Self {
            RankedMutex(Mutex::new(value))
        }

        pub fn lock(&self) -> RankedGuard<'_, T, RANK> {
            RankedGuard(self.0.lock().unwrap())
        }

        /// No thread of a model holds the lock for long.
        pub fn try_lock_within(&self, _: Duration) -> Option<RankedGuard<'_, T, RANK>> {
            Some(self.lock())
        }
    }

    impl RankedCondvar {
        pub fn new() -> Self {
            RankedCondvar(Condvar::new())
        }

        pub fn wait<'a, T, const RANK: u8>(&self, guard: RankedGuard<'a, T, RANK>) -> RankedGuard<'a, T, RANK> {
            RankedGuard(self.0.wait(guard.0).unwrap())
        }

        pub fn wait_timeout<'a, T, const RANK: u8>(
            &self,
            guard: RankedGuard<'a, T, RANK>,
            at_most: Duration,
        ) -> RankedGuard<'a, T, RANK> {
            RankedGuard(self.0.wait_timeout(guard.0, at_most).unwrap().0)
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl<T, const RANK: u8> Deref for RankedGuard<'_, T, RANK> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T, const RANK: u8> DerefMut for RankedGuard<'_, T, RANK> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }
}

#[path = "../src/shared/doorbells.rs"]
mod doorbells;
#[path = "../src/shared/handover.rs"]
mod handover;

use doorbells::{Bell, Doorbells};
use handover::Handover;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::time::Duration;

/// The parts of an adapter that doorbells depend on.
struct Adapter {
    doorbells: Doorbells,
    qps: [Qp; 2],
    engine: Handover<Engine>,
}

struct Qp {
    bell: Bell,
    posted: Mutex<u32>,
    sent: AtomicU32,
}

#[derive(Default)]
struct Engine {
    rung: Vec<u32>,
    turns: u32,
}

impl Adapter {
    fn new() -> Arc<Adapter> {
        let qp = || Qp { bell: Bell::new(), posted: Mutex::new(0), sent: AtomicU32::new(0) };
        let engine = Handover::new(Engine::default(), 2);
        let doorbells = Doorbells::new();
        doorbells.reserve(2);
        Arc::new(Adapter { doorbells, qps: [qp(), qp()], engine })
    }

    fn post(&self, qp: u32) {
        *self.qps[qp as usize].posted.lock().unwrap() += 1;
        self.doorbells.ring(&self.qps[qp as usize].bell, qp);
        self.engine.request_turn(|engine| self.turn(engine));
    }

    fn poll(&self) -> bool {
        self.engine.attempt(|engine| self.turn(engine), |engine| self.turn(engine)).is_some()
    }

    /// A poll sleeps after two failed attempts.
    fn poll_or_sleep(&self, at_most: Duration) -> bool {
        self.engine.attempt_or_sleep(at_most, |engine| self.turn(engine), |engine| self.turn(engine)).is_some()
    }

    fn turn(&self, engine: &mut Engine) {
        assert!(self.engine.is_held());
        engine.turns += 1;
        self.doorbells.take(&mut engine.rung);
        for number in engine.rung.drain(..) {
            let qp = &self.qps[number as usize];
            qp.bell.clear();
            qp.sent.store(*qp.posted.lock().unwrap(), Ordering::Relaxed);
        }
    }

    /// After all threads have ended: everything that was posted has been sent.
    fn check(&self) {
        for qp in &self.qps {
            assert_eq!(qp.sent.load(Ordering::Relaxed), *qp.posted.lock().unwrap(), "a doorbell was lost");
        }
        assert!(!self.doorbells.any(), "a doorbell is left");
        assert!(!self.engine.is_held(), "the engine is still held");
        assert!(self.poll());
    }
}

/// Checks all interleavings of `programs` with at most `preemptions` preemptions. loom reports a deadlock.
fn model<const N: usize>(preemptions: usize, programs: [fn(&Adapter); N]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let adapter = Adapter::new();
        let threads = programs.map(|program| {
            let adapter = adapter.clone();
            thread::spawn(move || program(&adapter))
        });
        for thread in threads {
            thread.join().unwrap();
        }
        adapter.check();
    });
}

#[test]
fn posts_to_one_qp_from_two_threads_lose_no_doorbell() {
    model(4, [|a| a.post(0), |a| a.post(0)]);
}

#[test]
fn posts_to_two_qps_in_both_orders_lose_no_doorbell() {
    model(
        3,
        [
            |a| {
                a.post(0);
                a.post(1);
            },
            |a| {
                a.post(1);
                a.post(0);
            },
        ],
    );
}

#[test]
fn posts_while_others_poll_lose_no_doorbell() {
    model(
        3,
        [
            |a| a.post(0),
            |a| a.post(1),
            |a| {
                a.poll();
            },
        ],
    );
}

#[test]
fn control_paths_wait_for_the_engine_and_lose_no_doorbell() {
    let control = |a: &Adapter| a.engine.wait(|engine| engine.turns += 1, |engine| a.turn(engine));
    model(3, [|a| a.post(0), control, control]);
}

#[test]
fn control_paths_among_pollers_lose_no_doorbell() {
    let control = |a: &Adapter| a.engine.wait(|_| (), |engine| a.turn(engine));
    let poll = |a: &Adapter| {
        a.poll();
        a.post(1);
    };
    model(3, [control, poll, control]);
}

#[test]
fn a_thread_that_stops_waiting_loses_no_doorbell() {
    fn control(a: &Adapter, at_most: Duration) {
        let done = a.engine.wait_within(at_most, |engine| engine.turns += 1, |engine| a.turn(engine));
        assert!(done.is_some() || at_most.is_zero());
    }
    fn handler(a: &Adapter) {
        a.engine.wait_in_handler_within(Duration::ZERO, |engine| engine.turns += 1, |engine| a.turn(engine));
    }
    model(3, [|a| a.post(0), handler, |a| control(a, Duration::ZERO)]);
    model(3, [|a| a.post(0), |a| control(a, Duration::ZERO), |a| control(a, Duration::from_secs(3600))]);
    model(3, [|a| a.post(0), |a| a.post(1), |a| control(a, Duration::ZERO)]);
}

#[test]
fn pollers_that_sleep_lose_no_doorbell() {
    fn poll(a: &Adapter, at_most: Duration) {
        for _ in 0..2 {
            a.poll_or_sleep(at_most);
        }
    }
    model(3, [|a| a.post(0), |a| poll(a, Duration::ZERO)]);
    model(2, [|a| a.post(0), |a| poll(a, Duration::ZERO), |a| a.post(1)]);
    model(2, [|a| a.post(0), |a| poll(a, Duration::from_secs(3600)), |a| a.post(1)]);
}

/// Like a real-time thread on the same core as the holder of the engine. If the holder goes on only while the poller
/// sleeps, a poller that never sleeps would not terminate, and loom would report it.
#[test]
fn a_poller_that_never_stops_does_not_starve_the_holder() {
    fn poll(a: &Adapter) {
        while !a.poll_or_sleep(Duration::from_secs(3600)) {}
    }
    model(3, [|a| a.post(0), poll]);
    model(2, [|a| a.post(0), poll, |a| a.post(1)]);
    model(2, [|a| a.post(0), poll, poll]);
}

#[test]
fn a_holder_that_panics_releases_the_engine() {
    loom::model(|| {
        let adapter = Adapter::new();
        let panics = std::panic::AssertUnwindSafe(|| {
            adapter.engine.attempt(|_| std::panic::resume_unwind(Box::new("in a turn")), |_| ())
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        adapter.check();
    });
}
