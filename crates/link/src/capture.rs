//! Capture: every datagram at the carrier, in both directions, as a complete Ethernet frame in a pcapng file.
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
//! other programs would take them for RoCEv2.
//!
//! Datagrams that fault injection affected, or that the adapter itself loses, have a comment that says so. Wrap a
//! carrier in [`Capture`] first and then in [`crate::faults`]: dropped datagrams are in the file and not on the wire.

use crate::{Arrival, Carrier, Fate, Inbox, Outbox, SendError, clock};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::path::Path;
/// Writes what the captures of this process hold, because it is about to end.
pub use weir_capture::flush_all as flush_captures;
use weir_capture::{Direction, PacketInfo, Recorded, Recorder, RecorderOptions};
use weir_wire::ip::{Envelope, fill_ipv4_checksum};
use weir_wire::{ICRC_LEN, ROCE_PORT, frame, icrc};

/// UDP ports of slots, which the file replaces by 4791.
pub const SLOT_PORTS: RangeInclusive<u16> = 20480..=21503;
/// The first bytes of control datagrams between Weir peers.
pub const CONTROL_MAGIC: &[u8; 4] = b"WEIR";

/// Settings of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOptions<'a> {
    /// Interface name, for the file.
    pub interface: &'a str,
    /// Its MAC address, if there is one.
    pub mac: Option<[u8; 6]>,
    /// UDP port that outgoing datagrams come from.
    pub port: u16,
    /// Text for users: the device, the program, the fault specification.
    pub description: &'a str,
    /// Bytes that may wait for the writer thread; 0 = [`weir_capture::DEFAULT_RING`].
    pub ring: usize,
}

/// A carrier that records its datagrams. Never waits for the disk.
pub struct Capture<C> {
    inner: C,
    recorder: Recorder,
    mac: Option<[u8; 6]>,
    port: u16,
    /// The comment for each [`Fate`], indexed by its bits.
    remarks: Vec<String>,
    /// A copy of the outbox without the lost groups.
    kept: Outbox,
}

/// Bytes of Ethernet, IPv6 and UDP headers.
const MAX_HEADERS: usize = ETHERNET + 48;
const ETHERNET: usize = 14;
/// A BTH and an ICRC: the shortest packet.
const MIN_PACKET: usize = 16;
const TTL: u8 = 64;

