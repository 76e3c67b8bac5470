//! Timestamps of pcapng: ticks of any resolution to nanoseconds.

const SECOND: u64 = 1_000_000_000;

/// The clock of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    unit: Unit,
    /// Nanoseconds to add.
    offset: i64,
}

/// Nanoseconds of a tick. The usual ones need no division.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Times(u64),
    /// Ticks for each second.
    Per(u64),
}

impl Ticks {
    /// From `if_tsresol` (a negative power of ten, or of two with the top bit set) and `if_tsoffset` (seconds). `None`
    /// if a second has more ticks than fit into 64 bits.
    pub(crate) fn new(resolution: u8, offset: i64) -> Option<Self> {
        let base = if resolution & 0x80 == 0 { 10u64 } else { 2 };
        let per_second = base.checked_pow(u32::from(resolution & 0x7f))?;
        let unit =
            if SECOND.is_multiple_of(per_second) { Unit::Times(SECOND / per_second) } else { Unit::Per(per_second) };
        Some(Ticks { unit, offset: offset.wrapping_mul(SECOND as i64) })
    }

    /// Nanoseconds since 1970; a damaged time wraps around.
    #[inline]
    pub(crate) fn nanoseconds(self, ticks: u64) -> u64 {
        let nanoseconds = match self.unit {
            Unit::Times(factor) => ticks.wrapping_mul(factor),
            Unit::Per(per_second) => (u128::from(ticks) * u128::from(SECOND) / u128::from(per_second)) as u64,
        };
        nanoseconds.wrapping_add_signed(self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_and_of_two() {
        let at = |resolution, ticks| Ticks::new(resolution, 5).unwrap().nanoseconds(ticks) - 5 * SECOND;
        assert_eq!(at(6, 1_000_001), 1_000_001_000);
        assert_eq!(at(9, 77), 77);
        assert_eq!(at(12, 7_999), 7);
        assert_eq!(at(0, 3), 3 * SECOND);
        assert_eq!(at(0x80 | 10, 1536), 1_500_000_000);
        assert_eq!(at(0x80 | 32, 3 << 31), 1_500_000_000);
        assert!(Ticks::new(20, 0).is_none() && Ticks::new(0x80 | 64, 0).is_none());
    }
}
