//! Whether the engine's thread spins before it sleeps. A wake-up costs about as much as the spin, so spinning is worth it
//! if packets come meanwhile. They do not if they are rare, or if the peer waits for a program that cannot run because
//! the thread spins on its core. So after a spin in vain the thread sleeps at once for some wake-ups, twice as many
//! after each further one.

/// The longest spin (nanoseconds).
const SPIN: u64 = 40_000;
/// After so many spins in vain, the number of wake-ups without a spin grows no longer: it is 256 then.
const MAX_FAILURES: u32 = 8;

/// What the thread has found so far. Only the thread uses it.
#[derive(Default)]
pub struct Spin {
    /// Spins in vain, in a row.
    failures: u32,
    /// Wake-ups without a spin that are left.
    skip: u32,
    /// The last turn found no work.
    idle: bool,
}

impl Spin {
    /// The thread wakes up. A spin that was broken off counts neither way.
    pub fn begin(&mut self) {
        self.idle = false;
    }

    /// A turn found work or not, `since` nanoseconds after the last that did. Returns whether the thread goes on.
    pub fn goes_on(&mut self, worked: bool, since: u64) -> bool {
        if worked {
            if std::mem::take(&mut self.idle) {
                (self.failures, self.skip) = (0, 0);
            }
            return true;
        }
        let skips = self.skip > 0;
        if !skips && since <= SPIN {
            self.idle = true;
            return true;
        }
        self.idle = false;
        if skips {
            self.skip -= 1;
        } else {
            self.failures = (self.failures + 1).min(MAX_FAILURES);
            self.skip = 1 << self.failures;
        }
        false
    }

    /// Whether the thread spins: it waits for packets, and no turn finds any.
    pub fn is_idle(&self) -> bool {
        self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread wakes for packets, and the next ones come `gap` nanoseconds later. Returns whether it spun.
    fn wake(spin: &mut Spin, gap: u64) -> bool {
        assert!(spin.goes_on(true, 0));
        let spun = spin.goes_on(false, 1_000);
        assert_eq!(spun, spin.is_idle());
        if spun && gap <= SPIN {
            assert!(spin.goes_on(true, 0) && !spin.is_idle());
            assert!(spin.goes_on(false, SPIN) && !spin.goes_on(false, SPIN + 1));
        } else if spun {
            assert!(!spin.goes_on(false, SPIN + 1));
        }
        assert!(!spin.is_idle());
        spun
    }

    #[test]
    fn spins_in_vain_become_rare() {
        let mut spin = Spin::default();
        let spun: Vec<usize> = (0..1200).filter(|_| wake(&mut spin, SPIN + 1)).collect();
        assert_eq!(spun, [0, 3, 8, 17, 34, 67, 132, 261, 518, 775, 1032]);
    }

    #[test]
    fn a_spin_that_finds_packets_makes_spins_frequent() {
        let mut spin = Spin::default();
        for _ in 0..600 {
            wake(&mut spin, SPIN + 1);
        }
        let skipped = (0..1000).take_while(|_| !wake(&mut spin, SPIN)).count();
        assert!(skipped <= 256, "{skipped}");
        let spun = (0..30).filter(|_| wake(&mut spin, SPIN)).count();
        assert_eq!(spun, 10, "two wake-ups without after each spin, which ends when no further packets come");
    }

    #[test]
    fn a_spin_that_is_broken_off_says_nothing() {
        let mut spin = Spin::default();
        wake(&mut spin, SPIN + 1);
        spin.skip = 0;
        assert!(spin.goes_on(true, 0) && spin.goes_on(false, 1) && spin.is_idle());
        spin.begin();
        assert!(spin.goes_on(true, 0));
        assert_eq!(spin.failures, 1);
    }
}
