//! Send errors, recorded for the log: once for each kind and destination, not once for each packet.

use std::net::{IpAddr, SocketAddr};

/// A datagram that the kernel refused, or a kind of send that it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError {
    /// What was refused.
    pub kind: SendErrorKind,
    /// The errno.
    pub errno: i32,
    /// Destination of the datagram.
    pub to: SocketAddr,
    /// Its source address.
    pub from: IpAddr,
    /// The outgoing interface, 0 = by route.
    pub ifindex: u32,
    /// UDP payload of the datagram, bytes.
    pub len: usize,
}

/// What was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendErrorKind {
    /// The datagram: it is lost.
    Send,
    /// Several datagrams in one send: they were sent one by one, and all later datagrams will be.
    Segments,
}

/// Number of entries, one for each kind and destination.
const REMEMBERED: usize = 16;
/// Nanoseconds after which the same error is reported again.
const AGAIN: u64 = 60_000_000_000;

/// The recent send errors of a socket, reported or not. Allocates nothing.
#[derive(Default)]
pub(crate) struct SendErrors {
    entries: [Option<Entry>; REMEMBERED],
    unreported: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    error: SendError,
    /// When it was recorded, nanoseconds.
    at: u64,
    reported: bool,
}

impl SendErrors {
    /// Records an error, unless the same was recorded within a minute. A full table replaces its oldest reported
    /// entry.
    #[cold]
    pub fn note(&mut self, error: SendError, now: u64) {
        let same = |entry: &Entry| {
            let known = &entry.error;
            (known.kind, known.errno, known.to.ip()) == (error.kind, error.errno, error.to.ip())
        };
        let index = match self.entries.iter().position(|entry| entry.as_ref().is_some_and(same)) {
            Some(known) => known,
            // A free entry is used first, then the oldest reported entry, then the oldest unreported entry.
            None => {
                let age = |at: &usize| self.entries[*at].map(|entry| (!entry.reported, entry.at));
                (0..REMEMBERED).min_by_key(age).expect("the table is not empty")
            }
        };
        let entry = &mut self.entries[index];
        match entry {
            // All entries wait to be reported: drop this error, which will occur again.
            Some(other) if !other.reported => return,
            Some(other) if same(other) && now.saturating_sub(other.at) < AGAIN => return,
            _ => *entry = Some(Entry { error, at: now, reported: false }),
        }
        self.unreported += 1;
    }

    /// The next error that was not yet reported.
    pub fn take(&mut self) -> Option<SendError> {
        if self.unreported == 0 {
            return None;
        }
        let entry = self.entries.iter_mut().flatten().find(|entry| !entry.reported)?;
        entry.reported = true;
        self.unreported -= 1;
        Some(entry.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: i32, host: u8) -> SendError {
        let to = SocketAddr::from(([10, 0, 0, host], 20480));
        SendError { kind: SendErrorKind::Send, errno, to, from: [10, 0, 0, 254].into(), ifindex: 0, len: 1000 }
    }

    fn taken(errors: &mut SendErrors) -> usize {
        std::iter::from_fn(|| errors.take()).count()
    }

    #[test]
    fn an_error_is_reported_once_a_minute_for_each_kind_and_destination() {
        let mut errors = SendErrors::default();
        for packet in 0..1000 {
            errors.note(error(libc::EMSGSIZE, 1), packet);
            errors.note(error(libc::EMSGSIZE, 2), packet);
            errors.note(error(libc::EPERM, 1), packet);
        }
        assert_eq!(taken(&mut errors), 3);
        errors.note(error(libc::EPERM, 1), AGAIN - 1);
        assert_eq!(taken(&mut errors), 0);
        errors.note(error(libc::EPERM, 1), AGAIN);
        assert_eq!(errors.take(), Some(error(libc::EPERM, 1)));
        assert_eq!(errors.take(), None);
    }

    #[test]
    fn many_destinations_replace_the_oldest_reported_entry() {
        let mut errors = SendErrors::default();
        for host in 0..100 {
            errors.note(error(libc::EPERM, host), u64::from(host));
        }
        assert_eq!(taken(&mut errors), REMEMBERED, "the table is full");
        errors.note(error(libc::EPERM, 200), 1000);
        assert_eq!(errors.take(), Some(error(libc::EPERM, 200)));
        // Host 0 was replaced, the others are still recorded.
        errors.note(error(libc::EPERM, 1), 1001);
        assert_eq!(taken(&mut errors), 0);
        errors.note(error(libc::EPERM, 0), 1002);
        assert_eq!(taken(&mut errors), 1);
    }
}
