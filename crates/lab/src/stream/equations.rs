//! F, equations 1 and 2.

/// The constants of equation 1: best B = min(⌈small / size⌉, most) for sizes up to `limit`, else max(⌈large / size⌉,
/// least).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BestB {
    /// Bytes outstanding of messages up to `limit` bytes.
    pub small: u64,
    /// Bytes outstanding of larger messages.
    pub large: u64,
    pub limit: u64,
    /// The most messages outstanding of messages up to `limit` bytes.
    pub most: u32,
    /// The fewest messages outstanding of larger messages.
    pub least: u32,
}

impl BestB {
    /// As printed in F: 3 Mi, 4 Mi, 128 Ki, 128, 2.
    pub const PAPER: BestB = BestB { small: 3 << 20, large: 4 << 20, limit: 128 << 10, most: 128, least: 2 };

    /// The number of outstanding messages of `size` bytes, which is at least 1.
    pub fn of(&self, size: u64) -> u32 {
        let size = size.max(1);
        let number = |bytes: u64| u32::try_from(bytes.div_ceil(size)).unwrap_or(u32::MAX).max(1);
        if size <= self.limit { number(self.small).min(self.most) } else { number(self.large).max(self.least) }
    }
}

/// Equation 2: the signalling period S for messages of `size` bytes, `outstanding` of them, and a send queue of
/// `depth` work requests.
///
/// For 16 Ki < size < 128 Ki the paper prints min(B/2, 1), which is 1 for every B but 1: every work request is
/// signalled. This is how it is read here, because the text has the same: "some small messages will gain a small
/// performance improvement if every send WR is signaled". For other sizes it is min(depth/2, depth − B), and at least
/// 1.
pub fn signal_period(size: u64, outstanding: u32, depth: u32) -> u32 {
    if size > 16 << 10 && size < 128 << 10 {
        return 1;
    }
    (depth / 2).min(depth.saturating_sub(outstanding)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equation_1_is_that_of_the_paper() {
        let best: Vec<u32> = (13..27).map(|bits| BestB::PAPER.of(1 << bits)).collect();
        assert_eq!(best, [128, 128, 96, 48, 24, 16, 8, 4, 2, 2, 2, 2, 2, 2]);
        assert_eq!(BestB::PAPER.of(3 << 20), 2);
    }

    #[test]
    fn equation_2_signals_every_small_message_and_few_large_ones() {
        assert_eq!(signal_period(32 << 10, 96, 256), 1);
        assert_eq!(
            [signal_period(1 << 20, 4, 64), signal_period(1 << 20, 60, 64), signal_period(1 << 20, 64, 64)],
            [32, 4, 1]
        );
        assert_eq!(signal_period(16 << 10, 100, 128), 28);
    }
}
