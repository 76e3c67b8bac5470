//! The layout of a process's counter file: words that only that process writes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use weir_link::{Arrival, Fate, Group};
use weir_transport::Retransmissions;

/// "weir", and the version of this layout.
pub const MAGIC: u64 = 0x7765_6972_0000_0005;
/// Maximum number of devices in a sheet.
pub const DEVICES: usize = 8;
/// Maximum number of on-demand regions in a sheet.
pub const REGIONS: usize = 256;
/// Maximum number of paging counters; more than there are now.
pub const VALUES: usize = 32;

/// The whole file. Any bytes are a valid sheet.
#[repr(C, align(64))]
pub struct Sheet {
    pub header: Header,
    pub devices: [Device; DEVICES],
    pub regions: [Region; REGIONS],
}

/// Description of the process, and the names of the paging counters.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`]; written last.
    pub magic: Word,
    pub pid: Word,
    pub uid: Word,
    /// Nanoseconds since 1970.
    pub started: Word,
    /// Inode of its network namespace.
    pub namespace: Word,
    /// Odd while regions and paging are written.
    pub sequence: Word,
    /// Number of on-demand regions; may exceed the number in the sheet.
    pub regions: Word,
    pub program: Text<64>,
    /// Names of the paging counters, in order, up to the first empty name.
    pub names: [Text<32>; VALUES],
}

/// A device that this process has opened.
#[repr(C, align(64))]
pub struct Device {
    pub state: Word,
    /// Its number in the vendor's names, as in `uverbs0`.
    pub index: Word,
    /// Number of QPs; QPs destroyed a moment ago may still count.
    pub qps: Word,
    pub name: Text<32>,
    pub traffic: Traffic,
    pub paging: [Word; VALUES],
}

/// Traffic on the wire. Written by the holder of the engine.
#[repr(C, align(64))]
pub struct Traffic {
    pub packets_sent: Word,
    /// Bytes of RoCE packets, without UDP and IP headers.
    pub bytes_sent: Word,
    pub packets_received: Word,
    pub bytes_received: Word,
    /// How often requests were retransmitted, by cause; see [`Retransmissions`].
    pub ack_timeouts: Word,
    pub sequence_naks: Word,
    pub implied_naks: Word,
    pub rnr_naks: Word,
    /// Packets that the adapter itself lost after they had arrived (packet damming).
    pub packets_lost: Word,
    /// Packets of another partition, which were dropped.
    pub pkey_violations: Word,
    /// Messages of UC through shared memory that were dropped because no receive was posted in time.
    pub without_receive: Word,
    /// Packets that were lost because the shared memory to their peer was full.
    pub ring_full: Word,
}

impl Traffic {
    /// Counts bursts that were sent.
    pub fn sent(&self, groups: &[Group]) {
        for group in groups.iter().filter(|group| !group.fate.contains(Fate::LOST)) {
            self.packets_sent.bump(datagrams(group.len, group.segment));
            self.bytes_sent.bump(group.len as u64);
        }
    }

    /// Counts bursts that were received.
    pub fn received(&self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            self.packets_received.bump(datagrams(arrival.len, arrival.segment));
            self.bytes_received.bump(arrival.len as u64);
        }
    }

    /// Counts a packet that packet damming has lost.
    #[cold]
    pub fn packets_dammed(&self) {
        self.packets_lost.bump(1);
    }

    /// Counts the retransmissions of a QP.
    #[cold]
    pub fn retransmissions(&self, before: Retransmissions, after: Retransmissions) {
        let add = |word: &Word, of: fn(&Retransmissions) -> u32| word.bump(of(&after).wrapping_sub(of(&before)).into());
        add(&self.ack_timeouts, |s| s.ack_timeouts);
        add(&self.sequence_naks, |s| s.sequence_naks);
        add(&self.implied_naks, |s| s.implied_naks);
        add(&self.rnr_naks, |s| s.rnr_naks);
    }
}

/// Avoids the division for a single datagram.
fn datagrams(len: usize, segment: usize) -> u64 {
    if len <= segment { 1 } else { len.div_ceil(segment.max(1)) as u64 }
}

/// An on-demand region.
#[repr(C)]
pub struct Region {
    /// Index of its device plus 1; 0 if this entry is unused.
    pub device: Word,
    pub lkey: Word,
    pub addr: Word,
    pub len: Word,
    pub paging: [Word; VALUES],
}

/// States of a device entry.
pub mod state {
    /// No device has used the entry.
    pub const FREE: u64 = 0;
    /// The device is open.
    pub const OPEN: u64 = 1;
    /// The device is closed, or its open has not succeeded yet; its counters keep their values.
    pub const CLOSED: u64 = 2;
}

/// A number in the sheet.
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// The value; no order with other loads.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Stores a value; no order with other stores.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds, where only this thread writes: no locked instruction.
    #[inline]
    pub fn bump(&self, by: u64) {
        self.set(self.get().wrapping_add(by));
    }

    /// For a word that several threads may change: sets it to `to` if it is `from`; returns whether it did.
    pub fn claim(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Stores a value after all earlier stores.
    pub fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// A short text, truncated to its size.
#[repr(transparent)]
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Text<N> {
    /// Stores at most `N - 1` bytes of a text, and fills the rest with zeros.
    pub fn set(&self, text: &str) {
        let bytes = text.bytes().take(N - 1).chain(std::iter::repeat(0));
        for (cell, byte) in self.0.iter().zip(bytes) {
            cell.store(byte, Ordering::Relaxed);
        }
    }

    /// The text up to the first zero; bytes that are not UTF-8 are replaced.
    pub fn get(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Sheet {
    /// Changes values that are read together: readers that see an intermediate state try again.
    pub fn change(&self, work: impl FnOnce()) {
        let sequence = &self.header.sequence.0;
        sequence.fetch_add(1, Ordering::AcqRel);
        std::sync::atomic::fence(Ordering::SeqCst);
        work();
        sequence.fetch_add(1, Ordering::AcqRel);
    }

    /// The entry of a device; a new entry if it has none. `None` if all are in use.
    pub fn device(&self, name: &str) -> Option<&Device> {
        let known = self.devices.iter().find(|device| device.state.get() != state::FREE && device.name.get() == name);
        known.or_else(|| {
            let device = self.devices.iter().find(|device| device.state.claim(state::FREE, state::CLOSED))?;
            device.name.set(name);
            Some(device)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_truncated() {
        let text: Text<8> = Text(std::array::from_fn(|_| AtomicU8::new(7)));
        text.set("weir_lo");
        assert_eq!(text.get(), "weir_lo");
        text.set("weir_eth0");
        assert_eq!(text.get(), "weir_et");
        text.set("");
        assert_eq!(text.get(), "");
    }

    #[test]
    fn a_sheet_has_no_trailing_gap_and_stays_small() {
        assert_eq!(size_of::<Sheet>() % 64, 0);
        assert!(size_of::<Sheet>() < 80 << 10, "{} bytes for every process", size_of::<Sheet>());
    }
}
