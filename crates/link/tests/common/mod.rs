//! A carrier that stores what is sent and delivers predefined arrivals.

#![allow(dead_code, reason = "each test program uses a part")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use weir_link::{Arrival, Carrier, Fate, Group, Inbox, Outbox};

/// The groups that were sent, and the arrivals to deliver.
#[derive(Default)]
pub struct Dummy {
    pub sent: Vec<(Group, Vec<u8>)>,
    pub arriving: Vec<(Arrival, Vec<u8>)>,
    /// Arrivals in a socket that only a look everywhere finds, once there are no others.
    pub silent: Vec<(Arrival, Vec<u8>)>,
    pub looks_everywhere: bool,
}

impl Carrier for Dummy {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        for group in &outbox.groups {
            assert!(!group.fate.contains(Fate::LOST), "a lost group must not be sent");
            self.sent.push((*group, outbox.bytes[group.start..group.start + group.len].to_vec()));
        }
        Ok(())
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.arrivals.clear();
        let everywhere = std::mem::take(&mut self.looks_everywhere);
        let arriving = if everywhere && self.arriving.is_empty() { &mut self.silent } else { &mut self.arriving };
        let slots = inbox.slots().min(arriving.len());
        for (slot, (arrival, bytes)) in arriving.drain(..slots).enumerate() {
            let start = slot * (1 << 16);
            inbox.bytes[start..start + bytes.len()].copy_from_slice(&bytes);
            inbox.arrivals.push(Arrival { start, len: bytes.len(), ..arrival });
        }
        Ok(slots)
    }

    fn look_everywhere(&mut self) {
        self.looks_everywhere = true;
    }

    fn max_segments(&self) -> usize {
        64
    }

    fn listen(&mut self, _port: u16) -> io::Result<()> {
        Ok(())
    }

    fn fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
}

/// An outbox with one group per item: destination, source, bytes, bytes of a segment.
pub fn outbox(groups: &[(SocketAddr, IpAddr, &[u8], usize)]) -> Outbox {
    let mut outbox = Outbox::new(1 << 20, 1024);
    for (to, from, bytes, segment) in groups {
        let (start, len) = (outbox.len, bytes.len());
        outbox.bytes[start..start + len].copy_from_slice(bytes);
        outbox.len += len;
        outbox.groups.push(Group { start, len, segment: *segment, ..Group::new(*to, *from, 0) });
    }
    outbox
}
