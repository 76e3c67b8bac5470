//! Offering the core to others while one spins: whom one waits for may have none. Not to those who keep it: a program
//! that computes takes a whole time slice for each offer, and who makes one every microsecond would never run.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds. Who answers and waits in turn is back by then; whoever takes longer computes.
const ANSWER: u64 = 1_000_000;
/// Nanoseconds without a further offer after one that was taken for longer: some time slices, of which the scheduler
/// gives everybody a fair share.
const KEPT: u64 = 50_000_000;

/// When the core is offered again.
pub struct Courtesy {
    not_before: AtomicU64,
}

impl Courtesy {
    /// From now on.
    pub fn new() -> Courtesy {
        Courtesy { not_before: AtomicU64::new(0) }
    }

    /// Offers the core by `give` (such as sched_yield), if that has not cost too much lately. `clock` tells nanoseconds.
    #[inline]
    pub fn offer(&self, clock: impl Fn() -> u64, give: impl FnOnce()) {
        let before = clock();
        if before < self.not_before.load(Ordering::Relaxed) {
            std::hint::spin_loop();
            return;
        }
        give();
        let back = clock();
        if back.saturating_sub(before) > ANSWER {
            self.not_before.store(back + KEPT, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_keeps_the_core_is_not_offered_it_for_a_while() {
        let (courtesy, now, given) = (Courtesy::new(), Cell::new(1), Cell::new(0));
        let offer = |takes: u64| {
            let before = given.get();
            courtesy.offer(
                || now.get(),
                || {
                    given.set(before + 1);
                    now.set(now.get() + takes);
                },
            );
            given.get() > before
        };
        assert!(offer(20_000) && offer(ANSWER) && offer(20_000));
        assert!(offer(ANSWER + 1), "who takes it does not say for how long");
        assert!(!offer(0) && !offer(0));
        now.set(now.get() + KEPT - 1);
        assert!(!offer(0));
        now.set(now.get() + 1);
        assert!(offer(0) && offer(0));
    }
}
