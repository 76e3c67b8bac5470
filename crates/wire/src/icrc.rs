//! The invariant CRC (IBTA 7.8.1 and annex A17): CRC-32 over everything that does not change on the path.
//!
//! It covers eight bytes of ones, the IP header with ones for TOS, TTL and checksum, the UDP header with ones for its
//! checksum, the BTH with ones for its byte 4, and everything after it, pad included. It is sent little-endian.
//! RoCE v1 and InfiniBand have other headers in front of the BTH: [`compute_global`], [`compute_local`].
//!
//! It covers the IPv4 Identification, which a plain UDP receiver does not see. CRC-32 is linear, so the receiver can
//! solve for it: [`verify`] returns the Identification that makes the ICRC right, if there is one.

use crate::ICRC_LEN;
use crate::ip::Envelope;
use crc32fast::Hasher;

/// The result of checking a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Right with the given Identification.
    Good,
    /// Right if the IPv4 Identification was this value.
    GoodWithId(u16),
    /// Wrong for every Identification.
    Bad,
}

/// The ICRC of a packet; `body` is its UDP payload without the ICRC itself.
///
/// # Panics
/// If `body` is shorter than a BTH (12 bytes).
pub fn compute(envelope: &Envelope, body: &[u8]) -> u32 {
    let mut prefix = [0xff; 8 + 48];
    let len = envelope.emit(body.len() + ICRC_LEN, 0xff, 0xff, &mut prefix[8..]);
    mask_and_finish(&mut prefix, len, body)
}

/// The ICRC of a packet with the ICRC `icrc` after a change of its IP and UDP headers. A right ICRC stays right, and a
/// wrong one stays wrong by the same difference.
///
/// # Panics
/// If `body` is shorter than a BTH (12 bytes).
pub fn moved(icrc: u32, from: &Envelope, to: &Envelope, body: &[u8]) -> u32 {
    icrc ^ compute(from, body) ^ compute(to, body)
}

/// The ICRC, computed from the IP and UDP headers of a captured frame.
///
/// # Panics
/// If `ip_udp` is not an IPv4 (without options) or IPv6 header followed by a UDP header, or `body` is shorter than 12.
pub fn compute_framed(ip_udp: &[u8], body: &[u8]) -> u32 {
    let mut prefix = [0xff; 8 + 48];
    prefix[8..8 + ip_udp.len()].copy_from_slice(ip_udp);
    mask_and_finish(&mut prefix, ip_udp.len(), body)
}

/// The ICRC of a packet behind a GRH, of RoCE v1 or of InfiniBand. It covers ones in place of the LRH, which a router
/// replaces, and the GRH with ones for traffic class, flow label and hop limit (IBTA 7.8.1).
///
/// # Panics
/// If `body` is shorter than a BTH (12 bytes).
pub fn compute_global(grh: &[u8; 40], body: &[u8]) -> u32 {
    let mut prefix = [0xff; 8 + 40];
    prefix[8..].copy_from_slice(grh);
    mask_ipv6(&mut prefix[8..]);
    finish(&prefix, body)
}

/// The ICRC of an InfiniBand packet without a GRH. It covers the LRH with ones for the virtual lane (IBTA 7.8.1).
///
/// # Panics
/// If `body` is shorter than a BTH (12 bytes).
pub fn compute_local(lrh: &[u8; 8], body: &[u8]) -> u32 {
    let mut prefix = *lrh;
    prefix[0] |= 0xf0;
    finish(&prefix, body)
}

/// Checks the ICRC of a complete UDP payload (`body` and ICRC). `envelope.ip_id` is tried first.
///
/// # Panics
/// If `datagram` is shorter than a BTH and an ICRC (16 bytes).
pub fn verify(envelope: &Envelope, datagram: &[u8]) -> Verdict {
    let (body, icrc) = datagram.split_last_chunk::<ICRC_LEN>().expect("a datagram holds an ICRC");
    let difference = compute(envelope, body) ^ u32::from_le_bytes(*icrc);
    if difference == 0 {
        return Verdict::Good;
    }
    if !envelope.src.is_ipv4() {
        return Verdict::Bad;
    }
    // The Identification is bytes 4 and 5 of the 20-byte IP header; 14 bytes of IP, 8 of UDP and the body follow.
    match preimage(difference, 14 + 8 + body.len()) {
        Some(delta) => Verdict::GoodWithId(envelope.ip_id ^ delta),
        None => Verdict::Bad,
    }
}

fn mask_and_finish(prefix: &mut [u8; 56], ip_udp_len: usize, body: &[u8]) -> u32 {
    let ip = &mut prefix[8..];
    if ip_udp_len == 28 {
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10..12].fill(0xff);
    } else {
        mask_ipv6(ip);
    }
    let end = 8 + ip_udp_len;
    prefix[end - 2..end].fill(0xff);
    finish(&prefix[..end], body)
}

