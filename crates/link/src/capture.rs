//! Capture: every datagram at the carrier, in both directions, as an Ethernet frame in a pcapng file.
//!
//! A carrier sees UDP payloads; the headers around them are reconstructed:
//! - MAC addresses: that of the interface for the local address; otherwise derived from the IP address.
//! - IPv4 Identification: for outgoing datagrams the index in the group, as the kernel numbers them. For incoming
//!   ones, which the kernel reports without it, the value that makes the ICRC right (0 if none does). DF is set,
//!   unless the ICRC is right only without it.
//! - UDP checksum: 0 (none) over IPv4, correct over IPv6.
//! - TTL and TOS are 64 and 0.
//!
//! **One field is not as sent.** Between Weir peers, packets go to the UDP port of a slot (20480 and up); the file
//! has 4791 instead, so that other programs decode them as RoCEv2. The ICRC covers that port and is converted: a
//! right ICRC is right in the file, an omitted ICRC (zero) is filled in, and a wrong ICRC stays wrong by the same
//! bits. Weir's own control datagrams (they start with "WEIR") and frames ([`weir_wire::frame`]) keep their port:
//! other programs would take them for RoCEv2. So do packets over several links, which have a header in front
//! ([`weir_wire::edge`]): the ICRC behind it is as it was sent, because it is not computed for the addresses of the link.
//! Each interface is described in the file, and each datagram names its own.
//!
//! **With a snap length** ([`Snap`]), nothing is computed over payload that is not in the file. Of a packet that is not
//! whole in the file:
//! - The ICRC is not in the file, and no part of it.
//! - The UDP checksum over IPv6 is the sum of the pseudo header, as in captures of a sender with checksum offload.
//! - The IPv4 Identification of an incoming packet is 0, because only the ICRC would tell it.
//!
//! Packets need no ICRC then, and may leave it out ([`CaptureOptions::without_icrc`]): so no packet has its ICRC in the
//! file. With [`Snap::Headers`] payload stays in application memory, and the file has the headers and no payload.
//!
//! Datagrams that fault injection affected, or that the adapter itself loses, have a comment that says so. Wrap a
//! carrier in [`Capture`] first and then in [`crate::faults`]: dropped datagrams are in the file and not on the wire.

mod cut;
mod head;

use crate::{Arrival, Carrier, Fate, Group, Inbox, Outbox, SendError, clock};
pub use cut::CONTROL_MAGIC;
use cut::{Cut, Kind};
use head::{Head, len_of};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::path::Path;
/// Writes what the captures of this process hold, because it is about to end.
pub use weir_capture::flush_all as flush_captures;
pub use weir_capture::{Descriptors, HistorySize, Open, Snap, Spawn};
use weir_capture::{Direction, PacketInfo, Recorded, RecordedInterface, Recorder, RecorderOptions};
/// UDP ports of slots, which the file replaces by 4791.
pub use weir_wire::SLOT_PORTS;
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, ROCE_PORT, edge, icrc};

/// An interface that datagrams leave by and arrive at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureInterface<'a> {
    /// Its name, for the file.
    pub name: &'a str,
    /// By which datagrams name it ([`Group::ifindex`], [`Arrival::ifindex`]).
    pub index: u32,
    /// Its MAC address, if there is one.
    pub mac: Option<[u8; 6]>,
}

/// Settings of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct CaptureOptions<'a> {
    /// The interfaces. Datagrams that name none of them count as those of the first.
    pub interfaces: &'a [CaptureInterface<'a>],
    /// UDP port that outgoing datagrams come from.
    pub port: u16,
    /// Text for users: the device, the program, the fault specification.
    pub description: &'a str,
    /// Bytes that may wait for the writer thread; 0 = [`weir_capture::DEFAULT_RING`].
    pub ring: usize,
    /// How much of each frame is kept.
    pub snap: Snap,
    /// Some packets have no ICRC: with a snap length, none has its ICRC in the file.
    pub without_icrc: bool,
    /// Starts the thread that writes; `None`: a thread of the standard library.
    pub spawn: Option<Spawn>,
    /// What is told of the descriptors of the capture, and asked.
    pub descriptors: Descriptors,
}

