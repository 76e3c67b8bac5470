//! Model checking of who drives the engine: the same source on loom's primitives, in every order of its steps.

mod sync {
    pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
}

#[path = "../src/polling.rs"]
mod polling;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use polling::{POLLER_AFTER, Polling};

/// What an adapter is made of, as far as its thread's sleep is concerned.
struct Adapter {
    polling: Polling,
    engine: Mutex<()>,
    /// The thread will wake for what is due.
    armed: AtomicBool,
    kick: Mutex<Kick>,
    kicked: Condvar,
}

#[derive(Default)]
struct Kick {
    pending: bool,
    /// Nobody will kick any more.
    over: bool,
}

impl Adapter {
    /// With a program that polls.
    fn new() -> Arc<Adapter> {
        let polling = Polling::new(false);
        while !polling.in_vain(|| 0) {
            polling.drove(false);
        }
        let (engine, armed) = (Mutex::new(()), AtomicBool::new(false));
        Arc::new(Adapter { polling, engine, armed, kick: Mutex::default(), kicked: Condvar::new() })
    }

    fn turn(&self) {
        let _held = self.engine.lock().unwrap();
        if !self.polling.somebody_polls() {
            self.armed.store(true, Ordering::Relaxed);
        }
    }

    fn poll(&self) {
        self.turn();
        self.polling.drove(false);
        if self.polling.in_vain(|| 0) {
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

    /// The engine's thread, until it would sleep for ever.
    fn thread(&self) {
        loop {
            if self.polling.somebody_polls() {
                self.kick.lock().unwrap().pending = false;
                if self.polling.look() {
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

/// All orders with at most so many preemptions in which these and the thread run at once.
fn model<const N: usize>(preemptions: usize, programs: [fn(&Adapter); N]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let adapter = Adapter::new();
        let spawn = |work: fn(&Adapter)| {
            let adapter = adapter.clone();
            thread::spawn(move || work(&adapter))
        };
        let engine = spawn(Adapter::thread);
        for program in programs.map(spawn) {
            program.join().unwrap();
        }
        adapter.kick.lock().unwrap().over = true;
        adapter.kicked.notify_one();
        engine.join().unwrap();
        assert!(!adapter.polling.somebody_polls(), "nobody polls, and the thread keeps away");
        assert!(adapter.armed.load(Ordering::Relaxed), "the thread sleeps, and nothing will wake it");
    });
}

#[test]
fn a_poller_goes_to_sleep() {
    model(4, [|a| a.sleep()]);
}

#[test]
fn one_goes_to_sleep_while_the_other_polls() {
    let polls = |a: &Adapter| {
        a.poll();
        a.sleep();
    };
    model(2, [polls, |a| a.sleep()]);
}

#[test]
fn a_poller_stops() {
    model(4, [|a| a.poll()]);
}

#[test]
fn somebody_polls_on_while_the_thread_looks() {
    let often = |a: &Adapter| {
        for _ in 0..=POLLER_AFTER {
            a.polling.in_vain(|| 0);
        }
        a.sleep();
    };
    model(2, [often, |a| a.poll()]);
}