/// Puts ones into the fields of an IPv6 header or a GRH that change on the path.
fn mask_ipv6(head: &mut [u8]) {
    head[0] |= 0x0f;
    head[1..4].fill(0xff);
    head[7] = 0xff;
}

/// The CRC of masked headers (56 bytes at most) and a body.
fn finish(prefix: &[u8], body: &[u8]) -> u32 {
    let (bth, rest) = body.split_at(12);
    let mut head = [0; 56 + 12];
    let end = prefix.len();
    head[..end].copy_from_slice(prefix);
    head[end..end + 12].copy_from_slice(bth);
    head[end + 4] = 0xff;
    let mut crc = Hasher::new();
    crc.update(&head[..end + 12]);
    crc.update(rest);
    crc.finalize()
}

/// The two bytes (as a big-endian number) that change a CRC-32 by `difference` at `after` bytes before the end.
fn preimage(difference: u32, after: usize) -> Option<u16> {
    let register = multiply(difference, inverse_power(after + 4));
    // In reflected order two bytes occupy the upper half of the register.
    (register & 0xffff == 0).then(|| ((register >> 16) as u16).swap_bytes())
}

/// x^(-8·bytes) modulo the CRC-32 polynomial, in reflected order.
fn inverse_power(bytes: usize) -> u32 {
    /// x^-8, squared repeatedly.
    const POWERS: [u32; 17] = {
        // x^-1 is (P + 1) / x.
        let inverse = (0xedb8_8320u32 << 1) | 1;
        let x2 = multiply(inverse, inverse);
        let x4 = multiply(x2, x2);
        let mut powers = [multiply(x4, x4); 17];
        let mut i = 1;
        while i < powers.len() {
            powers[i] = multiply(powers[i - 1], powers[i - 1]);
            i += 1;
        }
        powers
    };
    let mut product = 1 << 31;
    for (bit, power) in POWERS.iter().enumerate() {
        if bytes >> bit & 1 != 0 {
            product = multiply(product, *power);
        }
    }
    product
}

/// Product of two polynomials modulo the CRC-32 polynomial, in reflected order (bit 31 is x^0).
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 1 << 31;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { b >> 1 ^ 0xedb8_8320 } else { b >> 1 };
        bit >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn envelope(ip_id: u16) -> Envelope {
        let [src, dst] = [1, 2].map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
        Envelope { src, dst, src_port: 20480, dst_port: 4791, ip_id, dont_fragment: true }
    }

    #[test]
    fn the_identification_is_found() {
        for len in [12, 16, 28, 100, 1036, 4124] {
            let body: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            for id in [0, 1, 63, 0x1234, 0xffff] {
                let mut datagram = body.clone();
                datagram.extend(compute(&envelope(id), &body).to_le_bytes());
                let expected = if id == 0 { Verdict::Good } else { Verdict::GoodWithId(id) };
                assert_eq!(verify(&envelope(0), &datagram), expected);
                datagram[13 % len] ^= 0x40;
                assert_eq!(verify(&envelope(id), &datagram), Verdict::Bad, "len {len} id {id}");
            }
        }
    }

    /// The sample packet of the InfiniBand specification (IBTA 7.8): a WRITE without a GRH.
    #[test]
    fn the_icrc_of_the_specification_s_sample_packet() {
        let lrh = [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2];
        let body = [
            0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d,
            0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4,
            0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
        ];
        assert_eq!(compute_local(&lrh, &body).to_le_bytes(), [0x96, 0x25, 0xb7, 0x5a]);
    }

    #[test]
    fn behind_a_grh_the_fields_that_change_on_the_path_do_not_count() {
        let body = [7; 20];
        let grh: [u8; 40] = std::array::from_fn(|n| 0x60 + n as u8);
        let expected = compute_global(&grh, &body);
        for at in 0..40 {
            for bit in 0..8 {
                let mut other = grh;
                other[at] ^= 1 << bit;
                let variant = matches!((at, bit), (0, 0..=3) | (1..=3 | 7, _));
                assert_eq!(compute_global(&other, &body) == expected, variant, "bit {bit} of byte {at}");
            }
        }
        // The GRH is an IPv6 header: RoCE v2 masks the same fields, and has a UDP header between.
        let mut udp = [0; 8];
        udp[6..].fill(0xff);
        let between = compute_framed(&[&grh[..], &udp].concat(), &body);
        let mut masked = body;
        masked[4] = 0xff;
        let mut all = [&[0xff; 8][..], &grh, &udp, &masked].concat();
        all[8] |= 0x0f;
        all[9..12].fill(0xff);
        all[15] = 0xff;
        assert_eq!(between, crc32fast::hash(&all));
        all.drain(48..56);
        assert_eq!(expected, crc32fast::hash(&all));
    }
}