/// A carrier that records its datagrams. Never waits for the disk.
pub struct Capture<C> {
    inner: C,
    recorder: Recorder,
    /// Index and MAC address of each interface, in the file's order.
    interfaces: Vec<(u32, Option<[u8; 6]>)>,
    port: u16,
    cut: Cut,
    /// The comment for each [`Fate`], indexed by its bits.
    remarks: Vec<String>,
    /// A copy of the outbox without the lost groups.
    kept: Outbox,
}

/// What datagrams of a burst have in common.
struct Burst {
    timestamp: u64,
    direction: Direction,
    /// Its place in the file, and its MAC address.
    interface: (u32, Option<[u8; 6]>),
    fate: Fate,
    /// The headers of datagrams with their own port, and with that of RoCE.
    heads: [Option<Head>; 2],
}

impl<C: Carrier> Capture<C> {
    /// Creates the file (an existing file is replaced) and the thread that writes it.
    pub fn create(inner: C, path: &Path, options: &CaptureOptions<'_>) -> io::Result<Self> {
        let interfaces = recorded(options);
        Ok(Self::with(inner, Recorder::create(path, &recorder_options(options, &interfaces))?, options))
    }

    /// Keeps the last datagrams in memory, and the thread that writes them when something happens
    /// ([`Carrier::mark`]). It calls `open` for the file. Error: there is no memory.
    pub fn remember(inner: C, open: Open, size: HistorySize, options: &CaptureOptions<'_>) -> io::Result<Self> {
        let interfaces = recorded(options);
        let recorder = Recorder::remember(open, size, &recorder_options(options, &interfaces))?;
        Ok(Self::with(inner, recorder, options))
    }

    fn with(inner: C, recorder: Recorder, options: &CaptureOptions<'_>) -> Self {
        let remarks = (0..=Fate::all().bits()).map(|bits| remark(Fate::from_bits_truncate(bits))).collect();
        let CaptureOptions { port, snap, without_icrc, .. } = *options;
        let interfaces = options.interfaces.iter().map(|interface| (interface.index, interface.mac)).collect();
        let cut = Cut { snap, without_icrc };
        Capture { inner, recorder, interfaces, port, cut, remarks, kept: Outbox::new(0, 0) }
    }

    /// How many datagrams are in the file, and how many were dropped.
    pub fn recorded(&self) -> Recorded {
        self.recorder.recorded()
    }

    /// Writes all pending datagrams and closes the file; later datagrams are not recorded.
    pub fn finish(&mut self) -> io::Result<Recorded> {
        self.recorder.finish()
    }

    /// The wrapped carrier.
    pub fn inner(&self) -> &C {
        &self.inner
    }

    /// The wrapped carrier.
    pub fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }

    fn record_outbox(&mut self, outbox: &Outbox, timestamp: u64) {
        for group in &outbox.groups {
            let mut burst = self.burst(timestamp, Direction::Out, group.ifindex, group.fate);
            for (index, (staged, len)) in outbox.starts(group).enumerate() {
                self.record(&mut burst, &self.sent_envelope(group, index), staged, len);
            }
        }
        self.recorder.commit();
    }

    fn burst(&self, timestamp: u64, direction: Direction, ifindex: u32, fate: Fate) -> Burst {
        let place = self.interfaces.iter().position(|(index, _)| *index == ifindex).unwrap_or(0);
        let mac = self.interfaces.get(place).and_then(|(_, mac)| *mac);
        Burst { timestamp, direction, interface: (place as u32, mac), fate, heads: [None, None] }
    }

    fn sent_envelope(&self, group: &Group, index: usize) -> Envelope {
        Envelope {
            src: group.from,
            dst: group.to.ip(),
            src_port: self.port,
            dst_port: group.to.port(),
            ip_id: index as u16,
            dont_fragment: true,
        }
    }

    /// Records a datagram of `len` bytes, of which `staged` are the first; all of it, if it is kept whole.
    #[inline]
    fn record(&mut self, burst: &mut Burst, sent: &Envelope, staged: &[u8], len: usize) {
        let kind = Kind::of(staged, len);
        let kept = self.cut.kept(kind, staged, len, len_of(sent));
        let is_roce = SLOT_PORTS.contains(&sent.dst_port) && kind == Kind::Roce;
        let shown = if is_roce { Envelope { dst_port: ROCE_PORT, ..*sent } } else { *sent };
        let ((interface, mac), is_out) = (burst.interface, burst.direction == Direction::Out);
        let head = burst.heads[usize::from(is_roce)].get_or_insert_with(|| Head::new(&shown, is_out, mac));
        head.fill(len, &shown);
        let icrc = (is_roce && kept == len).then(|| converted_icrc(sent, &shown, staged));
        let icrc: &[u8] = icrc.as_ref().map_or(&[], |icrc| icrc);
        let body = &staged[..kept - icrc.len()];
        if kept == len {
            head.complete_checksum([body, icrc]);
        }
        let comment = self.remarks.get(usize::from(burst.fate.bits())).map_or("", String::as_str);
        let Burst { timestamp, direction, .. } = *burst;
        let info = PacketInfo { interface, timestamp, direction, comment };
        // The recorder counts datagrams that do not fit.
        self.recorder.add(&info, head.bytes().len() + len, &[head.bytes(), body, icrc]);
    }
}

