//! Addresses of sockets, and those of this machine's interfaces.

use crate::rdma::errno::{Errno, check};
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address of a network interface.
pub(crate) struct LocalAddress {
    pub address: IpAddr,
    pub prefix: u8,
    pub interface: String,
}

/// The C form of an address.
pub(crate) fn to_storage(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: a structure of integers.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let at = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage has room and alignment for every kind of address.
            let sin = unsafe { &mut *at.cast::<sockaddr_in>() };
            sin.sin_family = AF_INET as _;
            sin.sin_port = v4.port().to_be();
            sin.sin_addr.s_addr = v4.ip().to_bits().to_be();
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let sin6 = unsafe { &mut *at.cast::<sockaddr_in6>() };
            sin6.sin6_family = AF_INET6 as _;
            sin6.sin6_port = v6.port().to_be();
            sin6.sin6_flowinfo = v6.flowinfo();
            sin6.sin6_addr.s6_addr = v6.ip().octets();
            sin6.sin6_scope_id = v6.scope_id();
        }
    }
    storage
}

/// The address in a C structure; `None` for another family, and for NULL.
///
/// # Safety
/// NULL, or an address that is as large as its family says.
pub(crate) unsafe fn from_sockaddr(address: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: the family decides which structure it is; it need not be aligned for its members.
    unsafe {
        match address.as_ref()?.sa_family.into() {
            AF_INET => {
                let sin = address.cast::<sockaddr_in>().read_unaligned();
                let ip = u32::from_be(sin.sin_addr.s_addr).into();
                Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
            }
            AF_INET6 => {
                let sin6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                let port = u16::from_be(sin6.sin6_port);
                Some(SocketAddrV6::new(ip, port, sin6.sin6_flowinfo, sin6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// The IPv4 and global IPv6 addresses of all interfaces that are up, those of loopback last.
pub(crate) fn local_addresses() -> Result<Vec<LocalAddress>, Errno> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the C library fills the variable.
    check(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = vec![];
    let mut next = list;
    // SAFETY: each entry of the list is valid until the list is freed; an address is as large as its family says.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: as above; the name is a string.
        let (address, mask, interface) = unsafe {
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
            (from_sockaddr(entry.ifa_addr), from_sockaddr(entry.ifa_netmask), name)
        };
        let Some(address) = address.map(|address| address.ip()).filter(is_usable) else { continue };
        found.push(LocalAddress { address, prefix: mask.map_or(0, |mask| ones(mask.ip())), interface });
    }
    // SAFETY: the list of getifaddrs(3), which has no more users.
    unsafe { libc::freeifaddrs(list) };
    found.sort_by_key(|local| local.address.is_loopback());
    Ok(found)
}

/// A link-local IPv6 address means nothing without its interface.
fn is_usable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_unicast_link_local(),
    }
}

fn ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => v4.to_bits().leading_ones(),
        IpAddr::V6(v6) => v6.to_bits().leading_ones(),
    };
    ones as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_c_form() {
        for text in ["127.0.0.1:0", "192.0.2.7:4791", "[::1]:1", "[2001:db8::7]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = to_storage(address);
            // SAFETY: a complete address.
            assert_eq!(unsafe { from_sockaddr((&raw const storage).cast()) }, Some(address));
        }
        // SAFETY: NULL.
        assert_eq!(unsafe { from_sockaddr(std::ptr::null()) }, None);
    }

    #[test]
    fn loopback_addresses_are_the_last_ones() {
        let found = local_addresses().unwrap();
        let is_loopback: Vec<bool> = found.iter().map(|local| local.address.is_loopback()).collect();
        assert!(is_loopback.is_sorted());
        let local = found.iter().find(|local| local.address.to_string() == "127.0.0.1").expect("loopback is up");
        assert_eq!((local.prefix, local.interface.as_str()), (8, "lo"));
    }
}
