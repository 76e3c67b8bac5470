//! Send errors, recorded for the log: once for each kind and destination, not once for each packet.

use std::net::{IpAddr, SocketAddr};

/// A datagram that the kernel refused, or a kind of send that it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What was refused.
    pub kind: TroubleKind,
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
pub enum TroubleKind {
    /// The datagram: it is lost.
    Send,
    /// Several datagrams in one send: they were sent one by one, and all later datagrams will be.
    Segments,
}

/// Number of entries, one for each kind and destination.
const REMEMBERED: usize = 16;
/// Nanoseconds after which the same trouble is reported again.
const AGAIN: u64 = 60_000_000_000;

/// The recent troubles of a socket, reported or not. Allocates nothing.
#[derive(Default)]
pub(crate) struct Troubles {
    entries: [Option<Entry>; REMEMBERED],
    unreported: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    trouble: Trouble,
    /// When it was recorded, nanoseconds.
    at: u64,
    reported: bool,
}

impl Troubles {
    /// Records a trouble, unless the same was recorded within a minute. A full table replaces its oldest reported
    /// entry.
    #[cold]
    pub fn note(&mut self, trouble: Trouble, now: u64) {
        let same = |entry: &Entry| {
            let known = &entry.trouble;
            (known.kind, known.errno, known.to.ip()) == (trouble.kind, trouble.errno, trouble.to.ip())
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
            // All entries wait to be reported: drop this trouble, which will occur again.
            Some(other) if !other.reported => return,
            Some(other) if same(other) && now.saturating_sub(other.at) < AGAIN => return,
            _ => *entry = Some(Entry { trouble, at: now, reported: false }),
        }
        self.unreported += 1;
    }

    /// The next trouble that was not yet reported.
    pub fn take(&mut self) -> Option<Trouble> {
        if self.unreported == 0 {
            return None;
        }
        let entry = self.entries.iter_mut().flatten().find(|entry| !entry.reported)?;
        entry.reported = true;
        self.unreported -= 1;
        Some(entry.trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(errno: i32, host: u8) -> Trouble {
        let to = SocketAddr::from(([10, 0, 0, host], 20480));
        Trouble { kind: TroubleKind::Send, errno, to, from: [10, 0, 0, 254].into(), ifindex: 0, len: 1000 }
    }

    fn taken(troubles: &mut Troubles) -> usize {
        std::iter::from_fn(|| troubles.take()).count()
    }

    #[test]
    fn a_trouble_is_reported_once_a_minute_for_each_kind_and_destination() {
        let mut troubles = Troubles::default();
        for packet in 0..1000 {
            troubles.note(trouble(libc::EMSGSIZE, 1), packet);
            troubles.note(trouble(libc::EMSGSIZE, 2), packet);
            troubles.note(trouble(libc::EPERM, 1), packet);
        }
        assert_eq!(taken(&mut troubles), 3);
        troubles.note(trouble(libc::EPERM, 1), AGAIN - 1);
        assert_eq!(taken(&mut troubles), 0);
        troubles.note(trouble(libc::EPERM, 1), AGAIN);
        assert_eq!(troubles.take(), Some(trouble(libc::EPERM, 1)));
        assert_eq!(troubles.take(), None);
    }

    #[test]
    fn many_destinations_replace_the_oldest_reported_entry() {
        let mut troubles = Troubles::default();
        for host in 0..100 {
            troubles.note(trouble(libc::EPERM, host), u64::from(host));
        }
        assert_eq!(taken(&mut troubles), REMEMBERED, "the table is full");
        troubles.note(trouble(libc::EPERM, 200), 1000);
        assert_eq!(troubles.take(), Some(trouble(libc::EPERM, 200)));
        // Host 0 was replaced, the others are still recorded.
        troubles.note(trouble(libc::EPERM, 1), 1001);
        assert_eq!(taken(&mut troubles), 0);
        troubles.note(trouble(libc::EPERM, 0), 1002);
        assert_eq!(taken(&mut troubles), 1);
    }
}