impl<C: Carrier> Carrier for Capture<C> {
    /// Records the outbox after it has left: the time that this takes delays no packet.
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        let timestamp = clock::wall();
        let outcome = if outbox.groups.iter().any(|group| group.fate.contains(Fate::LOST)) {
            self.send_without_lost(outbox)
        } else {
            self.inner.send(outbox)
        };
        self.record_outbox(outbox, timestamp);
        outcome
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        let count = self.inner.receive(inbox)?;
        self.record_arrivals(inbox, &inbox.arrivals);
        Ok(count)
    }

    fn wants_socket(&mut self) -> bool {
        self.inner.wants_socket()
    }

    fn add_socket(&mut self) -> io::Result<()> {
        self.inner.add_socket()
    }

    fn look_everywhere(&mut self) {
        self.inner.look_everywhere();
    }

    fn max_segments(&self) -> usize {
        self.inner.max_segments()
    }

    /// With headers only, a datagram's payload is not looked at.
    fn supports_iovecs(&self) -> bool {
        self.cut.snap == Snap::Headers && self.inner.supports_iovecs()
    }

    fn mark(&mut self, what: &dyn fmt::Display) {
        self.recorder.mark(what);
    }

    fn listen(&mut self, port: u16) -> io::Result<()> {
        self.inner.listen(port)
    }

    fn join(&mut self, group: IpAddr, port: u16, ifindex: u32) -> io::Result<RawFd> {
        self.inner.join(group, port, ifindex)
    }

    fn leave(&mut self, membership: RawFd) {
        self.inner.leave(membership);
    }

    fn take_send_error(&mut self) -> Option<SendError> {
        self.inner.take_send_error()
    }

    fn close(&mut self) {
        // A write error cannot be reported any more; the file records how many datagrams are missing.
        let _ = self.finish();
        self.inner.close();
    }

    fn fds(&self) -> Vec<RawFd> {
        self.inner.fds()
    }

    fn due(&self) -> Option<u64> {
        self.inner.due()
    }

    fn flush_due(&mut self, now: u64) -> io::Result<()> {
        self.inner.flush_due(now)
    }

    fn records_fates(&self) -> bool {
        true
    }

    fn receive_unrecorded(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        self.inner.receive(inbox)
    }

    fn record_arrivals(&mut self, inbox: &Inbox, arrivals: &[Arrival]) {
        let timestamp = clock::wall();
        for arrival in arrivals {
            let mut burst = self.burst(timestamp, Direction::In, arrival.ifindex, arrival.fate);
            let plain = plain_envelope(arrival);
            for datagram in inbox.datagrams(arrival) {
                let kind = Kind::of(datagram, datagram.len());
                let is_whole = self.cut.kept(kind, datagram, datagram.len(), len_of(&plain)) == datagram.len();
                let tells = is_whole && matches!(kind, Kind::Roce | Kind::Frame);
                let envelope = if tells { received_envelope(&plain, datagram) } else { plain };
                self.record(&mut burst, &envelope, datagram, datagram.len());
            }
        }
        self.recorder.commit();
    }
}

