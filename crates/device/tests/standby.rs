//! Model checks that no packet waits while the engine's thread stands by: the real source on loom's primitives, in
//! every interleaving.

mod sync {
    pub use loom::sync::atomic::{AtomicBool, Ordering};
}

#[path = "../src/pace/armed.rs"]
mod armed;
mod interleavings;

use armed::Armed;
use loom::sync::{Arc, Condvar, Mutex};

/// The sockets of an adapter, and the kernel's set that contains them.
struct Adapter {
    armed: Armed,
    set: Mutex<Set>,
    ready: Condvar,
}

#[derive(Default)]
struct Set {
    /// A packet wakes the thread, once.
    wakes: bool,
    packets: u32,
    /// No packet and no poll will come any more.
    over: bool,
}

impl Adapter {
    fn new() -> Arc<Adapter> {
        Arc::new(Adapter { armed: Armed::new(), set: Mutex::default(), ready: Condvar::new() })
    }

    fn switch(&self, wakes: bool) {
        self.set.lock().unwrap().wakes = wakes;
        self.ready.notify_one();
    }

    /// A poll returned a completion.
    fn may_stop(&self) {
        self.armed.arm(|wakes| self.switch(wakes));
    }

    /// A poll found no completion, and handled what had arrived.
    fn polls(&self) {
        self.set.lock().unwrap().packets = 0;
        self.armed.disarm(|wakes| self.switch(wakes));
    }

    fn packet_arrives(&self) {
        self.set.lock().unwrap().packets += 1;
        self.ready.notify_one();
    }

    /// The engine's thread; returns when it would sleep for ever.
    fn thread(&self) {
        loop {
            let mut set = self.set.lock().unwrap();
            while !(set.wakes && set.packets > 0) {
                if set.over {
                    return;
                }
                set = self.ready.wait(set).unwrap();
            }
            set.wakes = false;
            set.packets = 0;
            drop(set);
            self.armed.rearm(|wakes| self.switch(wakes));
        }
    }
}

/// Checks all interleavings of `threads` and, if `stands_by`, the engine's thread, with at most `preemptions`
/// preemptions. Returns in each the adapter as they leave it.
fn model<const N: usize>(preemptions: usize, stands_by: bool, threads: [fn(&Adapter); N], check: fn(&Adapter)) {
    interleavings::check(preemptions, Adapter::new, move |adapter, spawn| {
        let engine = stands_by.then(|| spawn(Adapter::thread));
        threads.map(spawn).into_iter().for_each(|thread| thread.join().unwrap());
        adapter.set.lock().unwrap().over = true;
        adapter.ready.notify_one();
        engine.into_iter().for_each(|engine| engine.join().unwrap());
        check(adapter);
    });
}

/// The set is as the flag says.
fn agrees(adapter: &Adapter) {
    assert_eq!(adapter.set.lock().unwrap().wakes, adapter.armed.is_armed());
}

#[test]
fn a_program_that_looks_at_its_memory_gets_every_packet() {
    let program = |adapter: &Adapter| {
        adapter.may_stop();
        adapter.polls();
        adapter.may_stop();
    };
    let peer = |adapter: &Adapter| (0..2).for_each(|_| adapter.packet_arrives());
    model(3, true, [program, peer], |adapter| {
        agrees(adapter);
        assert_eq!(adapter.set.lock().unwrap().packets, 0, "a packet waits, and the thread sleeps");
    });
}

#[test]
fn the_set_follows_the_last_of_two_threads_that_poll() {
    let takes_completions = |adapter: &Adapter| adapter.may_stop();
    let finds_nothing = |adapter: &Adapter| {
        adapter.may_stop();
        adapter.polls();
    };
    model(4, false, [takes_completions, finds_nothing], agrees);
}

#[test]
fn the_set_follows_when_the_thread_stands_by_again() {
    let rearms = |adapter: &Adapter| adapter.armed.rearm(|wakes| adapter.switch(wakes));
    let polls = |adapter: &Adapter| {
        adapter.may_stop();
        adapter.polls();
    };
    model(4, false, [rearms, polls], agrees);
}
