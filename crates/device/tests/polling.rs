//! Model checks which thread drives the engine: the real source on loom's primitives, in every interleaving.

mod sync {
    pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
}

mod interleavings;
#[path = "../src/pace/polling.rs"]
mod polling;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use polling::{POLLER_AFTER, Polling, TICK};

/// The parts of an adapter that the sleep of its thread depends on.
struct Adapter {
    polling: Polling,
    engine: Mutex<()>,
    /// The thread will wake for deadlines.
    armed: AtomicBool,
    kick: Mutex<Kick>,
    kicked: Condvar,
}

#[derive(Default)]
struct Kick {
    pending: bool,
    /// No further kick will come.
    over: bool,
}

impl Adapter {
    /// An adapter with a program that polls.
    fn new() -> Arc<Adapter> {
        let polling = Polling::new(false);
        while !polling.note_empty_poll(|| 0) {
            polling.note_poll(0);
        }
        let (engine, armed) = (Mutex::new(()), AtomicBool::new(false));
        Arc::new(Adapter { polling, engine, armed, kick: Mutex::default(), kicked: Condvar::new() })
    }

    fn turn(&self) {
        let _held = self.engine.lock().unwrap();
        if !self.polling.program_polls() {
            self.armed.store(true, Ordering::Relaxed);
        }
    }

    fn poll(&self) {
        self.turn();
        self.polling.note_poll(0);
        if self.polling.note_empty_poll(|| 0) {
            self.kick();
        }
    }

    fn sleep(&self) {
        if self.polling.hand_over() {
            self.kick();
        }
    }

    fn kick(&self) {
        self.kick.lock().unwrap().pending = true;
        self.kicked.notify_one();
    }

    /// The engine's thread; returns when it would sleep for ever.
    fn thread(&self) {
        for now in (0..).step_by(TICK as usize) {
            if self.polling.program_polls() {
                self.polling.check_may_wait(now);
                self.kick.lock().unwrap().pending = false;
                if self.polling.still_polled(now, self.engine.try_lock().is_err()) {
                    // A program in the middle of a turn ends it.
                    loom::thread::yield_now();
                    continue;
                }
            } else {
                let mut kick = self.kick.lock().unwrap();
                while !kick.pending {
                    if kick.over {
                        return;
                    }
                    kick = self.kicked.wait(kick).unwrap();
                }
                kick.pending = false;
            }
            self.turn();
        }
    }
}

/// Checks all interleavings of `programs` and the engine's thread with at most `preemptions` preemptions.
fn model<const N: usize>(preemptions: usize, programs: [fn(&Adapter); N]) {
    interleavings::check(preemptions, Adapter::new, move |adapter, spawn| {
        let engine = spawn(Adapter::thread);
        for program in programs.map(spawn) {
            program.join().unwrap();
        }
        adapter.kick.lock().unwrap().over = true;
        adapter.kicked.notify_one();
        engine.join().unwrap();
        assert!(!adapter.polling.program_polls(), "no program polls, and the thread leaves the sockets alone");
        assert!(adapter.armed.load(Ordering::Relaxed), "the thread sleeps without a wake-up");
    });
}

#[test]
fn a_poller_that_goes_to_sleep_leaves_the_thread_watching() {
    model(4, [|a| a.sleep()]);
}

#[test]
fn a_program_that_sleeps_while_another_polls_leaves_the_thread_watching() {
    let polls = |a: &Adapter| {
        a.poll();
        a.sleep();
    };
    model(2, [polls, |a| a.sleep()]);
}

#[test]
fn a_poller_that_stops_leaves_the_thread_watching() {
    model(4, [|a| a.poll()]);
}

#[test]
fn polls_during_the_check_for_pollers_leave_the_thread_watching() {
    let often = |a: &Adapter| {
        for _ in 0..=POLLER_AFTER {
            a.polling.note_empty_poll(|| 0);
        }
        a.sleep();
    };
    model(2, [often, |a| a.poll()]);
}
