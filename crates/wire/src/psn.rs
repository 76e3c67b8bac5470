//! Packet sequence numbers: 24 bits, wrapping (IBTA 9.2.6, 9.7.1).

use std::fmt;

/// A 24-bit packet sequence number; arithmetic wraps, and order is defined within half of the number space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// Takes the low 24 bits.
    pub const fn new(value: u32) -> Self {
        Psn(value & Self::MASK)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The signed distance from `other` to `self`, -2^23 ..= 2^23 - 1.
    pub const fn since(self, other: Psn) -> i32 {
        (((self.0.wrapping_sub(other.0)) << 8) as i32) >> 8
    }

    /// The PSN `count` packets later.
    pub const fn plus(self, count: u32) -> Self {
        Psn::new(self.0.wrapping_add(count))
    }

    /// The PSN `count` packets earlier.
    pub const fn minus(self, count: u32) -> Self {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// The PSN after this one.
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Whether `self` comes before `other`.
    pub const fn before(self, other: Psn) -> bool {
        self.since(other) < 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_distance_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(3).since(last), 4);
        assert_eq!(last.since(Psn::new(3)), -4);
        assert!(last.before(Psn::new(0)));
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -(1 << 23));
    }
}
