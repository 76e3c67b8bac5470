//! The layout of a process's counter file: words that only that process writes.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use weir_link::{Arrival, Fate, Group};
use weir_transport::Retransmissions;

/// "weir", and the version of this layout.
pub const MAGIC: u64 = 0x7765_6972_0000_0008;
/// Maximum number of devices in a sheet.
pub const DEVICES: usize = 8;
/// Maximum number of on-demand regions in a sheet.
pub const REGIONS: usize = 256;
/// Maximum number of interfaces in a sheet, of devices that join several.
pub const LINKS: usize = 64;
/// Maximum number of paging counters; more than there are now.
pub const VALUES: usize = 32;
/// Maximum number of groups of counters that libraries of the process publish.
pub const PUBLISHED: usize = 4;
/// Maximum number of counters in such a group.
pub const COUNTERS: usize = 32;

/// The whole file. Any bytes are a valid sheet.
#[repr(C, align(64))]
pub struct Sheet {
    pub header: Header,
    pub devices: [Device; DEVICES],
    pub regions: [Region; REGIONS],
    pub links: [Link; LINKS],
    pub memory: Memory,
    pub published: [Published; PUBLISHED],
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
    pub tap: Tap,
}

/// How a watcher asks for a tap ([`crate::tap`]), and where the process has it. Watchers write `until`, and the process
/// the other words; it also clears `until`.
#[repr(C, align(64))]
pub struct Tap {
    /// CLOCK_MONOTONIC, ns: until then the device is watched. 0: it is not.
    until: Word,
    /// Number of the memory's descriptor plus 1; 0: there is no tap.
    file: Word,
    /// The nonce of the tap.
    nonce: Word,
    /// The errno with which the last request was refused; 0: none was.
    refused: Word,
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
    /// Packets with a wrong ICRC, which were dropped.
    pub wrong_icrc: Word,
    /// Packets for a connected QP from another address than its peer's, which were dropped.
    pub wrong_sender: Word,
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

impl Tap {
    /// How far ahead of now watchers set the time. It is also how long a process goes on after its last watcher.
    pub const AHEAD: u64 = 2_000_000_000;
    /// A time further ahead is no watcher's.
    const FURTHEST: u64 = 5 * Tap::AHEAD;

    /// Whether a watcher has asked since the device was last unwatched: one relaxed load.
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.until.get() != 0
    }

    /// Whether the device is watched at this time.
    pub fn is_watched(&self, now: u64) -> bool {
        (now + 1..now + Tap::FURTHEST).contains(&self.until.get())
    }

    /// The device is watched for a while.
    pub fn watch(&self, now: u64) {
        self.until.set(now + Tap::AHEAD);
    }

    /// The device is not watched any more, unless a watcher has asked again.
    pub fn end_watch(&self, now: u64) {
        let until = self.until.get();
        if until != 0 && !self.is_watched(now) {
            self.until.claim(until, 0);
        }
    }

    /// There can be no tap: watchers learn why, and ask again.
    pub fn refuse(&self, error: i32) {
        self.refused.set(error as u64);
        self.until.set(0);
    }

    /// Tells watchers where the tap is.
    pub fn announce(&self, nonce: u64, file: i32) {
        self.refused.set(0);
        self.file.set(file as u64 + 1);
        self.nonce.publish(nonce);
    }

    /// This tap ends.
    pub fn withdraw(&self, nonce: u64) {
        if self.nonce.claim(nonce, 0) {
            self.file.set(0);
        }
    }

    /// Nonce and descriptor of the tap, or the errno that explains why there is none; `None`: not yet.
    pub fn announced(&self) -> Option<Result<(u64, i32), i32>> {
        match (self.nonce.acquire(), self.file.get(), self.refused.get()) {
            (_, _, errno) if errno != 0 => Some(Err(errno as i32)),
            (0, ..) | (_, 0, _) => None,
            (nonce, file, _) => Some(Ok((nonce, (file - 1) as i32))),
        }
    }
}

