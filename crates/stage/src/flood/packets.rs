//! Packets of a hostile host: garbage, and packets that it forges from those that it has seen.

use super::datagram::{FORGED_TTL, HEADERS, packet};
use super::sniffer::Sniffer;
use crate::{Side, Stage, THIRD};
use anyhow::Result;
use fastrand::Rng;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, ROCE_PORT, icrc};

/// UDP port of slot 0, and the number of slots.
const FIRST_PORT: u16 = 20480;
const SLOTS: u16 = 1024;

/// A hello that asks for an answer, answers a nonce that no process sent, and carries false values.
pub fn hello(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"WEIR");
    bytes[4] = 2;
    for (at, value) in [(8, number), (24, number & 1), (32, number), (40, number)] {
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    bytes[48..52].copy_from_slice(&1u32.to_be_bytes());
    sealed(bytes)
}

/// Appends the checksum of a hello.
pub fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut hasher = SipHasher24::new();
    hasher.write(&bytes);
    bytes.extend(hasher.finish().to_be_bytes());
    bytes
}

/// The slot ports that are bound on a side.
pub fn slot_ports(stage: &Stage, side: Side) -> Result<Vec<u16>> {
    // /proc/net shows the namespace of the main thread; this thread has entered another one.
    let table = stage.enter(side, || std::fs::read_to_string("/proc/thread-self/net/udp"))??;
    let ports = table.lines().skip(1).filter_map(|line| {
        let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    });
    Ok(ports.filter(|port| (FIRST_PORT..FIRST_PORT + SLOTS).contains(port)).collect())
}

/// So many random bytes.
fn bytes(rng: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| rng.u8(..)).collect()
}

/// What a third host knows of one direction of a transfer.
pub struct Target {
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
    pub fn new(stage: &Stage, side: Side, sniffer: &Sniffer, computes_icrc: bool) -> Result<Option<Target>> {
        let other = if side == Side::A { Side::B } else { Side::A };
        let (IpAddr::V4(from), IpAddr::V4(to)) = (stage.address(other), stage.address(side)) else {
            anyhow::bail!("this stage has no IPv4 addresses")
        };
        let [from_ports, to_ports] = [slot_ports(stage, other)?, slot_ports(stage, side)?];
        let mut seen = sniffer.packets(to);
        seen.retain(|packet| !packet[HEADERS..].starts_with(b"WEIR") && packet.len() >= HEADERS + 16);
        seen.truncate(256);
        let complete = !from_ports.is_empty() && !to_ports.is_empty() && !seen.is_empty();
        Ok(complete.then_some(Target { from, to, from_ports, to_ports, seen, computes_icrc }))
    }

    /// Whether the processes are still there: their UDP ports are.
    pub fn is_current(&self, stage: &Stage, side: Side) -> Result<bool> {
        Ok(slot_ports(stage, side)? == self.to_ports)
    }

    /// Any of the packets that a hostile host sends.
    pub fn next(&self, random: &mut Rng) -> Vec<u8> {
        let from_port = self.from_ports[random.usize(..self.from_ports.len())];
        let to_port = self.to_ports[random.usize(..self.to_ports.len())];
        let (peer, to) = ((self.from, from_port), (self.to, to_port));
        let length = random.usize(..1400);
        match random.usize(..8) {
            0 => packet((THIRD, random.u16(..)), to, &bytes(random, length)),
            1 => packet((Ipv4Addr::from(random.u32(..) & 0x00ff_ffff | 0x0a00_0000), from_port), to, &[0; 64]),
            2 => packet(peer, to, &bytes(random, length)),
            3 => packet(peer, to, &hello(random.u64(..))),
            4 => packet((self.from, random.u16(..)), (self.to, ROCE_PORT), &bytes(random, length)),
            5 => self.truncated(random),
            6 => self.changed(random),
            _ => self.with_wrong_psn(random),
        }
    }

    fn any(&self, random: &mut Rng) -> Vec<u8> {
        self.seen[random.usize(..self.seen.len())].clone()
    }

    fn truncated(&self, random: &mut Rng) -> Vec<u8> {
        let seen = self.any(random);
        let length = random.usize(..seen.len() - HEADERS);
        let mut packet = seen[..HEADERS + length].to_vec();
        finish(&mut packet);
        packet
    }

    /// With one wrong bit in its headers, and a tag that is a guess.
    fn changed(&self, random: &mut Rng) -> Vec<u8> {
        let mut packet = self.any(random);
        let at = HEADERS + random.usize(..32.min(packet.len() - HEADERS - ICRC_LEN));
        packet[at] ^= 1 << random.usize(..8);
        self.guess_tag(&mut packet, random);
        finish(&mut packet);
        packet
    }

    /// The right QPN, addresses and ports, and a PSN far from that of the connection, before it or after it.
    fn with_wrong_psn(&self, random: &mut Rng) -> Vec<u8> {
        let mut packet = self.any(random);
        let psn = &mut packet[HEADERS + 8..HEADERS + 12];
        // 2²² and up to 2²² more, of 2²⁴.
        psn[1] = psn[1].wrapping_add(0x40 + random.usize(..0x40) as u8);
        if random.usize(..2) == 0 {
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