impl<C: Carrier> Capture<C> {
    /// Creates the file (an existing file is replaced) and the thread that writes it.
    pub fn create(inner: C, path: &Path, options: &CaptureOptions<'_>) -> io::Result<Self> {
        let recorder = RecorderOptions {
            interface: options.interface,
            description: options.description,
            application: concat!("weir ", env!("CARGO_PKG_VERSION")),
            ring: if options.ring == 0 { weir_capture::DEFAULT_RING } else { options.ring },
        };
        let recorder = with_signals_blocked(|| Recorder::create(path, &recorder))?;
        let remarks = (0..=Fate::all().bits()).map(|bits| remark(Fate::from_bits_truncate(bits))).collect();
        let (mac, port) = (options.mac, options.port);
        Ok(Capture { inner, recorder, mac, port, remarks, kept: Outbox::new(0, 0) })
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

    fn record_outbox(&mut self, outbox: &Outbox) {
        let timestamp = clock::wall();
        for group in &outbox.groups {
            for (index, datagram) in outbox.datagrams(group).enumerate() {
                let envelope = Envelope {
                    src: group.from,
                    dst: group.to.ip(),
                    src_port: self.port,
                    dst_port: group.to.port(),
                    ip_id: index as u16,
                    dont_fragment: true,
                };
                self.record(timestamp, Direction::Out, group.fate, envelope, datagram);
            }
        }
    }

    fn record(&mut self, timestamp: u64, direction: Direction, fate: Fate, sent: Envelope, datagram: &[u8]) {
        let (shown, icrc) = translate(&sent, datagram);
        let body = &datagram[..datagram.len() - icrc.as_ref().map_or(0, |icrc| icrc.len())];
        let icrc: &[u8] = icrc.as_ref().map_or(&[], |icrc| icrc);
        let mut head = [0; MAX_HEADERS];
        let (own, other) = match direction {
            Direction::Out => (shown.src, shown.dst),
            Direction::In => (shown.dst, shown.src),
        };
        // A multicast group has a MAC address of its own, on every receiver.
        let real = self.mac.filter(|_| !own.is_multicast());
        let (own, other) = (real.unwrap_or_else(|| mac_of(own)), mac_of(other));
        let (to, from) = if direction == Direction::Out { (other, own) } else { (own, other) };
        head[..6].copy_from_slice(&to);
        head[6..12].copy_from_slice(&from);
        head[12..14].copy_from_slice(if shown.src.is_ipv4() { &[0x08, 0x00] } else { &[0x86, 0xdd] });
        let ip_udp = &mut head[ETHERNET..];
        let len = shown.emit(datagram.len(), 0, TTL, ip_udp);
        if shown.src.is_ipv4() {
            fill_ipv4_checksum(ip_udp);
        } else {
            let checksum = udp_checksum(&ip_udp[..len], [body, icrc]);
            ip_udp[len - 2..len].copy_from_slice(&checksum.to_be_bytes());
        }
        let comment = self.remarks.get(usize::from(fate.bits())).map_or("", String::as_str);
        let info = PacketInfo { timestamp, direction, comment };
        // The recorder counts datagrams that do not fit.
        self.recorder.record(&info, &[&head[..ETHERNET + len], body, icrc]);
    }
}

impl<C: Carrier> Carrier for Capture<C> {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        self.record_outbox(outbox);
        if !outbox.groups.iter().any(|group| group.fate.contains(Fate::LOST)) {
            return self.inner.send(outbox);
        }
        if self.kept.bytes.len() < outbox.len {
            self.kept = Outbox::new(outbox.bytes.len(), outbox.groups.capacity());
        }
        self.kept.clear();
        self.kept.bytes[..outbox.len].copy_from_slice(&outbox.bytes[..outbox.len]);
        self.kept.len = outbox.len;
        self.kept.groups.extend(outbox.groups.iter().filter(|group| !group.fate.contains(Fate::LOST)));
        self.inner.send(&self.kept)
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
            for datagram in inbox.datagrams(arrival) {
                let envelope = received_envelope(arrival, datagram);
                self.record(timestamp, Direction::In, arrival.fate, envelope, datagram);
            }
        }
    }
}

/// The envelope and the ICRC for the file; `None` if the ICRC stays as sent.
fn translate(sent: &Envelope, datagram: &[u8]) -> (Envelope, Option<[u8; ICRC_LEN]>) {
    if !SLOT_PORTS.contains(&sent.dst_port) || !is_packet(datagram) || frame::is_frame(datagram) {
        return (*sent, None);
    }
    let shown = Envelope { dst_port: ROCE_PORT, ..*sent };
    let (body, icrc) = datagram.split_last_chunk::<ICRC_LEN>().expect("a packet has an ICRC");
    let icrc = match u32::from_le_bytes(*icrc) {
        0 => icrc::compute(&shown, body),
        icrc => icrc::moved(icrc, sent, &shown, body),
    };
    (shown, Some(icrc.to_le_bytes()))
}

/// The headers of a received datagram, as far as its ICRC determines them.
fn received_envelope(arrival: &Arrival, datagram: &[u8]) -> Envelope {
    let plain = Envelope {
        src: arrival.from.ip(),
        dst: arrival.to,
        src_port: arrival.from.port(),
        dst_port: arrival.to_port,
        ip_id: 0,
        dont_fragment: true,
    };
    // With an omitted ICRC nothing can be derived.
    if !is_packet(datagram) || datagram.ends_with(&[0; ICRC_LEN]) {
        return plain;
    }
    for dont_fragment in [true, false] {
        let envelope = Envelope { dont_fragment, ..plain };
        match icrc::verify(&envelope, datagram) {
            icrc::Verdict::Good => return envelope,
            icrc::Verdict::GoodWithId(ip_id) => return Envelope { ip_id, ..envelope },
            icrc::Verdict::Bad => {}
        }
    }
    plain
}

