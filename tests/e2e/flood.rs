//! A third host sends garbage, and packets that it forges from those it has seen, into a running transfer: every byte
//! is right, and memory and descriptors do not grow. Also packets of an earlier run.

use crate::attack::{hello, slot_ports};
use crate::bed::{Bed, Topology};
use crate::verify::verify;
use crate::{killed, trial};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::io::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, THIRD};
use weir_trials::Rng;
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, icrc};

/// Packets of the trial of memory; `E2E_ROUNDS=10000000` sets another number.
const PACKETS: &str = "300000";
/// How much the resident memory of a process may grow after the first tenth of the packets.
const GROWTH: u64 = 1 << 20;
/// Bytes of an IPv4 header and a UDP header.
const HEADERS: usize = 28;
/// The time to live of packets that the trial forges: a sniffer knows them by it.
const FORGED_TTL: u8 = 63;
/// Packets between hosts: RoCEv2 with an ICRC.
const BETWEEN_HOSTS: &[&str] = &["--icrc", "always", "--framing", "roce"];

pub fn trials() -> Vec<Trial> {
    vec![
        trial(Topology::Bridged, "every byte is right under a flood of a third host", |bed| compared(bed, &[], 41)),
        trial(Topology::Bridged, "every byte is right under a flood of a third host, with ICRC", |bed| {
            compared(bed, BETWEEN_HOSTS, 42)
        }),
        trial(Topology::Bridged, "memory and descriptors do not grow under a flood of a third host", flat),
        trial(Topology::Bridged, "a replay of all packets of an earlier run changes no byte", replayed),
    ]
}

/// A raw socket of a host.
fn raw(open: impl FnOnce() -> i32) -> Result<OwnedFd> {
    match open() {
        -1 => Err(Error::last_os_error()).context("cannot open a raw socket"),
        // SAFETY: the new descriptor has no other owner.
        socket => Ok(unsafe { OwnedFd::from_raw_fd(socket) }),
    }
}

/// The IPv4 packets that pass a host's interface.
struct Sniffer(OwnedFd);

impl Sniffer {
    fn new(bed: &Bed, side: Side) -> Result<Sniffer> {
        let (family, kind) = (libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
        // SAFETY: system calls with constants.
        let socket = bed.stage.enter(side, || raw(|| unsafe { libc::socket(family, kind, protocol) }))??;
        let size: i32 = 64 << 20;
        // SAFETY: passes a pointer to an int and its size.
        unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const size).cast(), size_of::<i32>() as u32)
        };
        Ok(Sniffer(socket))
    }

    /// The UDP packets without options and fragments that have come, and that go to this address.
    fn packets(&self, to: Ipv4Addr) -> Vec<Vec<u8>> {
        let mut found = vec![];
        let mut bytes = vec![0u8; 1 << 16];
        loop {
            // SAFETY: the buffer is valid during the call.
            let got = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            let Ok(len) = usize::try_from(got) else { return found };
            let is_udp =
                bytes[8] != FORGED_TTL && len > HEADERS && bytes[0] == 0x45 && bytes[9] == libc::IPPROTO_UDP as u8;
            if is_udp && bytes[16..20] == to.octets() && bytes[6] & 0x3f == 0 && bytes[7] == 0 {
                found.push(bytes[..len].to_vec());
            }
        }
    }
}

/// Sends IPv4 packets with any source address.
pub struct Forger(OwnedFd);

impl Forger {
    pub fn new(bed: &Bed) -> Result<Forger> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a system call with constants.
        let open = || raw(|| unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_RAW) });
        Ok(Forger(bed.stage.enter_third(open)??))
    }

    /// Sends a packet with its IP and UDP headers. A full queue loses it, as on a wire.
    pub fn send(&self, packet: &[u8]) {
        let address: [u8; 4] = packet[16..20].try_into().expect("four bytes");
        let to = socket2::SockAddr::from(SocketAddrV4::new(address.into(), 0));
        // SAFETY: the packet and the address are valid during the call.
        unsafe {
            libc::sendto(self.0.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, to.as_ptr().cast(), to.len())
        };
    }
}

/// A packet with these addresses. The kernel fills in length and checksum of the IP header; UDP has no checksum.
pub fn packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0u8; HEADERS];
    (packet[0], packet[6], packet[8], packet[9]) = (0x45, 0x40, FORGED_TTL, libc::IPPROTO_UDP as u8);
    packet[12..16].copy_from_slice(&from.0.octets());
    packet[16..20].copy_from_slice(&to.0.octets());
    packet[20..22].copy_from_slice(&from.1.to_be_bytes());
    packet[22..24].copy_from_slice(&to.1.to_be_bytes());
    packet[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
    packet.extend(payload);
    packet
}

/// So many random bytes.
fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.draw() as u8).collect()
}

