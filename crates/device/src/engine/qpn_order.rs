//! The order in which QP numbers are assigned: each once before any is assigned again, and a number cannot be guessed
//! from the previous ones.
//!
//! When a number is assigned again late, the packets for its previous QP have left the wire. A sender that has the
//! number of one QP must not easily find that of another QP of the process. So a counter goes through a keyed
//! permutation of 14 bits: a Feistel network of two halves of 7 bits.

/// Bits of a number.
const BITS: u32 = 14;
const HALF: u32 = BITS / 2;
const MASK: u16 = (1 << HALF) - 1;
/// How many numbers there are.
pub const NUMBERS: u16 = 1 << BITS;

/// A key for each round. Seven rounds: with small halves, a few more than the four that theory requires.
pub type Keys = [u64; 7];

/// The numbers from 0 to 16,383 in an order determined by the keys, repeated.
pub struct QpnOrder {
    keys: Keys,
    counter: u16,
}

impl QpnOrder {
    /// The order of these keys.
    pub fn new(keys: Keys) -> QpnOrder {
        QpnOrder { keys, counter: 0 }
    }

    /// The next number.
    pub fn take(&mut self) -> u16 {
        let (mut left, mut right) = (self.counter >> HALF, self.counter & MASK);
        self.counter = (self.counter + 1) % NUMBERS;
        for key in self.keys {
            (left, right) = (right, left ^ (mixed(key ^ u64::from(right)) as u16 & MASK));
        }
        left << HALF | right
    }
}

/// The last step of SplitMix64: each bit of the result depends on all bits of the value.
fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const COUNT: usize = NUMBERS as usize;

    fn keys() -> Keys {
        let keys: Keys = std::array::from_fn(|_| getrandom::u64().unwrap());
        eprintln!("keys {keys:#x?}");
        keys
    }

    #[test]
    fn each_number_comes_once_before_one_comes_again() {
        let mut order = QpnOrder::new(keys());
        let first: Vec<u16> = (0..COUNT).map(|_| order.take()).collect();
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), COUNT);
        assert!(first.iter().all(|number| *number < NUMBERS));
        // The second pass is the same as the first, so a number is repeated as late as possible.
        assert!(first.iter().all(|number| order.take() == *number));
    }

    #[test]
    fn consecutive_numbers_are_unrelated() {
        let mut order = QpnOrder::new(keys());
        let numbers: Vec<u16> = (0..COUNT).map(|_| order.take()).collect();
        // The difference between consecutive numbers is hardly ever the same. In a random order the commonest of
        // 16,384 differences occurs about 8 times, and 40 times with a probability of 10^-40.
        let mut steps = vec![0u32; COUNT];
        for pair in numbers.windows(2) {
            steps[usize::from(pair[1].wrapping_sub(pair[0]) % NUMBERS)] += 1;
        }
        assert!(*steps.iter().max().unwrap() < 40, "{:?}", steps.iter().max());
        // They share no bits either: each bit differs between neighbours half of the time, within ten standard
        // deviations.
        for bit in 0..BITS {
            let differ = numbers.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
            assert!(differ.abs_diff(COUNT / 2) < 640, "bit {bit}: {differ}");
        }
    }

    #[test]
    fn another_key_is_another_order() {
        let [mut one, mut other] = [(); 2].map(|()| QpnOrder::new(keys()));
        let same = (0..COUNT).filter(|_| one.take() == other.take()).count();
        // One equal number is expected.
        assert!(same < 40, "{same}");
    }
}
