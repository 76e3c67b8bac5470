//! The order in which the numbers of QPs are given: each of them once before one comes again, and none to be guessed
//! from its neighbours.
//!
//! A number that comes again late is one whose packets have left the wire. And that a packet names a QP of this process
//! must not be easy to arrange for a sender that knows another QP's number. So a counter goes through a permutation of
//! 14 bits that a key decides: a Feistel network of two halves of 7 bits.

/// Bits of a number.
const BITS: u32 = 14;
const HALF: u32 = BITS / 2;
const MASK: u16 = (1 << HALF) - 1;
/// How many numbers there are.
pub const NUMBERS: u16 = 1 << BITS;

/// A key for each round. Seven rounds: with small halves, a few more than the four that theory asks for.
pub type Keys = [u64; 7];

/// The numbers from 0 to 16,383 in an order that a key decides, again and again.
pub struct Order {
    keys: Keys,
    counter: u16,
}

impl Order {
    /// That of a key.
    pub fn new(keys: Keys) -> Order {
        Order { keys, counter: 0 }
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
        let mut order = Order::new(keys());
        let first: Vec<u16> = (0..COUNT).map(|_| order.take()).collect();
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), COUNT);
        assert!(first.iter().all(|number| *number < NUMBERS));
        // The second time round is as the first: what comes again is as far away as can be.
        assert!(first.iter().all(|number| order.take() == *number));
    }

    #[test]
    fn neighbours_do_not_tell_of_each_other() {
        let mut order = Order::new(keys());
        let numbers: Vec<u16> = (0..COUNT).map(|_| order.take()).collect();
        // Whatever the step from one to the next is, it is hardly ever the same. In a random order the commonest of
        // 16,384 steps is taken some 8 times, and by 40 pairs once in 10^40.
        let mut steps = vec![0u32; COUNT];
        for pair in numbers.windows(2) {
            steps[usize::from(pair[1].wrapping_sub(pair[0]) % NUMBERS)] += 1;
        }
        assert!(*steps.iter().max().unwrap() < 40, "{:?}", steps.iter().max());
        // Nor do they share bits: each bit differs between neighbours half of the time, give or take ten deviations.
        for bit in 0..BITS {
            let differ = numbers.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
            assert!(differ.abs_diff(COUNT / 2) < 640, "bit {bit}: {differ}");
        }
    }

    #[test]
    fn another_key_is_another_order() {
        let [mut one, mut other] = [(); 2].map(|()| Order::new(keys()));
        let same = (0..COUNT).filter(|_| one.take() == other.take()).count();
        // One is to be expected.
        assert!(same < 40, "{same}");
    }
}
