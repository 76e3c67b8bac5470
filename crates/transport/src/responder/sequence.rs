//! The order of requests in the stream of PSNs (IBTA 9.7.3.1, 9.7.5.1).

use weir_wire::Psn;

/// A position in the stream of PSNs, extended beyond 24 bits: equal PSNs from different wraps are different positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct PsnPosition(u64);

impl PsnPosition {
    /// The first position of a stream. One wrap of positions precedes it, because duplicates may carry such PSNs.
    pub fn first(psn: Psn) -> PsnPosition {
        PsnPosition(1 << 24 | u64::from(psn.get()))
    }

    /// Its PSN.
    #[inline]
    pub fn psn(self) -> Psn {
        Psn::new(self.0 as u32)
    }

    /// The position `count` packets later.
    #[inline]
    pub fn plus(self, count: u32) -> PsnPosition {
        PsnPosition(self.0 + u64::from(count))
    }

    /// The position with this PSN that is within half a wrap of this position.
    pub fn nearest(self, psn: Psn) -> PsnPosition {
        PsnPosition(self.0.wrapping_add_signed(i64::from(psn.since(self.psn()))))
    }

    /// Packets from `other` to this position; `None` if this position comes before `other`.
    pub fn since(self, other: PsnPosition) -> Option<u64> {
        self.0.checked_sub(other.0)
    }
}

/// How a request's PSN compares with the expected PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    Expected,
    /// A duplicate: within the 2^23 PSNs before the expected one (IBTA 9.7.4.1.1).
    Duplicate,
    /// An earlier packet is missing.
    Gap,
}

/// Compares a request's PSN with the expected PSN (IBTA 9.7.4.1.1).
pub(super) fn check(expected: Psn, got: Psn) -> Sequence {
    match got.since(expected) {
        0 => Sequence::Expected,
        ahead if ahead < 0 => Sequence::Duplicate,
        _ => Sequence::Gap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_psn_one_wrap_later_is_another_position() {
        let first = PsnPosition::first(Psn::new(0xff_fffe));
        assert_eq!(first.plus(3).psn(), Psn::new(1));
        assert_eq!(first.plus(3).nearest(Psn::new(0xff_fffe)), first);
        assert_eq!(first.plus(3).since(first), Some(3));
        assert_eq!(first.since(first.plus(1)), None);
        let round = first.plus(1 << 24);
        assert_eq!(round.psn(), first.psn());
        assert_ne!(round.nearest(first.psn()), first);
        // A duplicate may come from before the first position.
        assert_eq!(PsnPosition::first(Psn::new(0)).nearest(Psn::new(0xff_ffff)).psn(), Psn::new(0xff_ffff));
    }

    #[test]
    fn half_of_the_psn_space_is_duplicates() {
        let expected = Psn::new(2);
        assert_eq!(check(expected, Psn::new(2)), Sequence::Expected);
        assert_eq!(check(expected, Psn::new(3)), Sequence::Gap);
        assert_eq!(check(expected, Psn::new(0xff_ffff)), Sequence::Duplicate);
        assert_eq!(check(expected, expected.plus((1 << 23) - 1)), Sequence::Gap);
        assert_eq!(check(expected, expected.plus(1 << 23)), Sequence::Duplicate);
    }
}
