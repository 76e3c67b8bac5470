//! Notes of the engine that wait for the log: of each kind, the first of a minute. The engine's thread writes the log, so
//! that a slow terminal delays no program.

use crate::os::locks::LeafMutex;
use weir_transport::Instant;

/// Notes of several kinds.
pub struct NoteLog<T, const KINDS: usize>(LeafMutex<[Noted<T>; KINDS]>);

#[derive(Clone, Copy)]
struct Noted<T> {
    waits: Option<T>,
    /// Before this time no other one is noted.
    next: Instant,
}

/// Between two notes of a kind, ns.
const AGAIN: u64 = 60_000_000_000;

impl<T: Copy, const KINDS: usize> NoteLog<T, KINDS> {
    /// Keeps a note for the log. Allocates nothing. False: one of its kind was kept a short time ago.
    pub fn note(&self, kind: usize, note: T, now: Instant) -> bool {
        let noted = &mut self.0.lock()[kind];
        let is_new = now >= noted.next;
        if is_new {
            *noted = Noted { waits: Some(note), next: Instant(now.0 + AGAIN) };
        }
        is_new
    }

    /// Takes the notes for the log.
    pub fn take(&self) -> impl Iterator<Item = T> {
        let waiting = self.0.lock().each_mut().map(|noted| noted.waits.take());
        waiting.into_iter().flatten()
    }

    /// What waits for the log.
    #[cfg(test)]
    pub fn noted(&self) -> Vec<T> {
        self.0.lock().iter().filter_map(|noted| noted.waits).collect()
    }
}

impl<T: Copy, const KINDS: usize> Default for NoteLog<T, KINDS> {
    fn default() -> Self {
        NoteLog(LeafMutex::new([Noted { waits: None, next: Instant::default() }; KINDS]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_noted_once_a_minute() {
        let log = NoteLog::<char, 2>::default();
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        assert!(log.note(0, 'a', at(100)));
        assert!(!log.note(0, 'b', at(159)));
        assert!(log.note(1, 'c', at(159)), "another kind");
        assert_eq!((log.take().collect::<String>(), log.take().count()), ("ac".to_owned(), 0));
        assert!(log.note(0, 'd', at(160)));
    }
}
