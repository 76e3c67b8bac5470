//! A carrier in memory.

use crate::shared::cq::CqShared;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use weir_link::{Arrival, Carrier, Inbox, LinkReport, Outbox};
use weir_transport::Completion;

/// What an engine has sent and will receive.
#[derive(Default)]
pub struct Wire {
    /// Calls of `send`, since the last `take_bursts`.
    pub bursts: Vec<Burst>,
    pub arrivals: VecDeque<(Arrival, Vec<u8>)>,
    /// So many calls of `receive` find nothing, as if the packets came to a silent socket.
    pub looks_after: u32,
    /// Calls of `receive`.
    pub receives: u32,
    /// The most segments of a group.
    pub segments: usize,
    /// What the engine has told a capture.
    pub marks: Vec<String>,
    /// Where `send` looks for completions that were published before it.
    pub watched: Option<Arc<CqShared>>,
    /// What the carrier says of links, as if it had several.
    pub links: Vec<LinkReport>,
    pub ended_bytes: [u64; 2],
}

impl Wire {
    /// Whether a datagram that begins with these bytes was sent since the last `take_bursts`.
    pub fn has_sent(&self, start: &[u8]) -> bool {
        let groups = self.bursts.iter().flat_map(|burst| &burst.groups);
        groups.flat_map(|group| &group.datagrams).any(|datagram| datagram.starts_with(start))
    }
}

/// The groups of one call of `send`.
pub struct Burst {
    pub groups: Vec<Sent>,
    /// Completions that were in the CQ at the call.
    pub published: Vec<u64>,
}

/// The datagrams of a group.
#[derive(Debug)]
pub struct Sent {
    pub to: SocketAddr,
    pub from: IpAddr,
    pub any_id: bool,
    pub datagrams: Vec<Vec<u8>>,
}

/// A carrier in memory.
pub struct InMemory(pub Arc<Mutex<Wire>>);

impl Carrier for InMemory {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        let mut wire = self.0.lock().unwrap();
        let groups = outbox.groups.iter().map(|group| {
            let datagrams = outbox.datagrams(group).map(<[u8]>::to_vec).collect();
            Sent { to: group.to, from: group.from, any_id: group.any_id, datagrams }
        });
        let published = wire.watched.as_ref().map(|cq| take(cq)).unwrap_or_default();
        let published = published.iter().map(|completion| completion.wr_id).collect();
        wire.bursts.push(Burst { groups: groups.collect(), published });
        Ok(())
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.arrivals.clear();
        let slot = inbox.bytes.len() / inbox.slots();
        let mut wire = self.0.lock().unwrap();
        wire.receives += 1;
        if wire.looks_after > 0 {
            wire.looks_after -= 1;
            return Ok(0);
        }
        while inbox.arrivals.len() < inbox.slots()
            && let Some((arrival, bytes)) = wire.arrivals.pop_front()
        {
            let start = inbox.arrivals.len() * slot;
            inbox.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
            inbox.arrivals.push(Arrival { start, ..arrival });
        }
        Ok(inbox.arrivals.len())
    }

    fn look_everywhere(&mut self) {
        self.0.lock().unwrap().looks_after = 0;
    }

    fn max_segments(&self) -> usize {
        self.0.lock().unwrap().segments
    }

    fn listen(&mut self, _: u16) -> io::Result<()> {
        Err(io::ErrorKind::AddrInUse.into())
    }

    fn mark(&mut self, what: &dyn fmt::Display) {
        self.0.lock().unwrap().marks.push(what.to_string());
    }

    fn links(&self, see: &mut dyn FnMut(LinkReport)) {
        self.0.lock().unwrap().links.iter().for_each(|link| see(*link));
    }

    fn bytes_of_ended_links(&self, interface: u8) -> u64 {
        self.0.lock().unwrap().ended_bytes.get(usize::from(interface)).copied().unwrap_or(0)
    }

    fn fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// The completions that a CQ has.
pub(super) fn take(cq: &CqShared) -> Vec<Completion> {
    let mut taken = Vec::new();
    cq.take(usize::MAX, |entry| taken.push(entry.completion)).unwrap();
    taken
}
