//! Taps: what an adapter sends and receives, for a watcher in another process of the same user.
//!
//! A watcher asks through the words of a device in the process's sheet of counters ([`crate::stat`]): it keeps storing
//! a time until which it watches, so that a watcher that ends or dies is forgotten. The process answers with sealed
//! memory of its own ([`ring`]), into which the holder of the engine writes a record for each packet of RC and XRC
//! ([`record`]). Watchers map it read-only ([`watch`]). The process reads nothing from it and waits for no watcher:
//! the newest records replace the oldest. Several watchers may read them.

pub mod record;
pub mod ring;
pub mod watch;

use crate::os::clock;
use crate::os::descriptors::{self, DescriptorGuard};
use crate::stat::sheet;
use record::Record;
use ring::Writer;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use weir_wire::{Headers, Service};

/// The process's end of a tap. Its descriptor is open while it exists, so that watchers can map the memory.
pub struct Tap {
    writer: Writer,
    words: &'static sheet::Tap,
}

/// The QP and the addresses of a packet, as the side that records it sees them.
#[derive(Clone, Copy)]
pub struct Ends {
    pub own_qp: u32,
    pub other_qp: u32,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// The packet came over several links.
    pub over_links: bool,
}

impl Tap {
    /// A new tap, announced in the words of its device. Error: no memory, no descriptors, a sandbox.
    pub fn create(words: &'static sheet::Tap) -> io::Result<Tap> {
        let _guard = DescriptorGuard::begin();
        let nonce = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))? | 1;
        let writer = Writer::create(nonce)?;
        descriptors::register(&[writer.file().as_raw_fd()]);
        words.announce(nonce, writer.file().as_raw_fd());
        Ok(Tap { writer, words })
    }

    /// Records a packet that the adapter sends, or that it has received and accepted.
    pub fn packet(&mut self, sent: bool, ends: Ends, headers: &Headers, payload: usize) {
        if !matches!(headers.bth.opcode.service(), Service::Rc | Service::Xrc) {
            return;
        }
        let Ends { own_qp, other_qp, local, remote, over_links } = ends;
        let payload = payload as u32;
        let (time, headers) = (clock::now().0, *headers);
        let record = Record { time, sent, own_qp, other_qp, local, remote, payload, over_links, headers };
        self.writer.write(&record.encode());
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _guard = DescriptorGuard::begin();
        self.words.withdraw(self.writer.nonce());
        descriptors::forget(&[self.writer.file().as_raw_fd()]);
    }
}