/// What a third host knows of one direction of a transfer.
struct Target {
    from: Ipv4Addr,
    to: Ipv4Addr,
    from_ports: Vec<u16>,
    to_ports: Vec<u16>,
    /// Packets that it has seen.
    seen: Vec<Vec<u8>>,
    /// Packets carry an ICRC, which it computes.
    computes_icrc: bool,
}

impl Target {
    /// Of the transfer that runs, from the packets that have come to a side.
    fn new(bed: &Bed, side: Side, sniffer: &Sniffer, computes_icrc: bool) -> Result<Option<Target>> {
        let other = if side == Side::A { Side::B } else { Side::A };
        let (IpAddr::V4(from), IpAddr::V4(to)) = (bed.stage.address(other), bed.stage.address(side)) else {
            anyhow::bail!("this stage has no IPv4 addresses")
        };
        let (from_ports, to_ports) = (slot_ports(bed, other)?, slot_ports(bed, side)?);
        let mut seen = sniffer.packets(to);
        seen.retain(|packet| !packet[HEADERS..].starts_with(b"WEIR") && packet.len() >= HEADERS + 16);
        seen.truncate(256);
        let complete = !from_ports.is_empty() && !to_ports.is_empty() && !seen.is_empty();
        Ok(complete.then_some(Target { from, to, from_ports, to_ports, seen, computes_icrc }))
    }

    fn next(&self, random: &mut Rng) -> Vec<u8> {
        let from_port = self.from_ports[random.below(self.from_ports.len())];
        let to_port = self.to_ports[random.below(self.to_ports.len())];
        let (peer, to) = ((self.from, from_port), (self.to, to_port));
        let length = random.below(1400);
        match random.below(8) {
            0 => packet((THIRD, random.draw() as u16), to, &bytes(random, length)),
            1 => packet((Ipv4Addr::from(random.draw() as u32 & 0x00ff_ffff | 0x0a00_0000), from_port), to, &[0; 64]),
            2 => packet(peer, to, &bytes(random, length)),
            3 => packet(peer, to, &hello(random.draw())),
            4 => packet((self.from, random.draw() as u16), (self.to, weir_wire::ROCE_PORT), &bytes(random, length)),
            5 => self.truncated(random),
            6 => self.changed(random),
            _ => self.with_wrong_psn(random),
        }
    }

    fn any(&self, random: &mut Rng) -> Vec<u8> {
        self.seen[random.below(self.seen.len())].clone()
    }

    fn truncated(&self, random: &mut Rng) -> Vec<u8> {
        let seen = self.any(random);
        let length = random.below(seen.len() - HEADERS);
        let mut packet = seen[..HEADERS + length].to_vec();
        finish(&mut packet);
        packet
    }

    /// With one wrong bit in its headers, and a tag that is a guess.
    fn changed(&self, random: &mut Rng) -> Vec<u8> {
        let mut packet = self.any(random);
        let at = HEADERS + random.below(32.min(packet.len() - HEADERS - ICRC_LEN));
        packet[at] ^= 1 << random.below(8);
        self.guess_tag(&mut packet, random);
        finish(&mut packet);
        packet
    }

    /// The right QPN, addresses and ports, and a PSN far from that of the connection, before it or after it.
    fn with_wrong_psn(&self, random: &mut Rng) -> Vec<u8> {
        let mut packet = self.any(random);
        let psn = &mut packet[HEADERS + 8..HEADERS + 12];
        // 2²² and up to 2²² more, of 2²⁴.
        psn[1] = psn[1].wrapping_add(0x40 + random.below(0x40) as u8);
        if random.below(2) == 0 {
            psn[1] = psn[1].wrapping_add(0x40);
        }
        self.guess_tag(&mut packet, random);
        finish(&mut packet);
        if self.computes_icrc {
            seal(&mut packet);
        }
        packet
    }

    fn guess_tag(&self, packet: &mut [u8], random: &mut Rng) {
        let at = packet.len() - ICRC_LEN;
        packet[at..].copy_from_slice(&bytes(random, ICRC_LEN));
    }
}

/// Writes the length of the UDP datagram, without a checksum, and the mark of a forged packet.
fn finish(packet: &mut [u8]) {
    let length = (packet.len() - 20) as u16;
    packet[24..26].copy_from_slice(&length.to_be_bytes());
    packet[26..28].fill(0);
    packet[8] = FORGED_TTL;
}

/// Writes the right ICRC.
fn seal(packet: &mut [u8]) {
    let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).expect("four bytes"));
    let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let envelope = Envelope {
        src: address(12),
        dst: address(16),
        src_port: word(20),
        dst_port: word(22),
        ip_id: word(4),
        dont_fragment: packet[6] & 0x40 != 0,
    };
    let at = packet.len() - ICRC_LEN;
    let icrc = icrc::compute(&envelope, &packet[HEADERS..at]);
    packet[at..].copy_from_slice(&icrc.to_le_bytes());
}

