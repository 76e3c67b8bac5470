//! How many requests are under way to a host at a time. A process that asks for thousands of connections at once would
//! overrun the buffers of its peer, and what is lost is repeated seconds later only.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;
use weir_transport::Instant;

/// Requests to one address that wait for their first answer.
const MOST: usize = 256;
/// A request counts for this long at most: the peer may be silent, or its program may take its time.
const HOLD: Duration = Duration::from_millis(500);

/// The requests under way, and those that wait until they may be sent.
#[derive(Default)]
pub(crate) struct Pacing {
    hosts: HashMap<IpAddr, Host>,
    /// When requests were sent, the oldest first; some are answered already.
    sent: VecDeque<(Instant, u32)>,
    /// Hosts that may get one more.
    free: Vec<IpAddr>,
    /// How many requests wait, and how many have ever waited.
    waiting: usize,
    turns: u64,
}

/// A host is known while it has a request of either kind.
#[derive(Default)]
struct Host {
    under_way: usize,
    /// By their turns.
    waiting: BTreeMap<u64, u32>,
}

impl Pacing {
    /// A connection wants to send its request. Returns its turn, if it must wait for one.
    pub fn begin(&mut self, to: IpAddr, id: u32) -> Option<u64> {
        let host = self.hosts.entry(to).or_default();
        if host.under_way < MOST && host.waiting.is_empty() {
            return None;
        }
        let turn = self.turns;
        host.waiting.insert(turn, id);
        (self.turns, self.waiting) = (turn + 1, self.waiting + 1);
        Some(turn)
    }

    /// A connection that waits has ended.
    pub fn leave(&mut self, to: IpAddr, turn: u64) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        self.waiting -= usize::from(host.waiting.remove(&turn).is_some());
        self.drop_if_idle(to);
    }

    /// A request is sent.
    pub fn sent(&mut self, now: Instant, to: IpAddr, id: u32) {
        self.hosts.entry(to).or_default().under_way += 1;
        self.sent.push_back((now, id));
    }

    /// A request to that host does not count any more.
    pub fn ended(&mut self, to: IpAddr) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        host.under_way -= 1;
        if !host.waiting.is_empty() {
            self.free.push(to);
        }
        self.drop_if_idle(to);
    }

    fn drop_if_idle(&mut self, to: IpAddr) {
        if self.hosts.get(&to).is_some_and(|host| host.under_way == 0 && host.waiting.is_empty()) {
            self.hosts.remove(&to);
        }
    }

    /// A connection that may send its request now.
    pub fn next(&mut self) -> Option<u32> {
        while let Some(to) = self.free.last() {
            let host = self.hosts.get_mut(to).filter(|host| host.under_way < MOST);
            if let Some((_, id)) = host.and_then(|host| host.waiting.pop_first()) {
                self.waiting -= 1;
                return Some(id);
            }
            self.free.pop();
        }
        None
    }

    /// A request that has counted long enough. `counts`: it is not answered.
    pub fn oldest(&mut self, now: Instant, counts: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some((at, id)) = self.sent.front().copied() {
            let counts = counts(id);
            if counts && at + HOLD > now {
                break;
            }
            self.sent.pop_front();
            if counts {
                return Some(id);
            }
        }
        None
    }

    /// When the oldest request counts no more, if one waits for that.
    pub fn next_due(&self) -> Option<Instant> {
        self.sent.front().filter(|_| self.waiting > 0).map(|(at, _)| *at + HOLD)
    }

    /// Panics unless it counts what these connections say.
    #[cfg(feature = "testing")]
    pub fn check<'a>(&self, connections: impl Iterator<Item = (u32, &'a crate::connection::Connection)>) {
        use crate::connection::State;
        let (mut under_way, mut waiting) = (HashMap::<IpAddr, usize>::new(), 0);
        for (id, connection) in connections {
            let to = connection.address.remote;
            let queued = matches!(connection.state, State::Queued(_));
            assert_eq!(queued, connection.turn.is_some(), "a connection has a turn while it waits");
            assert!(!(queued && connection.under_way));
            if let Some(turn) = connection.turn {
                assert_eq!(self.hosts[&to].waiting.get(&turn), Some(&id));
                waiting += 1;
            }
            *under_way.entry(to).or_default() += usize::from(connection.under_way);
        }
        // As many as there are places: each has its own.
        assert_eq!(waiting, self.waiting);
        assert_eq!(waiting, self.hosts.values().map(|host| host.waiting.len()).sum());
        under_way.retain(|_, count| *count > 0);
        for (to, host) in &self.hosts {
            assert_eq!(under_way.remove(to).unwrap_or(0), host.under_way);
            assert!(host.under_way > 0 || !host.waiting.is_empty(), "nothing is kept of an idle host");
            let has_turn = host.under_way == MOST || self.free.contains(to);
            assert!(host.under_way <= MOST && (host.waiting.is_empty() || has_turn));
        }
        assert!(under_way.is_empty());
    }
}
