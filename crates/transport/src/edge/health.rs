//! Whether a link works.
//!
//! A link that fails is *suspect*: it carries no packets but questions, empty packets that ask for an acknowledgement.
//! When enough of them in a row are answered, it is used again. A link that becomes suspect again soon needs more.

use crate::Instant;
use std::time::Duration;

/// The time from one question to the next; it doubles while none is answered.
const ASK_EVERY: Duration = Duration::from_millis(5);
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(80);
/// A link that is suspect again within this time needs twice as many answers.
const RELAPSE: Duration = Duration::from_secs(1);
/// The most answers that a link needs.
const MOST_ANSWERS: u32 = 32;
/// Answers that a lossy link needs at least.
const LOSSY_ANSWERS: u32 = 8;

/// The state of a link.
#[derive(Debug)]
pub(super) struct Health {
    state: State,
    /// Answers that it needed when it was suspect last.
    needs: u32,
    /// When it was used again.
    since: Option<Instant>,
}

#[derive(Debug)]
enum State {
    Up,
    Suspect { ask_at: Instant, every: Duration, answers: u32 },
    Down,
}

/// How well a link works. Packets are put on the best links only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// Its interface is down.
    Down,
    /// Suspect, and no question is answered.
    Silent,
    /// Suspect, but it answers.
    Answers,
    Up,
}

/// Why a link is suspect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The peer does not answer on it, but on another.
    Silent,
    /// It loses much more than another.
    Lossy,
    /// Its interface was down.
    WasDown,
}

impl Health {
    pub fn new() -> Health {
        Health { state: State::Up, needs: 1, since: None }
    }

    /// How well the link works.
    pub fn rank(&self) -> Rank {
        match self.state {
            State::Up => Rank::Up,
            State::Suspect { answers: 0, .. } => Rank::Silent,
            State::Suspect { .. } => Rank::Answers,
            State::Down => Rank::Down,
        }
    }

    /// Its interface is down.
    pub fn set_down(&mut self) {
        self.state = State::Down;
    }

    /// It is suspect from now on.
    pub fn suspect(&mut self, now: Instant, cause: Cause) {
        let relapse = self.since.is_some_and(|since| now - since < RELAPSE);
        self.needs = if relapse { (2 * self.needs).min(MOST_ANSWERS) } else { 1 };
        if cause == Cause::Lossy {
            self.needs = self.needs.max(LOSSY_ANSWERS);
        }
        self.state = State::Suspect { ask_at: now, every: ASK_EVERY, answers: 0 };
    }

    /// When the next question is due.
    pub fn ask_at(&self) -> Option<Instant> {
        match self.state {
            State::Suspect { ask_at, .. } => Some(ask_at),
            _ => None,
        }
    }

    /// A question leaves.
    pub fn asked(&mut self, now: Instant) {
        if let State::Suspect { ask_at, every, answers } = &mut self.state {
            *ask_at = now + *every;
            if *answers == 0 {
                *every = (2 * *every).min(ASK_AT_MOST_EVERY);
            }
        }
    }

    /// A question was answered.
    pub fn answered(&mut self, now: Instant) {
        let State::Suspect { ask_at, every, answers } = &mut self.state else { return };
        *answers += 1;
        *every = ASK_EVERY;
        *ask_at = (*ask_at).min(now + ASK_EVERY);
        if *answers >= self.needs {
            (self.state, self.since) = (State::Up, Some(now));
        }
    }

    /// A question, or its answer, was lost.
    pub fn not_answered(&mut self) {
        if let State::Suspect { answers, .. } = &mut self.state {
            *answers = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn questions_become_rare_while_none_is_answered() {
        let mut health = Health::new();
        health.suspect(ms(0), Cause::Silent);
        let mut times = vec![];
        for _ in 0..7 {
            let at = health.ask_at().unwrap();
            health.asked(at);
            times.push(at.0 / 1_000_000);
        }
        assert_eq!(times, [0, 5, 15, 35, 75, 155, 235]);
        assert_eq!(health.rank(), Rank::Silent);
        health.answered(ms(240));
        assert_eq!((health.rank(), health.ask_at()), (Rank::Up, None));
    }

    #[test]
    fn a_link_that_fails_again_soon_needs_more_answers() {
        let answers = |health: &mut Health, now| {
            (1..)
                .find(|_| {
                    health.answered(now);
                    health.rank() == Rank::Up
                })
                .unwrap()
        };
        let mut health = Health::new();
        for (at, expected) in [(0, 1), (500, 2), (900, 4), (5000, 1)] {
            health.suspect(ms(at), Cause::Silent);
            assert_eq!(answers(&mut health, ms(at + 1)), expected, "{at}");
        }
        health.suspect(ms(9000), Cause::Lossy);
        (0..7).for_each(|_| health.answered(ms(9001)));
        assert_eq!(health.rank(), Rank::Answers);
        health.not_answered();
        assert_eq!(health.rank(), Rank::Silent, "from the beginning");
        assert_eq!(answers(&mut health, ms(9003)), 8);
    }
}
