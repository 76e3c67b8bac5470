//! The end of the process: peers are told, but not all at once.

use super::Manager;
use super::ending::Ending;
use std::time::Duration;
use weir_cm::{Address, Parting};
use weir_transport::Instant;
use weir_wire::cm::Message;
use weir_wire::mad::Mad;

/// Ids that end together: their peers, and this process, have room for so many MADs.
pub(super) const BATCH: usize = 64;
/// How long to wait for the answers to the last MADs.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);
/// How long to wait after MADs without an answer.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

impl Manager {
    /// The process ends: so do its ids, some at a time, because a peer that gets thousands of MADs at once loses most of
    /// them, and they are not repeated. Returns when to call it again, `None` if no id is left. The files stay, without
    /// events: threads of the program still wait for some.
    pub fn end(&mut self, now: Instant) -> Option<Instant> {
        self.now = now;
        self.files.values_mut().for_each(|queue| drop(queue.take(|_| true)));
        match &self.ending {
            // First those with nothing to tell: no peer waits behind them, and no request leaves that had to wait.
            None => {
                let quiet: Vec<u32> =
                    self.numbers().filter(|number| self.parting(*number) == Parting::Nothing).collect();
                quiet.into_iter().for_each(|number| _ = self.destroy(number));
            }
            Some(ending) if now < ending.goes_on => return Some(ending.goes_on),
            Some(_) => {}
        }
        let ids: Vec<u32> = self.numbers().take(BATCH).collect();
        let count = |parting| ids.iter().filter(|number| self.parting(**number) == parting).count();
        let (unanswered, last) = (count(Parting::Question), count(Parting::Message));
        let wait = match (unanswered, last) {
            (0, 0) => Duration::ZERO,
            (0, _) => PAUSE,
            _ => PATIENCE,
        };
        let goes_on = now + wait;
        self.ending = Some(Ending { unanswered, goes_on });
        ids.into_iter().for_each(|number| _ = self.destroy(number));
        self.work();
        self.numbers().next().map(|_| goes_on)
    }

    /// The process ends: the last messages of its connections leave again, because one may be lost.
    pub fn repeat_ends(&mut self) {
        self.cm.repeat_ends();
        self.work();
    }

    /// MADs have come: answers to disconnections among them let the end go on.
    pub(super) fn count_answers(&mut self, mads: &[(Address, Mad)]) {
        let Some(ending) = self.ending.as_mut().filter(|ending| ending.unanswered > 0) else { return };
        let is_answer = |mad: &Mad| matches!(Message::parse(mad), Ok((_, Message::Drep(_))));
        let answers = mads.iter().filter(|(_, mad)| is_answer(mad)).count();
        ending.unanswered = ending.unanswered.saturating_sub(answers);
        if ending.unanswered == 0 {
            ending.goes_on = self.now;
        }
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.ids.iter().map(|(number, _)| number)
    }

    /// What the peer of an id gets when the id ends.
    fn parting(&self, number: u32) -> Parting {
        let connection = self.ids.get(number).and_then(|id| id.connection);
        connection.map_or(Parting::Nothing, |connection| self.cm.parting(connection))
    }
}