impl<C: Carrier> Capture<C> {
    fn send_without_lost(&mut self, outbox: &Outbox) -> io::Result<()> {
        if self.kept.bytes.len() < outbox.len {
            self.kept = Outbox::with_iovecs(outbox.bytes.len(), outbox.groups.capacity(), outbox.iovecs.capacity());
        }
        self.kept.clear();
        self.kept.bytes[..outbox.len].copy_from_slice(&outbox.bytes[..outbox.len]);
        self.kept.len = outbox.len;
        self.kept.groups.extend(outbox.groups.iter().filter(|group| !group.fate.contains(Fate::LOST)));
        // They refer to memory by its address, and the caller's outbox stays.
        self.kept.iovecs.extend_from_slice(&outbox.iovecs);
        self.inner.send(&self.kept)
    }
}

/// The interfaces as the file describes them.
fn recorded<'a>(options: &CaptureOptions<'a>) -> Vec<RecordedInterface<'a>> {
    options.interfaces.iter().map(|CaptureInterface { name, mac, .. }| RecordedInterface { name, mac: *mac }).collect()
}

fn recorder_options<'a>(options: &CaptureOptions<'a>, interfaces: &'a [RecordedInterface<'a>]) -> RecorderOptions<'a> {
    let more = match options.snap {
        Snap::Headers if interfaces.len() > 1 => edge::MAX_HEADER_LEN + edge::MAX_ACK_LEN,
        _ => 0,
    };
    RecorderOptions {
        interfaces,
        description: options.description,
        application: concat!("weir ", env!("CARGO_PKG_VERSION")),
        ring: if options.ring == 0 { weir_capture::DEFAULT_RING } else { options.ring },
        snap: options.snap.in_file() + more as u32,
        spawn: options.spawn.unwrap_or(|body| with_signals_blocked(|| (RecorderOptions::default().spawn)(body))),
        descriptors: options.descriptors,
    }
}

/// The ICRC for the file.
fn converted_icrc(sent: &Envelope, shown: &Envelope, datagram: &[u8]) -> [u8; ICRC_LEN] {
    let Some((body, icrc)) = datagram.split_last_chunk::<ICRC_LEN>() else { return [0; ICRC_LEN] };
    let icrc = match u32::from_le_bytes(*icrc) {
        0 => icrc::compute(shown, body),
        icrc => icrc::moved(icrc, sent, shown, body),
    };
    icrc.to_le_bytes()
}

/// The headers of a received datagram, except for what only an ICRC tells.
fn plain_envelope(arrival: &Arrival) -> Envelope {
    Envelope {
        src: arrival.from.ip(),
        dst: arrival.to,
        src_port: arrival.from.port(),
        dst_port: arrival.to_port,
        ip_id: 0,
        dont_fragment: true,
    }
}

/// The headers of a received datagram, as far as its ICRC determines them.
fn received_envelope(plain: &Envelope, datagram: &[u8]) -> Envelope {
    // With an omitted ICRC nothing can be derived.
    if datagram.ends_with(&[0; ICRC_LEN]) {
        return *plain;
    }
    for dont_fragment in [true, false] {
        let envelope = Envelope { dont_fragment, ..*plain };
        match icrc::verify(&envelope, datagram) {
            icrc::Verdict::Good => return envelope,
            icrc::Verdict::GoodWithId(ip_id) => return Envelope { ip_id, ..envelope },
            icrc::Verdict::Bad => {}
        }
    }
    *plain
}

/// The comment in the file for this fate; empty for an untouched datagram.
fn remark(fate: Fate) -> String {
    let words = [
        (Fate::LOST, "lost"),
        (Fate::DUPLICATED, "duplicated"),
        (Fate::REORDERED, "reordered"),
        (Fate::CORRUPTED, "corrupted"),
        (Fate::DELAYED, "delayed"),
    ];
    let words: Vec<&str> = words.iter().filter(|(bit, _)| fate.contains(*bit)).map(|(_, word)| *word).collect();
    if words.is_empty() { String::new() } else { format!("{} by fault injection", words.join(" and ")) }
}

/// Runs `action` with all signals blocked, because threads inherit the mask: signals belong to the application's
/// threads.
fn with_signals_blocked<T>(action: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset fills the set; pthread_sigmask reads it and fills the other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = action();
    // SAFETY: `before` was filled above; this is the same thread.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_name_every_fate() {
        assert_eq!(remark(Fate::empty()), "");
        assert_eq!(remark(Fate::LOST), "lost by fault injection");
        assert_eq!(remark(Fate::DUPLICATED | Fate::DELAYED), "duplicated and delayed by fault injection");
    }
}
