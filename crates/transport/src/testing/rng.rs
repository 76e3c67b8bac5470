//! A small seeded generator (SplitMix64).

use crate::quirk::split_mix;

/// Pseudo-random numbers; the same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        split_mix(&mut self.0)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.draw() % n }
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        ((self.draw() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}