/// Whether a datagram has the last four bytes of a packet: it is long enough and no control datagram of Weir.
fn is_packet(datagram: &[u8]) -> bool {
    datagram.len() >= MIN_PACKET && !datagram.starts_with(CONTROL_MAGIC)
}

/// The MAC address for an IP address: that of a group (RFC 1112, RFC 2464), that in an EUI-64, or a locally
/// administered address.
fn mac_of(address: IpAddr) -> [u8; 6] {
    match address {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(address) if address.is_multicast() => {
            let [.., a, b, c, d] = address.octets();
            [0x33, 0x33, a, b, c, d]
        }
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [2, 0, a, b, c, d]
        }
        IpAddr::V6(address) => match address.octets() {
            [.., a, b, c, 0xff, 0xfe, d, e, f] => [a ^ 2, b, c, d, e, f],
            [.., a, b, c, d, e] => [2, a, b, c, d, e],
        },
    }
}

/// The UDP checksum over IPv6 (RFC 8200 8.1), never zero. The checksum field in `ip_udp` is zero.
fn udp_checksum(ip_udp: &[u8], payload: [&[u8]; 2]) -> u16 {
    // Pseudo header: the addresses, the UDP length and the protocol; then the UDP header.
    let mut sum = sum_words(&ip_udp[8..40]) + sum_words(&ip_udp[4..6]) + 17 + sum_words(&ip_udp[40..]);
    let [body, icrc] = payload;
    sum += sum_words(body);
    let rest = sum_words(icrc);
    // After an odd number of bytes, the bytes of each word are swapped.
    sum += if body.len() % 2 == 0 { rest } else { u64::from(fold(rest).swap_bytes()) };
    match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first().map_or(0, |byte| u64::from(*byte) << 8);
    words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u64>() + last
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
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

    #[test]
    fn mac_addresses() {
        assert_eq!(mac_of("10.1.2.3".parse().unwrap()), [2, 0, 10, 1, 2, 3]);
        assert_eq!(mac_of("fe80::5054:ff:fe77:2".parse().unwrap()), [0x52, 0x54, 0, 0x77, 0, 2]);
        assert_eq!(mac_of("::1".parse().unwrap()), [2, 0, 0, 0, 0, 1]);
        assert_eq!(mac_of("239.129.2.3".parse().unwrap()), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(mac_of("ff15::1:203".parse().unwrap()), [0x33, 0x33, 0, 1, 2, 3]);
    }

    #[test]
    fn checksum_of_a_split_payload() {
        let [src, dst] = ["fe80::1", "fe80::2"].map(|text| text.parse().unwrap());
        let envelope = Envelope { src, dst, src_port: 1, dst_port: 2, ip_id: 0, dont_fragment: true };
        for len in [0, 1, 2, 9, 100, 9000, 65000] {
            let body: Vec<u8> = (0..len).map(|n| (n * 37 + 5) as u8).collect();
            let mut ip_udp = [0; 48];
            envelope.emit(body.len(), 0, 64, &mut ip_udp);
            let whole = udp_checksum(&ip_udp, [&body, &[]]);
            let split = body.len().saturating_sub(4);
            assert_eq!(udp_checksum(&ip_udp, [&body[..split], &body[split..]]), whole);
            // A receiver's sum over all, checksum included, is all ones.
            ip_udp[46..].copy_from_slice(&whole.to_be_bytes());
            let all = sum_words(&ip_udp[8..]) + sum_words(&ip_udp[4..6]) + 17 + sum_words(&body);
            assert_eq!(fold(all), 0xffff);
        }
    }
}
