//! The guard `rnr`: the RNR delay that a QP asks its peer for.
//!
//! An adapter with the flaw loses what arrives while it replays a READ, and it replays for as long as the RNR delay
//! lasts. So the smallest delay leaves the shortest time in which a request can be lost (thesis 7.1).

/// The code of `min_rnr_timer` for 0.01 ms. Code 0 is the longest delay, 655.36 ms (IBTA table 46).
pub const SMALLEST_DELAY: u8 = 1;
/// The `rnr_retry` that means "without a limit".
const UNLIMITED: u8 = 7;

/// The `min_rnr_timer` for a QP of a process with ODP memory, if it should differ from the program's. `rnr_retry` is
/// that of the QP; the peer's is taken to be the same, as programs set both ends alike. With a limit of retries, short
/// delays would use them up before a receive is posted: so nothing is changed then.
pub fn rnr_timer(min_rnr_timer: u8, rnr_retry: u8) -> Option<u8> {
    (rnr_retry == UNLIMITED && min_rnr_timer != SMALLEST_DELAY).then_some(SMALLEST_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_with_unlimited_retries() {
        assert_eq!((rnr_timer(14, 7), rnr_timer(0, 7)), (Some(1), Some(1)));
        assert_eq!((rnr_timer(14, 6), rnr_timer(1, 7)), (None, None));
    }
}
