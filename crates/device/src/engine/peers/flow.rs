//! Flow control of unacknowledged packets: UC and UD to another Weir process.
//!
//! The link of a real adapter holds a sender back while the receiver is busy; UDP does not, and drops. So a sender
//! asks at intervals, by a numbered hello, how much the receiver has taken in: the answer is written when everything
//! before the hello was taken in. No more than the receiver's window is under way meanwhile. A receiver that does not
//! answer is not waited for: flow control is best effort.

use std::time::Duration;
use weir_transport::Instant;

/// Wait before a question is repeated: doubled with each of `TRIES`.
const WAIT: Duration = Duration::from_millis(2);
const TRIES: u32 = 5;
/// As `TRIES`, where packets go through shared memory: two seconds. What is sent without an answer soon fills a ring,
/// which is smaller than a socket's buffer, and the connection shows when the peer's process has ended.
const TRIES_BY_RING: u32 = 10;

/// Bytes sent to a peer, and bytes that it has taken in.
#[derive(Debug, Default)]
pub struct Flow {
    sent: u64,
    taken: u64,
    mark: Option<Mark>,
    number: u32,
}

/// A question that is not answered yet.
#[derive(Clone, Copy, Debug)]
struct Mark {
    number: u32,
    /// Bytes that had been sent before it.
    sent: u64,
    tries: u32,
    due: Instant,
}

impl Flow {
    /// Bytes that may be sent now.
    pub fn room(&self, window: usize) -> usize {
        window.saturating_sub((self.sent - self.taken) as usize)
    }

    /// Counts sent bytes.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// The number of a question to ask now, if half a window was sent since the last one.
    pub fn ask(&mut self, window: usize, now: Instant) -> Option<u32> {
        if self.mark.is_some() || self.sent - self.taken < window as u64 / 2 {
            return None;
        }
        // 0 means no question.
        self.number = self.number.wrapping_add(1).max(1);
        self.mark = Some(Mark { number: self.number, sent: self.sent, tries: 1, due: now + WAIT });
        Some(self.number)
    }

    /// When a question is repeated.
    pub fn due(&self) -> Option<Instant> {
        self.mark.map(|mark| mark.due)
    }

    /// The number of a question to repeat. `None`: all tries are used up, and nothing is waited for any more. `by_ring`:
    /// packets go through shared memory.
    pub fn repeat(&mut self, now: Instant, by_ring: bool) -> Option<u32> {
        let mark = self.mark.as_mut()?;
        if mark.tries >= if by_ring { TRIES_BY_RING } else { TRIES } {
            self.mark = None;
            self.taken = self.sent;
            return None;
        }
        mark.due = now + WAIT * (1 << mark.tries);
        mark.tries += 1;
        Some(mark.number)
    }

    /// Handles an answer. Returns whether it is the expected one.
    pub fn answered(&mut self, number: u32) -> bool {
        let Some(mark) = self.mark.filter(|mark| mark.number == number) else { return false };
        self.taken = mark.sent;
        self.mark = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_window_is_under_way() {
        let mut flow = Flow::default();
        flow.sent(400);
        assert_eq!((flow.room(1000), flow.ask(1000, Instant(0))), (600, None));
        flow.sent(400);
        let number = flow.ask(1000, Instant(0)).unwrap();
        assert_eq!(flow.ask(1000, Instant(0)), None, "one question at a time");
        flow.sent(200);
        assert_eq!(flow.room(1000), 0);
        assert!(!flow.answered(number + 1));
        assert!(flow.answered(number));
        assert_eq!((flow.room(1000), flow.due()), (800, None));
    }

    #[test]
    fn a_silent_peer_blocks_only_for_the_tries() {
        for (by_ring, tries, longest) in [(false, TRIES, 100_000_000), (true, TRIES_BY_RING, 2_100_000_000)] {
            let mut flow = Flow::default();
            flow.sent(1000);
            let number = flow.ask(1000, Instant(0));
            let (mut asked, mut last) = (1, 0);
            while let Some(due) = flow.due() {
                let again = flow.repeat(due, by_ring);
                assert!(again.is_none() || again == number);
                asked += u32::from(again.is_some());
                last = due.0;
            }
            assert_eq!((asked, flow.room(1000)), (tries, 1000));
            assert!(last < longest && last > longest / 2);
        }
    }
}
