//! An adapter's random values: timeouts and waits that vary from one to the next.
//!
//! In the thesis 1.28 ms of RNR delay became 3.39, 3.83, 4.42 and 5.51 ms, and an ACK timeout 435 or 538 ms
//! (T fig 4.2 to 4.4, 5.3). The cause of the variation is unknown, so the values are random, from a stream seeded by
//! the profile's seed and the QP's number: the same seed gives the same trace.

/// A stream of random shares (SplitMix64). Hosts draw from their own streams; each QP has one stream per side.
#[derive(Clone, Debug, Default)]
pub struct Chance(u64);

impl Chance {
    /// The stream of a seed.
    pub fn seeded(seed: u64) -> Chance {
        Chance(seed)
    }

    /// The stream of one side of a QP.
    pub(crate) fn new(seed: u64, qp: u32, side: u8) -> Chance {
        let mut chance = Chance(seed ^ u64::from(qp) << 8 ^ u64::from(side));
        // Streams of neighbouring QP numbers start far apart.
        chance.0 = chance.bits();
        chance
    }

    /// A number from 0 to just below 1.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.0)
    }
}

/// A step of SplitMix64.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |seed, qp, side| {
            let mut chance = Chance::new(seed, qp, side);
            [(); 8].map(|()| chance.share())
        };
        assert_eq!(draw(1, 2, 0), draw(1, 2, 0));
        for other in [draw(2, 2, 0), draw(1, 3, 0), draw(1, 2, 1)] {
            assert_ne!(draw(1, 2, 0), other);
        }
    }

    #[test]
    fn shares_fill_their_range_evenly() {
        let mut tenths = [0; 10];
        for qp in 0..1000 {
            let mut chance = Chance::new(1, qp, 0);
            (0..10).for_each(|_| tenths[(chance.share() * 10.0) as usize] += 1);
        }
        assert!(tenths.iter().all(|&count| (900..1100).contains(&count)), "{tenths:?}");
    }
}
