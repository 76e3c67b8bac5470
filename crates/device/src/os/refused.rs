//! Log lines about calls that are refused: what the program asked for, and why it does not get it.

use super::clock;
use super::errno::Errno;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lines in a second: a program may repeat a call that fails.
const LINES: u64 = 32;

/// Logs why a call is refused, and returns its error.
#[cold]
pub fn refused(errno: i32, why: fmt::Arguments<'_>) -> Errno {
    static BUDGET: Budget = Budget(AtomicU64::new(0));
    BUDGET.log("calls", || why);
    Errno(errno)
}

/// Logs why a work request is not posted. `why` is called only if there is a line: posts have their own limit, and what they
/// do otherwise is fast.
#[cold]
pub fn refused_post(why: impl FnOnce() -> String) {
    static BUDGET: Budget = Budget(AtomicU64::new(0));
    if tracing::enabled!(tracing::Level::WARN) {
        BUDGET.log("posts", why);
    }
}

/// Logs why a value is refused that is over a limit which programs find by trying, and returns EINVAL: verbs have no
/// attribute for the limit of `max_inline_data`, and libfabric tries sizes until a QP is created. Only the first refusal
/// of the process is a warning.
#[cold]
pub fn refused_trial(why: fmt::Arguments<'_>) -> Errno {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if WARNED.swap(true, Ordering::Relaxed) {
        tracing::debug!("{why}");
        return Errno(libc::EINVAL);
    }
    refused(libc::EINVAL, format_args!("{why} (further lines like this one are at level debug)"))
}

/// Lines that were written in a second: the second in the upper bits, their number in the lower 16.
struct Budget(AtomicU64);

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole,
    Last,
    None,
}

impl Budget {
    /// Logs why one of `calls` is refused, if there is a line left.
    fn log<W: fmt::Display>(&self, calls: &str, why: impl FnOnce() -> W) {
        match self.take(clock::now().0 / 1_000_000_000) {
            Line::Whole => tracing::warn!("{}", why()),
            Line::Last => tracing::warn!("{} (further refused {calls} of this second are not logged)", why()),
            Line::None => {}
        }
    }

    fn take(&self, second: u64) -> Line {
        let counted = |before: u64| {
            let lines = if before >> 16 == second { before & 0xffff } else { 0 };
            (lines < LINES).then_some(second << 16 | (lines + 1))
        };
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted) {
            Ok(before) if counted(before).is_some_and(|after| after & 0xffff == LINES) => Line::Last,
            Ok(_) => Line::Whole,
            Err(_) => Line::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_limited_number_of_lines() {
        let budget = Budget(AtomicU64::new(0));
        for second in [7, 8, 100] {
            let lines: Vec<Line> = (0..LINES + 5).map(|_| budget.take(second)).collect();
            assert!(lines[..31].iter().all(|line| *line == Line::Whole) && lines[31] == Line::Last);
            assert!(lines[32..].iter().all(|line| *line == Line::None));
        }
    }
}
