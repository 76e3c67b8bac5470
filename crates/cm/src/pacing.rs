//! How many requests are under way to a host at a time. A process that asks for thousands of connections at once would
//! overrun the buffers of its peer, and what is lost is repeated seconds later only.

use std::collections::{HashMap, VecDeque};
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
    waiting: usize,
}

#[derive(Default)]
struct Host {
    under_way: usize,
    waiting: VecDeque<u32>,
}

impl Pacing {
    /// A connection wants to send its request. Returns whether it may; it has its turn later otherwise.
    pub fn begin(&mut self, to: IpAddr, id: u32) -> bool {
        let host = self.hosts.entry(to).or_default();
        let may = host.under_way < MOST;
        if !may {
            host.waiting.push_back(id);
            self.waiting += 1;
        }
        may
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
        } else if host.under_way == 0 {
            self.hosts.remove(&to);
        }
    }

    /// A connection that may send its request now; it may have ended meanwhile.
    pub fn next(&mut self) -> Option<u32> {
        while let Some(to) = self.free.last() {
            let host = self.hosts.get_mut(to).filter(|host| host.under_way < MOST);
            if let Some(id) = host.and_then(|host| host.waiting.pop_front()) {
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
}
