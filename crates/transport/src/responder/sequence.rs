//! Where a request stands in the stream of PSNs (IBTA 9.7.3.1, 9.7.5.1).

use weir_wire::Psn;

/// Where a request's PSN stands against the one that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    Expected,
    /// Seen before: within the 2^23 PSNs before the expected one (IBTA C9-57).
    Duplicate,
    /// Something before it is missing.
    Gap,
}

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
    fn half_of_the_space_is_the_past() {
        let expected = Psn::new(2);
        assert_eq!(check(expected, Psn::new(2)), Sequence::Expected);
        assert_eq!(check(expected, Psn::new(3)), Sequence::Gap);
        assert_eq!(check(expected, Psn::new(0xff_ffff)), Sequence::Duplicate);
        assert_eq!(check(expected, expected.plus((1 << 23) - 1)), Sequence::Gap);
        assert_eq!(check(expected, expected.plus(1 << 23)), Sequence::Duplicate);
    }
}
