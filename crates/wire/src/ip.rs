//! The IP and UDP headers of a packet, restricted to the fields that the ICRC and capture files need.

use std::net::IpAddr;

/// Addresses, ports and the IPv4 fields that the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Source address.
    pub src: IpAddr,
    /// Destination address; same address family as `src`.
    pub dst: IpAddr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// IPv4 Identification; unused for IPv6.
    pub ip_id: u16,
    /// IPv4 Don't Fragment; unused for IPv6.
    pub dont_fragment: bool,
}

/// Length in bytes of a UDP header.
pub const UDP_LEN: usize = 8;

impl Envelope {
    /// Length in bytes of the IP and UDP headers together: 28 or 48.
    pub const fn len(&self) -> usize {
        match self.src {
            IpAddr::V4(_) => 20 + UDP_LEN,
            IpAddr::V6(_) => 40 + UDP_LEN,
        }
    }

    /// Always false.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the IP and UDP headers for `udp_payload` bytes; checksums stay zero ([`fill_ipv4_checksum`] fills in the
    /// one of IPv4). Returns their length.
    ///
    /// # Panics
    /// If `out` is shorter than [`Envelope::len`].
    pub fn emit(&self, udp_payload: usize, tos: u8, ttl: u8, out: &mut [u8]) -> usize {
        let udp_len = (UDP_LEN + udp_payload) as u16;
        let ip_len = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let head = &mut out[..20];
                head[0] = 0x45;
                head[1] = tos;
                head[2..4].copy_from_slice(&(20 + udp_len).to_be_bytes());
                head[4..6].copy_from_slice(&self.ip_id.to_be_bytes());
                head[6..8].copy_from_slice(&(u16::from(self.dont_fragment) << 14).to_be_bytes());
                head[8] = ttl;
                head[9] = 17;
                head[10..12].fill(0);
                head[12..16].copy_from_slice(&src.octets());
                head[16..20].copy_from_slice(&dst.octets());
                20
            }
            (src, dst) => {
                let head = &mut out[..40];
                head[..4].copy_from_slice(&(6u32 << 28 | u32::from(tos) << 20).to_be_bytes());
                head[4..6].copy_from_slice(&udp_len.to_be_bytes());
                head[6] = 17;
                head[7] = ttl;
                head[8..24].copy_from_slice(&v6_octets(src));
                head[24..40].copy_from_slice(&v6_octets(dst));
                40
            }
        };
        let udp = &mut out[ip_len..ip_len + UDP_LEN];
        udp[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        udp[6..8].fill(0);
        ip_len + UDP_LEN
    }
}

/// Fills the header checksum of a 20-byte IPv4 header.
pub fn fill_ipv4_checksum(head: &mut [u8]) {
    head[10..12].fill(0);
    let mut sum: u32 = head[..20].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    head[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn v6_octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