/// Floods both sides of whatever transfer runs, until `ends`; counts packets in `sent`.
fn flood(bed: &Bed, computes_icrc: bool, seed: u64, ends: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    let (forger, mut random) = (Forger::new(bed)?, Rng(seed));
    let sniffers = [(Side::A, Sniffer::new(bed, Side::A)?), (Side::B, Sniffer::new(bed, Side::B)?)];
    let mut targets: Vec<Target> = vec![];
    while !ends.load(Ordering::Relaxed) {
        // Processes come and go, with other ports.
        let mut found = vec![];
        for (side, sniffer) in &sniffers {
            found.extend(Target::new(bed, *side, sniffer, computes_icrc)?);
        }
        if found.len() == sniffers.len() {
            targets = found;
        }
        if targets.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        for _ in 0..2000 {
            let target = &targets[random.below(targets.len())];
            forger.send(&target.next(&mut random));
            sent.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Runs `job` while both sides are flooded; returns the number of packets that were sent.
fn under_flood(bed: &Bed, computes_icrc: bool, seed: u64, job: impl FnOnce(&AtomicU64) -> Result<()>) -> Result<u64> {
    let (ends, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| flood(bed, computes_icrc, seed, &ends, &sent));
        let done = job(&sent);
        ends.store(true, Ordering::Relaxed);
        let flooded = thread.join().expect("the flood does not panic");
        done.and(flooded)
    })?;
    Ok(sent.into_inner())
}

/// Every byte and every status, under a flood.
fn compared(bed: &Bed, options: &[&str], seed: u64) -> Result<()> {
    let sent = under_flood(bed, options == BETWEEN_HOSTS, seed, |_| verify(bed, options, "-l -t 30 -s 30", false))
        .with_context(|| format!("with seed {seed}"))?;
    ensure!(sent > 10_000, "only {sent} packets were sent");
    Ok(())
}

/// Memory and descriptors of both processes after a tenth of the packets, and after all.
fn flat(bed: &Bed) -> Result<()> {
    let packets: u64 = std::env::var("E2E_ROUNDS").unwrap_or(PACKETS.into()).parse()?;
    let limit = Duration::from_secs(60 + packets / 10_000);
    let mut pair = None;
    let sent = under_flood(bed, false, 43, |sent| {
        let (server, client) = pair.insert(killed::running_pair(bed, &[], "ib_write_bw", 18)?);
        await_packets(sent, packets / 10, limit, server, client)?;
        let before = [usage(server)?, usage(client)?];
        await_packets(sent, packets, limit, server, client)?;
        let after = [usage(server)?, usage(client)?];
        for ((memory, files), (memory_before, files_before)) in after.iter().zip(before) {
            // The socket that is connected to the peer may come later than the first tenth.
            ensure!(*files <= files_before + 1, "descriptors: {before:?}, later {after:?}");
            ensure!(*memory <= memory_before + GROWTH, "bytes of memory, descriptors: {before:?}, later {after:?}");
        }
        Ok(())
    })?;
    ensure!(sent >= packets, "{sent} packets");
    Ok(())
}

/// Waits until so many packets were sent. Both programs must go on, and the transfer with them.
fn await_packets(sent: &AtomicU64, wanted: u64, limit: Duration, server: &mut Child, client: &mut Child) -> Result<()> {
    let end = Instant::now() + limit;
    while sent.load(Ordering::Relaxed) < wanted {
        ensure!(client.poll()?.is_none(), "the client has ended: {}", client.printed()?);
        ensure!(server.poll()?.is_none(), "the server has ended: {}", server.printed()?);
        ensure!(Instant::now() < end, "only {} packets in {limit:?}", sent.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Bytes of resident memory, and descriptors.
fn usage(child: &Child) -> Result<(u64, usize)> {
    Ok((child.resident().context("the program has ended")?, child.descriptors()?))
}

/// All packets of one run come again, with their addresses, while another one compares every byte.
fn replayed(bed: &Bed) -> Result<()> {
    let sniffers = [Sniffer::new(bed, Side::A)?, Sniffer::new(bed, Side::B)?];
    verify(bed, &[], "-s 31", false)?;
    let mut packets = vec![];
    for (sniffer, side) in sniffers.iter().zip([Side::A, Side::B]) {
        let IpAddr::V4(to) = bed.stage.address(side) else { anyhow::bail!("this stage has no IPv4 addresses") };
        packets.extend(sniffer.packets(to));
    }
    ensure!(packets.len() > 1000, "only {} packets were seen", packets.len());
    drop(sniffers);
    let (ends, sent, forger) = (AtomicBool::new(false), AtomicU64::new(0), Forger::new(bed)?);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for packet in packets.iter().cycle().take_while(|_| !ends.load(Ordering::Relaxed)) {
                forger.send(packet);
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        let verified = verify(bed, &[], "-l -t 30 -s 31", false);
        ends.store(true, Ordering::Relaxed);
        verified
    })?;
    ensure!(sent.into_inner() > 1000, "the run ended before the replay");
    Ok(())
}
