//! Unbound peers: processes that sent a hello, and that no QP of this process is bound to. Such a process is a client
//! that is earlier than the QP of this process, a sender of datagrams, or a peer after its last QP here was unbound.
//! Its address may also be forged, in a flood of hellos, so the number of entries is limited.

use crate::engine::peers::identity::PeerKey as Key;
use crate::engine::peers::peer::Weir;
use std::time::Duration;
use weir_transport::Instant;

/// As many as a network namespace has slots.
pub const MAX_UNBOUND_PEERS: usize = crate::slot::SLOTS as usize;

/// A process that sent a hello within this time keeps its entry, and counts when windows are divided. Senders of
/// datagrams send hellos several times as often.
pub const RECENT_HELLO: Duration = Duration::from_secs(1);

/// An unbound peer.
#[derive(Clone, Copy, Debug)]
pub struct UnboundPeer {
    pub key: Key,
    pub weir: Weir,
    pub last_hello: Instant,
    /// The window in the last hello to it.
    pub announced_window: usize,
    /// It has answered this process's nonce: the parameters in its hellos are used.
    pub proven: bool,
}

/// All unbound peers that have an entry.
pub struct UnboundPeers {
    entries: Vec<Option<UnboundPeer>>,
    free: Vec<usize>,
    /// The entry that a new peer may replace next.
    hand: usize,
    census: Census,
}

impl UnboundPeers {
    /// No peers. The lists never grow.
    pub fn new() -> Self {
        let (entries, free) = (Vec::with_capacity(MAX_UNBOUND_PEERS), Vec::with_capacity(MAX_UNBOUND_PEERS));
        UnboundPeers { entries, free, hand: 0, census: Census::default() }
    }

    /// The peer of an entry; `None` if the entry is free.
    pub fn get(&self, index: usize) -> Option<&UnboundPeer> {
        self.entries.get(index)?.as_ref()
    }

    /// The peer of an entry sent another hello.
    pub fn renew(&mut self, index: usize, unbound: UnboundPeer) {
        self.entries[index] = Some(unbound);
    }

    /// A process sent a hello, and its last one before that at `before`: it is counted once in each period.
    pub fn count_hello(&mut self, before: Option<Instant>, now: Instant) {
        self.census.count_hello(before, now);
    }

    /// A hello with this window was sent to a peer.
    pub fn set_announced_window(&mut self, index: usize, window: usize) {
        if let Some(unbound) = self.entries.get_mut(index).and_then(Option::as_mut) {
            unbound.announced_window = window;
        }
    }

    /// Enters a new peer: its index, and the key of the peer that it replaces. `None` if the next entry's peer is
    /// present.
    pub fn enter(&mut self, unbound: UnboundPeer) -> Option<(usize, Option<Key>)> {
        if let Some(index) = self.free.pop() {
            self.entries[index] = Some(unbound);
            return Some((index, None));
        }
        if self.entries.len() < MAX_UNBOUND_PEERS {
            self.entries.push(Some(unbound));
            return Some((self.entries.len() - 1, None));
        }
        // One entry is checked for each hello, so that a flood of hellos costs no more.
        let index = self.hand;
        self.hand = (self.hand + 1) % MAX_UNBOUND_PEERS;
        let known = self.get(index)?;
        if unbound.last_hello - known.last_hello < RECENT_HELLO {
            return None;
        }
        let gone = known.key;
        self.entries[index] = Some(unbound);
        Some((index, Some(gone)))
    }

    /// Removes an entry: the peer is no longer unbound.
    pub fn take(&mut self, index: usize) -> Option<UnboundPeer> {
        let taken = self.entries.get_mut(index)?.take()?;
        self.free.push(index);
        Some(taken)
    }

    /// The number of peers that sent a hello lately, at least those of the current period.
    pub fn recent_count(&self, now: Instant) -> usize {
        self.census.recent_count(now)
    }
}

/// Counts the peers with recent hellos without a pass over all entries: by periods, the current one and the last one.
#[derive(Debug, Default)]
struct Census {
    period: u64,
    now: usize,
    last: usize,
}

impl Census {
    fn period(at: Instant) -> u64 {
        at.0 / RECENT_HELLO.as_nanos() as u64
    }

    fn count_hello(&mut self, before: Option<Instant>, at: Instant) {
        let period = Self::period(at);
        if period != self.period {
            self.last = if period == self.period + 1 { self.now } else { 0 };
            (self.period, self.now) = (period, 0);
        }
        self.now += usize::from(before.is_none_or(|before| Self::period(before) != period));
    }

    fn recent_count(&self, now: Instant) -> usize {
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

    fn unbound(number: u32, last_hello: u64) -> UnboundPeer {
        let key = ([10, 0, 0, 1].into(), IpAddr::from(number.to_be_bytes()), 20481);
        let weir = Weir { near: false, icrc: true, frames: false, local: false, window: 1, patience: Duration::ZERO };
        UnboundPeer { key, weir, last_hello: Instant(last_hello), announced_window: 0, proven: false }
    }

    #[test]
    fn a_present_peer_keeps_its_entry() {
        let mut unbound_peers = UnboundPeers::new();
        for number in 0..MAX_UNBOUND_PEERS as u32 {
            assert_eq!(unbound_peers.enter(unbound(number, 0)), Some((number as usize, None)));
        }
        let second = RECENT_HELLO.as_nanos() as u64;
        unbound_peers.renew(0, unbound(0, second));
        assert_eq!(unbound_peers.enter(unbound(5000, second)), None, "peer 0 sent a hello just now");
        let gone = unbound(1, 0).key;
        assert_eq!(unbound_peers.enter(unbound(5001, second)), Some((1, Some(gone))));
        assert_eq!(unbound_peers.take(7).map(|taken| taken.key), Some(unbound(7, 0).key));
        assert_eq!(unbound_peers.enter(unbound(5002, second)), Some((7, None)));
        assert_eq!(unbound_peers.entries.len(), MAX_UNBOUND_PEERS);
    }

    #[test]
    fn a_peer_without_a_recent_hello_is_not_counted() {
        let mut unbound_peers = UnboundPeers::new();
        let second = RECENT_HELLO.as_nanos() as u64;
        for at in 0..10 {
            unbound_peers.count_hello(None, Instant(at));
        }
        assert_eq!(unbound_peers.recent_count(Instant(second - 1)), 10);
        unbound_peers.count_hello(Some(Instant(3)), Instant(second));
        unbound_peers.count_hello(Some(Instant(second)), Instant(second + 1));
        unbound_peers.count_hello(Some(Instant(4)), Instant(second + 2));
        assert_eq!(unbound_peers.recent_count(Instant(second + 2)), 10, "eight of them may just be late");
        assert_eq!(unbound_peers.recent_count(Instant(2 * second)), 2);
        assert_eq!(unbound_peers.recent_count(Instant(3 * second)), 0);
    }
}