/// Avoids the division for a single datagram.
fn datagrams(len: usize, segment: usize) -> u64 {
    if len <= segment { 1 } else { len.div_ceil(segment.max(1)) as u64 }
}

/// What memory regions of the process pin; see [`crate::MemoryTotals`].
#[repr(C, align(64))]
pub struct Memory {
    pub pinned_bytes: Word,
    pub pinned_peak: Word,
    pub registrations: Word,
    pub registrations_on_demand: Word,
}

/// A group of counters of another library in the process ([`crate::stat::published`]).
#[repr(C, align(64))]
pub struct Published {
    /// Odd while name, count or names are written. Values change at any time.
    pub sequence: Word,
    /// Number of counters.
    pub count: Word,
    /// Empty: this entry is unused.
    pub name: Text<64>,
    pub names: [Text<32>; COUNTERS],
    pub values: [Word; COUNTERS],
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

/// An interface of a device that joins several. Written by the holder of the engine.
#[repr(C)]
pub struct Link {
    /// Index of its device plus 1; 0 if this entry is unused.
    pub device: Word,
    pub name: Text<16>,
    /// Peers that packets can go to over this interface.
    pub peers: Word,
    /// Those of them to which it is used.
    pub peers_up: Word,
    /// Bytes on the wire, with packets that went again, without acknowledgements.
    pub bytes_sent: Word,
    /// Bytes per second: the largest rate to a peer.
    pub rate: Word,
    /// Share of packets that were lost lately, in millionths: the largest to a peer.
    pub loss: Word,
    /// Nanoseconds: the mean round trip of all peers; 0: not known.
    pub round_trip: Word,
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

    /// Stores a value; returns whether it is another one. Where only this thread writes.
    pub fn renew(&self, value: u64) -> bool {
        let is_new = self.get() != value;
        if is_new {
            self.set(value);
        }
        is_new
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

    /// The value, before all later loads.
    pub fn acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire)
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
        self.set_bytes(text.as_bytes());
    }

    /// As [`set`](Self::set), for bytes that may be no UTF-8.
    pub fn set_bytes(&self, bytes: &[u8]) {
        for (cell, byte) in self.0.iter().zip(Self::stored(bytes)) {
            cell.store(byte, Ordering::Relaxed);
        }
    }

    /// Whether this is what [`set_bytes`](Self::set_bytes) stores of these bytes.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        self.0.iter().zip(Self::stored(bytes)).all(|(cell, byte)| cell.load(Ordering::Relaxed) == byte)
    }

    fn stored(bytes: &[u8]) -> impl Iterator<Item = u8> {
        bytes.iter().copied().take(N - 1).chain(std::iter::repeat(0))
    }

    /// The text up to the first zero. Bytes that are not UTF-8 are replaced, and control characters: the reader may be
    /// root, at a terminal.
    pub fn get(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).replace(char::is_control, "\u{fffd}")
    }
}

impl Published {
    /// Changes its names: readers that see an intermediate state try again. Callers exclude each other.
    pub fn change(&self, work: impl FnOnce()) {
        change(&self.sequence, work);
    }

    /// Its name and its counters; `None` if the entry is unused.
    pub fn counters(&self) -> Option<(String, Vec<(String, u64)>)> {
        let name = self.name.get();
        let named = self.names.iter().map(Text::get).zip(self.values.iter().map(Word::get));
        (!name.is_empty()).then(|| (name, named.take(self.count.get() as usize).collect()))
    }
}

/// A sequence is odd while its writer changes what it guards.
fn change(sequence: &Word, work: impl FnOnce()) {
    sequence.0.fetch_add(1, Ordering::AcqRel);
    std::sync::atomic::fence(Ordering::SeqCst);
    work();
    sequence.0.fetch_add(1, Ordering::AcqRel);
}

