//! Pages of a registration that the adapter was asked for, and has not lost since: they need not be asked for again.
//!
//! A page that was asked for may still be on its way. It needs no second request either, and if the adapter has dropped the
//! first one, there is a page fault, as with any prefetch.

use crate::buffer::Piece;
use std::ops::Range;

const PAGE: u64 = 4096;
/// Ranges that are remembered of each registration.
const RANGES: usize = 8;

/// Ranges of one registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warm {
    /// The adapter's count of lost pages before the first of them was asked for.
    lost: u64,
    /// The oldest first.
    ranges: Vec<Asked>,
}

#[derive(Clone, Debug)]
struct Asked {
    /// Whole pages.
    pages: Range<u64>,
    /// For writing, and so for reading, too.
    write: bool,
}

impl Warm {
    /// Whether the pages of a piece must be asked for. The caller does so then: from now on they need not.
    ///
    /// `lost`: how many pages the adapter has lost, read before the pages are asked for. `None`: it does not tell, so that pages
    /// must be asked for each time.
    pub fn needs(&mut self, piece: &Piece, write: bool, lost: Option<u64>) -> bool {
        let Some(lost) = lost else {
            self.ranges.clear();
            return true;
        };
        if lost != self.lost {
            self.ranges.clear();
            self.lost = lost;
        }
        let mut pages = piece.addr / PAGE..(piece.addr + piece.len).div_ceil(PAGE);
        let has =
            |asked: &Asked| asked.pages.start <= pages.start && pages.end <= asked.pages.end && (asked.write || !write);
        if self.ranges.iter().any(has) {
            return false;
        }
        // One range in place of those that it touches.
        self.ranges.retain(|asked| {
            let touches = asked.pages.start <= pages.end && pages.start <= asked.pages.end;
            if touches && asked.write == write {
                pages = pages.start.min(asked.pages.start)..pages.end.max(asked.pages.end);
            }
            !touches || asked.write != write
        });
        if self.ranges.len() == RANGES {
            self.ranges.remove(0);
        }
        self.ranges.push(Asked { pages, write });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(warm: &mut Warm, pages: Range<u64>, write: bool, lost: u64) -> bool {
        // Not all of the first and the last page.
        let piece = Piece { addr: pages.start * PAGE + 100, len: (pages.end - pages.start) * PAGE - 200 };
        warm.needs(&piece, write, Some(lost))
    }

    #[test]
    fn pages_are_asked_for_once_until_some_are_lost() {
        let mut warm = Warm::default();
        assert!(needs(&mut warm, 2..5, false, 0));
        assert!(!needs(&mut warm, 2..5, false, 0) && !needs(&mut warm, 3..4, false, 0));
        assert!(needs(&mut warm, 3..4, false, 1));
        assert!(needs(&mut warm, 2..5, false, 1) && !needs(&mut warm, 2..5, false, 1));
    }

    #[test]
    fn pages_for_reading_may_not_be_fit_for_writing() {
        let mut warm = Warm::default();
        assert!(needs(&mut warm, 0..4, false, 0));
        assert!(needs(&mut warm, 1..3, true, 0));
        assert!(!needs(&mut warm, 1..3, true, 0) && !needs(&mut warm, 0..4, false, 0));
        assert!(needs(&mut warm, 0..4, true, 0) && !needs(&mut warm, 0..4, true, 0));
    }

    #[test]
    fn ranges_that_touch_are_one_and_the_oldest_are_forgotten() {
        let mut warm = Warm::default();
        assert!(needs(&mut warm, 0..2, true, 7) && needs(&mut warm, 4..6, true, 7) && needs(&mut warm, 2..4, true, 7));
        assert!(!needs(&mut warm, 0..6, true, 7));
        (1..=RANGES as u64).for_each(|at| assert!(needs(&mut warm, at * 10..at * 10 + 1, true, 7)));
        assert!(!needs(&mut warm, 80..81, true, 7));
        assert!(needs(&mut warm, 0..6, true, 7));
    }

    #[test]
    fn an_adapter_that_does_not_tell_is_asked_each_time() {
        let (mut warm, piece) = (Warm::default(), Piece { addr: 0, len: PAGE });
        assert!(warm.needs(&piece, true, Some(0)));
        assert!(warm.needs(&piece, true, None) && warm.needs(&piece, true, None));
        assert!(warm.needs(&piece, true, Some(0)) && !warm.needs(&piece, true, Some(0)));
    }
}
