//! Addresses: those of the ABI, of sockets, and GIDs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use weir_device::Errno;

const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;
/// Addresses of InfiniBand.
const AF_IB: u16 = 27;

/// A socket address of the program; `None` without a family. EAFNOSUPPORT for other families than IPv4 and IPv6, also
/// for AF_IB: RoCE devices do not have its addresses.
pub fn parse(bytes: &[u8]) -> Result<Option<SocketAddr>, Errno> {
    let Some(family) = bytes.first_chunk().map(|family| u16::from_ne_bytes(*family)) else {
        return Err(Errno(libc::EINVAL));
    };
    let port = bytes.get(2..4).map(|port| u16::from_be_bytes([port[0], port[1]]));
    match family {
        0 => Ok(None),
        AF_INET => {
            let (Some(port), Some(ip)) = (port, bytes.get(4..).and_then(|rest| rest.first_chunk::<4>())) else {
                return Err(Errno(libc::EINVAL));
            };
            Ok(Some(SocketAddrV4::new(Ipv4Addr::from(*ip), port).into()))
        }
        AF_INET6 => {
            let (Some(port), Some(rest)) = (port, bytes.get(4..28)) else { return Err(Errno(libc::EINVAL)) };
            let flow = u32::from_be_bytes(rest[..4].try_into().expect("four bytes"));
            let ip: [u8; 16] = rest[4..20].try_into().expect("sixteen bytes");
            let scope = u32::from_ne_bytes(rest[20..24].try_into().expect("four bytes"));
            Ok(Some(SocketAddrV6::new(ip.into(), port, flow, scope).into()))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// The bytes of a socket address, in as many bytes as the program has room for; returns those that mean something.
pub fn write(address: Option<SocketAddr>, to: &mut [u8]) -> u16 {
    let bytes = match address {
        None => return 0,
        Some(SocketAddr::V4(v4)) => {
            let mut bytes = vec![0; 16];
            bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            bytes
        }
        Some(SocketAddr::V6(v6)) => {
            let mut bytes = vec![0; 28];
            bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            bytes
        }
    };
    to[..bytes.len()].copy_from_slice(&bytes);
    bytes.len() as u16
}

/// As [`write`], for AF_IB: the address is a GID, the port space and port a service id. `to` has 48 bytes at least.
pub fn write_ib(gid: [u8; 16], pkey: u16, service: u64, to: &mut [u8]) -> u16 {
    to[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    to[2..4].copy_from_slice(&pkey.to_be_bytes());
    to[8..24].copy_from_slice(&gid);
    to[24..32].copy_from_slice(&service.to_be_bytes());
    to[32..40].copy_from_slice(&u64::MAX.to_be_bytes());
    48
}

/// The GID of an address (IBTA annex A17).
pub fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns whether an address stands for any.
pub fn is_any(address: &SocketAddr) -> bool {
    address.ip().is_unspecified()
}

/// The unspecified address of a family, with a port.
pub fn any(like: &SocketAddr, port: u16) -> SocketAddr {
    match like {
        SocketAddr::V4(_) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port).into(),
        SocketAddr::V6(_) => SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0).into(),
    }
}

/// Returns whether an address is valid on one interface only.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns whether an address is link-local IPv6 but names no interface.
pub fn misses_scope(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_abi() {
        for text in ["10.1.2.3:7471", "[2001:db8::1]:80", "[fe80::1%3]:5"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut bytes = [0; 128];
            let len = write(Some(address), &mut bytes);
            assert_eq!(len, if address.is_ipv4() { 16 } else { 28 });
            assert_eq!(parse(&bytes), Ok(Some(address)), "{text}");
            assert_eq!(parse(&bytes[..28]), Ok(Some(address)), "{text}");
            assert!(parse(&bytes[..5]).is_err());
        }
        assert_eq!(parse(&[0; 28]), Ok(None));
        assert_eq!(parse(&[27, 0, 0, 0]), Err(Errno(libc::EAFNOSUPPORT)));
        assert!(parse(&[]).is_err());
        assert!(misses_scope(&"[fe80::1]:1".parse().unwrap()) && !misses_scope(&"[fe80::1%2]:1".parse().unwrap()));
    }
}
