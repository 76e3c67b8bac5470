//! Model checks that no packet is left in a ring while its consumer sleeps: the real source on loom's primitives, in
//! every interleaving.

mod sync {
    pub use loom::sync::atomic::{AtomicU32, Ordering, fence};
}

#[path = "../src/local/arming.rs"]
mod arming;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// What producer and consumer share. A packet is published by an increment.
struct Shared {
    published: AtomicU32,
    armed: AtomicU32,
    wakes: Mutex<u32>,
    woken: Condvar,
}

impl Shared {
    fn produce(&self, packets: u32) {
        for number in 1..=packets {
            self.published.store(number, Ordering::Release);
            if arming::must_wake(&self.armed) {
                *self.wakes.lock().unwrap() += 1;
                self.woken.notify_one();
            }
        }
    }

    /// Consumes until it has all packets. Sleeps only as the engine's thread does. Loom reports a sleep without end.
    fn consume(&self, packets: u32) {
        let mut consumed = 0;
        while consumed < packets {
            consumed = self.published.load(Ordering::Acquire);
            if consumed == packets {
                break;
            }
            arming::arm(&self.armed);
            let now = self.published.load(Ordering::Acquire);
            if now == consumed {
                let mut wakes = self.wakes.lock().unwrap();
                while *wakes == 0 {
                    wakes = self.woken.wait(wakes).unwrap();
                }
                *wakes -= 1;
            }
            arming::disarm(&self.armed);
        }
    }
}

#[test]
fn a_sleeping_consumer_gets_every_packet() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = Arc::new(Shared {
            published: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            wakes: Mutex::new(0),
            woken: Condvar::new(),
        });
        let producer = shared.clone();
        let thread = thread::spawn(move || producer.produce(2));
        shared.consume(2);
        thread.join().unwrap();
    });
}

#[test]
fn an_armed_word_causes_one_wake() {
    loom::model(|| {
        let word = Arc::new(AtomicU32::new(0));
        assert!(!arming::must_wake(&word));
        arming::arm(&word);
        let other = word.clone();
        let thread = thread::spawn(move || u32::from(arming::must_wake(&other)));
        let woken = u32::from(arming::must_wake(&word)) + thread.join().unwrap();
        assert_eq!(woken, 1);
        arming::arm(&word);
        arming::disarm(&word);
        assert!(!arming::must_wake(&word));
    });
}
