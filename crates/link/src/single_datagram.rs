//! Sends the datagrams of a group one by one, where the kernel refuses the group as segments of one send.
//!
//! The kernel numbers the segments of one send from 0 (the IPv4 Identification), and a datagram that is sent alone
//! has 0. The ICRC covers that number. An adapter would drop a packet with the wrong ICRC, so the ICRC is recomputed.

use crate::capture::CONTROL_MAGIC;
use crate::outbox::{Group, Outbox};
use std::ops::Range;
use weir_wire::ip::Envelope;
use weir_wire::{ICRC_LEN, icrc};

/// The limit of iovecs of one datagram. A packet needs some forty; merging with a neighbour adds none.
const PARTS: usize = 64;
/// A BTH and an ICRC: the shortest packet.
const MIN_PACKET: usize = 16;

/// One datagram of a group, as iovecs for sendmsg.
pub struct SingleDatagram {
    parts: [libc::iovec; PARTS],
    count: usize,
    icrc: [u8; ICRC_LEN],
}

// SAFETY: the raw pointers are used only during the call that they were set up for, by the thread that set them up.
unsafe impl Send for SingleDatagram {}

impl SingleDatagram {
    /// Without iovecs.
    pub fn new() -> Self {
        SingleDatagram { parts: [part(std::ptr::null(), 0); PARTS], count: 0, icrc: [0; ICRC_LEN] }
    }

    /// The iovecs of datagram `index` of a group that is sent from UDP port `port`. None if there are too many. They
    /// point into the outbox, into application memory and into `self`, and are valid until any of these changes.
    pub fn datagram(&mut self, outbox: &Outbox, group: &Group, index: usize, port: u16) -> Option<&[libc::iovec]> {
        let start = index * group.segment;
        let range = start..(start + group.segment).min(group.len);
        self.count = 0;
        if group.iovecs.1 > 0 {
            // Packets with payload in place carry no ICRC.
            self.datagram_iovecs(outbox, group, range)?;
        } else {
            self.staged_iovecs(&outbox.bytes[group.start..group.start + group.len][range], group, index, port);
        }
        Some(&self.parts[..self.count])
    }

    fn staged_iovecs(&mut self, datagram: &[u8], group: &Group, index: usize, port: u16) {
        match renumbered(datagram, group, index, port) {
            Some(icrc) => {
                self.icrc = icrc;
                let body = datagram.len() - ICRC_LEN;
                self.parts[0] = part(datagram.as_ptr(), body);
                self.parts[1] = part(self.icrc.as_ptr(), ICRC_LEN);
                self.count = 2;
            }
            None => {
                self.parts[0] = part(datagram.as_ptr(), datagram.len());
                self.count = 1;
            }
        }
    }

    /// The parts of a group's iovecs between two offsets.
    fn datagram_iovecs(&mut self, outbox: &Outbox, group: &Group, range: Range<usize>) -> Option<()> {
        let (first, count) = group.iovecs;
        let mut at = 0;
        for iovec in &outbox.iovecs[first..first + count] {
            let (from, to) = (range.start.max(at), range.end.min(at + iovec.len));
            if from < to {
                let entry = self.parts.get_mut(self.count)?;
                *entry = part(std::ptr::with_exposed_provenance(iovec.addr + (from - at)), to - from);
                self.count += 1;
            }
            at += iovec.len;
        }
        Some(())
    }
}

fn part(start: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }
}

/// The ICRC of a datagram with Identification 0 instead of its index in the group. None if the last four bytes stay:
/// for index 0, without Identification (IPv6), or if they are not an ICRC (Weir peers may omit it).
fn renumbered(datagram: &[u8], group: &Group, index: usize, port: u16) -> Option<[u8; ICRC_LEN]> {
    let (body, icrc) = datagram.split_last_chunk::<ICRC_LEN>()?;
    let packet = datagram.len() >= MIN_PACKET && !datagram.starts_with(CONTROL_MAGIC);
    if index == 0 || !group.to.is_ipv4() || !packet {
        return None;
    }
    let numbered = Envelope {
        src: group.from,
        dst: group.to.ip(),
        src_port: port,
        dst_port: group.to.port(),
        ip_id: index as u16,
        dont_fragment: true,
    };
    if *icrc != icrc::compute(&numbered, body).to_le_bytes() {
        return None;
    }
    let plain = Envelope { ip_id: 0, ..numbered };
    Some(icrc::moved(u32::from_le_bytes(*icrc), &numbered, &plain, body).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Iovec;
    use std::net::{IpAddr, SocketAddr};
    use weir_wire::icrc::Verdict;

    fn bytes(parts: &[libc::iovec]) -> Vec<u8> {
        let slice = |part: &libc::iovec| {
            // SAFETY: each iovec points into memory that the test holds.
            unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) }.to_vec()
        };
        parts.iter().flat_map(slice).collect()
    }

    #[test]
    fn icrcs_are_recomputed_for_identification_zero_and_other_trailers_stay() {
        let (from, to): (IpAddr, SocketAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
        let envelope =
            |ip_id| Envelope { src: from, dst: to.ip(), src_port: 20500, dst_port: 4791, ip_id, dont_fragment: true };
        let (body, mut outbox) = ([7; 100], Outbox::new(4096, 4));
        for (index, entry) in outbox.bytes.chunks_mut(104).take(10).enumerate() {
            entry[..100].copy_from_slice(&body);
            // The last three carry a tag or zeros in place of the ICRC.
            let icrc = match index {
                0..7 => icrc::compute(&envelope(index as u16), &body),
                7 => 0,
                _ => 0x1234_5678,
            };
            entry[100..].copy_from_slice(&icrc.to_le_bytes());
        }
        let group = Group { len: 1040, segment: 104, ..Group::new(to, from, 0) };
        let mut single = SingleDatagram::new();
        for index in 0..10 {
            let datagram = bytes(single.datagram(&outbox, &group, index, 20500).unwrap());
            if index < 7 {
                assert_eq!(icrc::verify(&envelope(0), &datagram), Verdict::Good, "datagram {index}");
            } else {
                assert_eq!(datagram[100..], outbox.bytes[index * 104 + 100..][..4], "other trailers stay");
            }
            assert_eq!(datagram[..100], body);
        }
    }

    #[test]
    fn iovecs_are_split_at_datagram_boundaries() {
        let to: SocketAddr = "10.0.0.2:20481".parse().unwrap();
        let mut outbox = Outbox::new(64, 4);
        let memory: Vec<u8> = (0..=255).collect();
        let base = memory.as_ptr().expose_provenance();
        outbox.groups.push(Group { segment: 50, ..Group::new(to, [10, 0, 0, 1].into(), 0) });
        outbox.start_iovecs();
        // Iovecs of any size, in any order of addresses: the datagrams are cut from their concatenation.
        for (at, len) in [(0, 70), (200, 3), (100, 60), (10, 40)] {
            outbox.add_iovec(Iovec { addr: base + at, len });
        }
        let whole: Vec<u8> = [(0, 70), (200, 3), (100, 60), (10, 40)]
            .into_iter()
            .flat_map(|(at, len): (usize, usize)| memory[at..at + len].to_vec())
            .collect();
        let (group, mut single) = (outbox.groups[0], SingleDatagram::new());
        assert_eq!(group.count(), 4);
        for (index, expected) in whole.chunks(50).enumerate() {
            assert_eq!(bytes(single.datagram(&outbox, &group, index, 1).unwrap()), expected, "datagram {index}");
        }
    }
}
