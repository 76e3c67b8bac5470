//! What librdmacm's programs have at the begin of the private data of REQ and SIDR_REQ (IBTA annex A11).

use super::bits::{Bits, Value, message};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

message! {
    /// The header as it is on the wire.
    Raw {
        major: u8 = (0, 0, 4),
        minor: u8 = (0, 4, 4),
        ip_version: u8 = (1, 0, 4),
        source_port: u16 = (2, 0, 16),
        source: Ipv6Addr = (4, 0, 128),
        destination: Ipv6Addr = (20, 0, 128),
    }
}

/// The addresses between which a program asks for a connection (IBTA annex A11). The destination's port is in the
/// service ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    pub source: SocketAddr,
    pub destination: IpAddr,
}

impl IpHeader {
    /// Bytes that it takes from the private data.
    pub const LEN: usize = 36;

    /// Parses the first bytes of private data. None for other versions of the header or of IP.
    pub fn parse(private: &[u8]) -> Option<IpHeader> {
        let raw = Raw::get(private.get(..Self::LEN)?, WHOLE);
        let address: fn(Ipv6Addr) -> IpAddr = match raw {
            Raw { major: 0, ip_version: 4, .. } => last_four,
            Raw { major: 0, ip_version: 6, .. } => IpAddr::V6,
            _ => return None,
        };
        let source = SocketAddr::new(address(raw.source), raw.source_port);
        Some(IpHeader { source, destination: address(raw.destination) })
    }

    /// The header's bytes. Both addresses have one family; an IPv4 address beside an IPv6 address is mapped into IPv6.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (version, address): (u8, fn(IpAddr) -> Ipv6Addr) = match (self.source.ip(), self.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => (4, in_last_four),
            _ => (6, mapped),
        };
        let raw = Raw {
            major: 0,
            minor: 0,
            ip_version: version,
            source_port: self.source.port(),
            source: address(self.source.ip()),
            destination: address(self.destination),
        };
        let mut bytes = [0; Self::LEN];
        raw.put(&mut bytes, WHOLE);
        bytes
    }
}

const WHOLE: Bits = Bits { first: 0, width: IpHeader::LEN * 8 };

fn last_four(address: Ipv6Addr) -> IpAddr {
    let [.., a, b, c, d] = address.octets();
    Ipv4Addr::new(a, b, c, d).into()
}

fn in_last_four(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => Ipv6Addr::from_bits(address.to_bits().into()),
        IpAddr::V6(address) => address,
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_in_the_last_four_bytes() {
        let header = IpHeader { source: "10.1.2.3:18515".parse().unwrap(), destination: "10.1.2.4".parse().unwrap() };
        let bytes = header.emit();
        assert_eq!(bytes[..4], [0, 0x40, 0x48, 0x53]);
        assert_eq!(bytes[4..16], [0; 12]);
        assert_eq!(bytes[16..20], [10, 1, 2, 3]);
        assert_eq!(bytes[32..], [10, 1, 2, 4]);
        assert_eq!(IpHeader::parse(&bytes), Some(header));
    }

    #[test]
    fn ipv6_addresses_fill_their_fields() {
        let header = IpHeader { source: "[fd00::1]:7".parse().unwrap(), destination: "fd00::2".parse().unwrap() };
        assert_eq!(header.emit()[1], 0x60);
        assert_eq!(IpHeader::parse(&header.emit()), Some(header));
    }

    #[test]
    fn other_versions_and_short_data_are_no_header() {
        let header = IpHeader { source: "10.1.2.3:1".parse().unwrap(), destination: "10.1.2.4".parse().unwrap() };
        for (byte, value) in [(0, 0x10), (1, 0x50), (1, 0)] {
            let mut bytes = header.emit();
            bytes[byte] = value;
            assert_eq!(IpHeader::parse(&bytes), None);
        }
        assert_eq!(IpHeader::parse(&header.emit()[..35]), None);
    }
}
