//! Addresses: socket addresses of interfaces that have an RDMA device.

use crate::info::asked::Asked;
use crate::rdma::{self, Interface};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use weir_fabric_abi::*;
use weir_msg::Name;

/// Programs and the core ask several times in a row.
const FRESH: Duration = Duration::from_secs(1);

/// An interface, and the addresses that a program gets for it.
pub struct Route {
    pub interface: Interface,
    pub source: SocketAddr,
    pub destination: Option<SocketAddr>,
}

/// The interfaces with a device.
pub fn interfaces() -> Result<Vec<Interface>, String> {
    static KNOWN: Mutex<Option<(Instant, Vec<Interface>)>> = Mutex::new(None);
    let Ok(mut known) = KNOWN.lock() else { return rdma::interfaces() };
    if let Some((since, interfaces)) = &*known
        && since.elapsed() < FRESH
    {
        return Ok(interfaces.clone());
    }
    let interfaces = rdma::interfaces()?;
    *known = Some((Instant::now(), interfaces.clone()));
    Ok(interfaces)
}

/// The interfaces that fit a program's addresses.
pub fn routes(asked: &Asked<'_>, interfaces: &[Interface]) -> Result<Vec<Route>, c_int> {
    let hints = asked.hints;
    // SAFETY: the program's hints.
    let hinted = |pointer: *mut std::ffi::c_void, len: usize| unsafe { read_address(pointer.cast(), len) };
    let source_hint = hints.and_then(|hints| hinted(hints.src_addr, hints.src_addrlen));
    let named = asked.node.is_some() || asked.service.is_some();
    let (mut source, mut destination) =
        (source_hint, hints.and_then(|hints| hinted(hints.dest_addr, hints.dest_addrlen)));
    if asked.flags & FI_SOURCE != 0 {
        if named {
            source = Some(resolve(asked)?);
        }
    } else if asked.node.is_some() {
        destination = Some(resolve(asked)?);
    }
    let via = destination.and_then(|to| local_address(to).filter(|ip| interfaces.iter().any(|i| i.address == *ip)));
    let wanted = source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified()).or(via);
    let port = source.map_or(0, |source| source.port());
    let format = hints.map_or(FI_FORMAT_UNSPEC, |hints| hints.addr_format);
    let fits = |interface: &&Interface| {
        let family = match format {
            FI_SOCKADDR_IN => interface.address.is_ipv4(),
            FI_SOCKADDR_IN6 => interface.address.is_ipv6(),
            _ => true,
        };
        family
            && wanted.is_none_or(|ip| ip == interface.address)
            && destination.is_none_or(|to| to.is_ipv4() == interface.address.is_ipv4())
    };
    let route = |interface: &Interface| Route {
        interface: interface.clone(),
        source: SocketAddr::new(interface.address, port),
        destination,
    };
    Ok(interfaces.iter().filter(fits).map(route).collect())
}

/// The address that the program names.
fn resolve(asked: &Asked<'_>) -> Result<SocketAddr, c_int> {
    let port = match asked.service.map(|service| service.to_string_lossy().parse::<u16>()) {
        None => 0,
        Some(Ok(port)) => port,
        Some(Err(_)) => return Err(FI_ENODATA),
    };
    let Some(node) = asked.node else { return Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)) };
    let node = node.to_string_lossy();
    if asked.flags & FI_NUMERICHOST != 0 {
        return node.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port)).map_err(|_| FI_ENODATA);
    }
    let mut found: Vec<SocketAddr> = (&*node, port).to_socket_addrs().map_err(|_| FI_ENODATA)?.collect();
    found.sort_by_key(|address| address.is_ipv6());
    found.first().copied().ok_or(FI_ENODATA)
}

/// The address from which packets to a destination leave.
fn local_address(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Nothing is sent; the port only must not be 0.
    socket.connect((to.ip(), to.port().max(1))).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}

/// An endpoint's name: its address as a `sockaddr_in` or `sockaddr_in6`.
pub fn name_of(address: SocketAddr) -> Name {
    let mut bytes = [0u8; 28];
    let len = match address {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            16
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            28
        }
    };
    Name::new(&bytes[..len]).expect("no longer than a name")
}

/// The address that a name stands for.
pub fn parse_name(name: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([*name.get(2)?, *name.get(3)?]);
    match i32::from(u16::from_ne_bytes([name[0], name[1]])) {
        libc::AF_INET => {
            let ip: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(name.get(24..28)?.try_into().ok()?);
            Some(std::net::SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => None,
    }
}

/// The source address of an info that a program opens something with. FI_EINVAL: it has none.
pub fn source_of(info: &fi_info) -> Result<SocketAddr, c_int> {
    // SAFETY: the info's address is as long as it says.
    unsafe { read_address(info.src_addr.cast(), info.src_addrlen) }.ok_or(FI_EINVAL)
}

/// Reads an address of the program.
///
/// # Safety
/// `pointer` is null, or of `len` bytes.
unsafe fn read_address(pointer: *const u8, len: usize) -> Option<SocketAddr> {
    if pointer.is_null() || len < 16 {
        return None;
    }
    // SAFETY: the caller's bytes.
    parse_name(unsafe { std::slice::from_raw_parts(pointer, len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_socket_addresses() {
        for text in ["10.90.1.2:9228", "[fd00::1]:7"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(parse_name(name_of(address).as_bytes()), Some(address));
        }
        assert_eq!(parse_name(&[0; 16]), None);
        assert_eq!(parse_name(&[2]), None);
    }
}