impl Sheet {
    /// The sequences of all that readers must see unchanged.
    pub fn sequences(&self) -> [u64; 1 + PUBLISHED] {
        std::array::from_fn(|n| match n {
            0 => self.header.sequence.get(),
            _ => self.published[n - 1].sequence.get(),
        })
    }

    /// Changes values that are read together: readers that see an intermediate state try again.
    pub fn change(&self, work: impl FnOnce()) {
        change(&self.header.sequence, work);
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

    /// The entry of an interface of a device; a new entry if it has none. `None` if all are in use. Callers exclude each
    /// other.
    pub fn link(&self, device: &Device, name: &str) -> Option<&Link> {
        let device = self.devices.iter().position(|other| std::ptr::eq(other, device))? as u64 + 1;
        let known = self.links.iter().find(|link| link.device.get() == device && link.name.get() == name);
        known.or_else(|| {
            let link = self.links.iter().find(|link| link.device.get() == 0)?;
            link.name.set(name);
            link.device.publish(device);
            Some(link)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::publish::{private_device, private_sheet};

    #[test]
    fn long_texts_are_truncated() {
        let text: Text<8> = Text(std::array::from_fn(|_| AtomicU8::new(7)));
        text.set("weir_lo");
        assert_eq!(text.get(), "weir_lo");
        text.set("weir_eth0");
        assert_eq!(text.get(), "weir_et");
        assert!(text.holds(b"weir_eth0") && text.holds(b"weir_et") && !text.holds(b"weir_e"));
        text.set("");
        assert_eq!(text.get(), "");
        text.set("a\x1b[J");
        assert_eq!(text.get(), "a\u{fffd}[J");
    }

    #[test]
    fn a_device_is_watched_until_the_time_that_a_plausible_watcher_set() {
        let tap: &Tap = &private_device().tap;
        assert!(!tap.is_asked() && !tap.is_watched(1000) && tap.announced().is_none());
        tap.watch(1000);
        assert!(tap.is_asked() && tap.is_watched(1000) && tap.is_watched(999 + Tap::AHEAD));
        tap.end_watch(1000);
        assert!(tap.is_asked(), "it is still watched");
        assert!(!tap.is_watched(1000 + Tap::AHEAD));
        tap.end_watch(1000 + Tap::AHEAD);
        assert!(!tap.is_asked());
        tap.until.set(u64::MAX);
        assert!(!tap.is_watched(1000), "no watcher asks for that long");
        tap.announce(77, 5);
        assert_eq!(tap.announced(), Some(Ok((77, 5))));
        tap.withdraw(78);
        assert_eq!(tap.announced(), Some(Ok((77, 5))), "that was another tap");
        tap.withdraw(77);
        assert_eq!(tap.announced(), None);
        tap.refuse(24);
        assert_eq!((tap.announced(), tap.is_asked()), (Some(Err(24)), false));
    }

    #[test]
    fn an_interface_of_a_device_keeps_its_entry_while_there_are_entries() {
        let sheet = private_sheet();
        let devices = ["weir_links0", "weir_other"].map(|name| sheet.device(name).unwrap());
        let first = sheet.link(devices[0], "eth1").unwrap();
        let of_other = sheet.link(devices[1], "eth1").unwrap();
        assert!(!std::ptr::eq(first, of_other) && std::ptr::eq(first, sheet.link(devices[0], "eth1").unwrap()));
        assert_eq!([first, of_other].map(|link| link.device.get()), [1, 2]);
        for n in 2..LINKS {
            assert!(sheet.link(devices[0], &format!("eth{n}")).is_some());
        }
        assert!(sheet.link(devices[0], "eth99").is_none() && sheet.link(devices[0], "eth7").is_some());
        assert!(sheet.link(private_device(), "eth1").is_none(), "a device of no sheet");
    }

    #[test]
    fn a_sheet_has_no_trailing_gap_and_stays_small() {
        assert_eq!(size_of::<Sheet>() % 64, 0);
        assert!(size_of::<Sheet>() < 90 << 10, "{} bytes for every process", size_of::<Sheet>());
    }
}
