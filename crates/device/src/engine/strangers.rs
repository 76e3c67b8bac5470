//! Unbound peers: processes that said hello and have no QP here bound to them. Such a process is a client that is
//! earlier than our QP, a sender of datagrams, or a peer that has lost its last QP here. It may also be a made-up
//! address in a flood of hellos, so the number of entries is limited.

use crate::engine::peer::Weir;
use crate::proof::PeerKey as Key;
use std::time::Duration;
use weir_transport::Instant;

/// As many as a network namespace has slots.
pub const PLACES: usize = crate::slot::SLOTS as usize;

/// A process that said hello within this time keeps its entry, and counts when windows are divided. Senders of
/// datagrams say hello several times as often.
pub const PRESENT: Duration = Duration::from_secs(1);

/// An unbound peer.
#[derive(Clone, Copy, Debug)]
pub struct Stranger {
    pub key: Key,
    pub weir: Weir,
    pub heard: Instant,
    /// The window in the last hello to it.
    pub told: usize,
    /// It has answered our nonce: what it says about itself is believed.
    pub proven: bool,
}

/// All unbound peers that have an entry.
pub struct Strangers {
    places: Vec<Option<Stranger>>,
    free: Vec<usize>,
    /// The entry that a new peer may replace next.
    hand: usize,
    census: Census,
}

impl Strangers {
    pub fn new() -> Self {
        let (places, free) = (Vec::with_capacity(PLACES), Vec::with_capacity(PLACES));
        Strangers { places, free, hand: 0, census: Census::default() }
    }

    pub fn get(&self, place: usize) -> Option<&Stranger> {
        self.places.get(place)?.as_ref()
    }

    /// The peer of an entry says hello again.
    pub fn renew(&mut self, place: usize, stranger: Stranger) {
        self.places[place] = Some(stranger);
    }

    /// A process says hello, and did so last at `before`: it is counted once in each period.
    pub fn count(&mut self, before: Option<Instant>, now: Instant) {
        self.census.count(before, now);
    }

    /// A hello with this window was sent to a peer.
    pub fn tell(&mut self, place: usize, window: usize) {
        if let Some(stranger) = self.places.get_mut(place).and_then(Option::as_mut) {
            stranger.told = window;
        }
    }

    /// Enters a new peer: its index, and the key of the peer that it replaces. `None` if the next entry's peer is
    /// present.
    pub fn enter(&mut self, stranger: Stranger) -> Option<(usize, Option<Key>)> {
        if let Some(place) = self.free.pop() {
            self.places[place] = Some(stranger);
            return Some((place, None));
        }
        if self.places.len() < PLACES {
            self.places.push(Some(stranger));
            return Some((self.places.len() - 1, None));
        }
        // One entry is checked for each hello, so that a flood of hellos costs no more.
        let place = self.hand;
        self.hand = (self.hand + 1) % PLACES;
        let known = self.get(place)?;
        if stranger.heard - known.heard < PRESENT {
            return None;
        }
        let gone = known.key;
        self.places[place] = Some(stranger);
        Some((place, Some(gone)))
    }

    /// Removes an entry: the peer is no longer unbound.
    pub fn take(&mut self, place: usize) -> Option<Stranger> {
        let taken = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some(taken)
    }

    /// How many peers said hello lately, at least those of the current period.
    pub fn present(&self, now: Instant) -> usize {
        self.census.present(now)
    }
}

/// Counts recent hellos without looking at all entries: by periods, the current one and the last one.
#[derive(Debug, Default)]
struct Census {
    period: u64,
    now: usize,
    last: usize,
}

impl Census {
    fn period(at: Instant) -> u64 {
        at.0 / PRESENT.as_nanos() as u64
    }

    fn count(&mut self, before: Option<Instant>, at: Instant) {
        let period = Self::period(at);
        if period != self.period {
            self.last = if period == self.period + 1 { self.now } else { 0 };
            (self.period, self.now) = (period, 0);
        }
        self.now += usize::from(before.is_none_or(|before| Self::period(before) != period));
    }

    fn present(&self, now: Instant) -> usize {
        match Self::period(now).saturating_sub(self.period) {
            0 => self.now.max(self.last),
            1 => self.now,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn stranger(number: u32, heard: u64) -> Stranger {
        let key = ([10, 0, 0, 1].into(), IpAddr::from(number.to_be_bytes()), 20481);
        let weir = Weir { near: false, icrc: true, window: 1, patience: Duration::ZERO };
        Stranger { key, weir, heard: Instant(heard), told: 0, proven: false }
    }

    #[test]
    fn a_present_peer_keeps_its_entry() {
        let mut strangers = Strangers::new();
        for number in 0..PLACES as u32 {
            assert_eq!(strangers.enter(stranger(number, 0)), Some((number as usize, None)));
        }
        let second = PRESENT.as_nanos() as u64;
        strangers.renew(0, stranger(0, second));
        assert_eq!(strangers.enter(stranger(5000, second)), None, "peer 0 said hello just now");
        let gone = stranger(1, 0).key;
        assert_eq!(strangers.enter(stranger(5001, second)), Some((1, Some(gone))));
        assert_eq!(strangers.take(7).map(|taken| taken.key), Some(stranger(7, 0).key));
        assert_eq!(strangers.enter(stranger(5002, second)), Some((7, None)));
        assert_eq!(strangers.places.len(), PLACES);
    }

    #[test]
    fn a_peer_without_a_recent_hello_is_not_counted() {
        let mut strangers = Strangers::new();
        let second = PRESENT.as_nanos() as u64;
        for at in 0..10 {
            strangers.count(None, Instant(at));
        }
        assert_eq!(strangers.present(Instant(second - 1)), 10);
        strangers.count(Some(Instant(3)), Instant(second));
        strangers.count(Some(Instant(second)), Instant(second + 1));
        strangers.count(Some(Instant(4)), Instant(second + 2));
        assert_eq!(strangers.present(Instant(second + 2)), 10, "eight of them may just be late");
        assert_eq!(strangers.present(Instant(2 * second)), 2);
        assert_eq!(strangers.present(Instant(3 * second)), 0);
    }
}
