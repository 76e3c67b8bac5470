//! Random values of a scenario.

use weir_transport::Chance;

/// A stream of values; the same seed gives the same.
pub struct Draw(Chance);

impl Draw {
    pub fn new(seed: u64) -> Draw {
        // Neighbouring seeds start far apart.
        Draw(Chance::seeded(Chance::seeded(seed).bits()))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.0.share() < probability
    }

    /// From 0 to just below 1.
    pub fn share(&mut self) -> f64 {
        self.0.share()
    }

    /// A whole number, both bounds included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.bits() % (high - low + 1)
    }

    /// A whole number with a uniformly distributed logarithm, both bounds included; `low` is at least 1.
    pub fn log(&mut self, low: u64, high: u64) -> u64 {
        let (low_log, high_log) = ((low as f64).ln(), (high as f64 + 1.0).ln());
        ((low_log + (high_log - low_log) * self.0.share()).exp() as u64).clamp(low, high)
    }

    /// A number with a uniformly distributed logarithm.
    pub fn log_share(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + (high.ln() - low.ln()) * self.0.share()).exp()
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.0.bits() % all.len() as u64) as usize]
    }

    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }
}
