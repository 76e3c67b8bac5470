//! What the kernel says of the interfaces that are used as one.

use crate::spec::{LinksSpec, Named};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use nix::sys::socket::SockaddrStorage;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use weir_transport::edge::{Address, MAX_LINKS};

/// The interfaces that are used as one, with their addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interfaces {
    /// 1 to [`MAX_LINKS`].
    pub all: Vec<Interface>,
    /// They are all that this machine has, of which the peer's network may have some.
    pub lists_all: bool,
}

/// An interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    pub mac: Option<[u8; 6]>,
    /// It is up, and has a carrier.
    pub is_up: bool,
    /// Bytes.
    pub mtu: u32,
    /// Mbit/s; 0: not known. That of the weight, if one was given.
    pub speed: u32,
    /// Addresses and their prefixes, IPv4 first. None of them is link-local.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Why interfaces cannot be used as one.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    #[error("the interfaces cannot be read: {0}")]
    Kernel(#[from] io::Error),
    #[error("there is no interface `{name}` in this network namespace; there are: {existing}")]
    Missing { name: String, existing: String },
    #[error("interface {0} has no address: run `ip addr add ADDRESS/PREFIX dev {0}`")]
    NoAddress(String),
    #[error("no interface of this network namespace has an address: run `ip addr add ADDRESS/PREFIX dev INTERFACE`")]
    None,
}

impl Interfaces {
    /// The interfaces that a list names; for `auto` all that have addresses, and the loopback interface only if it is the only one.
    pub fn find(spec: &LinksSpec) -> Result<Interfaces, InterfaceError> {
        let known = known()?;
        match spec {
            LinksSpec::Auto => {
                let mut all = known;
                // Those that are down as well: the device stays the same when one of them goes down.
                all.retain(|interface| !interface.addresses.is_empty());
                if all.iter().any(|interface| !interface.is_loopback()) {
                    all.retain(|interface| !interface.is_loopback());
                }
                all.sort_by_key(|interface| interface.index);
                all.truncate(MAX_LINKS);
                if all.is_empty() { Err(InterfaceError::None) } else { Ok(Interfaces { all, lists_all: true }) }
            }
            LinksSpec::Named(named) => {
                let all = named.iter().map(|named| named.find(&known)).collect::<Result<_, _>>()?;
                Ok(Interfaces { all, lists_all: false })
            }
        }
    }

    /// For hellos; of all interfaces that this machine has, only those that are up, if there are some.
    pub fn addresses(&self) -> Vec<Address> {
        let any_up = self.all.iter().any(|interface| interface.is_up);
        let counts = |(_, interface): &(usize, &Interface)| interface.is_up || !any_up || !self.lists_all;
        let of = |(n, interface): (usize, &Interface)| {
            let Interface { mtu, speed, addresses, .. } = interface.clone();
            let address = move |(address, prefix)| Address { interface: n as u8, address, prefix, mtu, speed };
            addresses.into_iter().map(address)
        };
        self.all.iter().enumerate().filter(counts).flat_map(of).collect()
    }

    /// The kernel's index of an interface, by its number among these; 0, which is by route, for a number that none has.
    pub fn index(&self, interface: u8) -> u32 {
        self.all.get(usize::from(interface)).map_or(0, |interface| interface.index)
    }

    /// The smallest MTU, bytes.
    pub fn mtu(&self) -> u32 {
        self.all.iter().map(|interface| interface.mtu).min().unwrap_or(0)
    }
}

impl Interface {
    fn is_loopback(&self) -> bool {
        self.addresses.iter().any(|(address, _)| address.is_loopback())
    }
}

impl Named {
    fn find(&self, known: &[Interface]) -> Result<Interface, InterfaceError> {
        let name = &self.interface;
        let Some(interface) = known.iter().find(|interface| interface.name == *name) else {
            let existing: Vec<&str> = known.iter().map(|interface| interface.name.as_str()).collect();
            return Err(InterfaceError::Missing { name: name.clone(), existing: existing.join(", ") });
        };
        if interface.addresses.is_empty() {
            return Err(InterfaceError::NoAddress(name.clone()));
        }
        let speed = self.weight.map_or(interface.speed, |weight| weight * 1000);
        Ok(Interface { speed, ..interface.clone() })
    }
}

/// All interfaces of this network namespace.
fn known() -> io::Result<Vec<Interface>> {
    let mut known: Vec<Interface> = vec![];
    for entry in getifaddrs()? {
        let name = entry.interface_name;
        let at = match known.iter().position(|interface| interface.name == name) {
            Some(at) => at,
            None => {
                // It may have vanished since.
                let Ok(index) = if_nametoindex(name.as_str()) else { continue };
                let works = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
                let is_up = entry.flags.contains(works);
                let Ok(mtu) = mtu(&name) else { continue };
                let (speed, addresses) = (speed(&name), vec![]);
                known.push(Interface { name, index, mac: None, is_up, mtu, speed, addresses });
                known.len() - 1
            }
        };
        let mac = entry.address.as_ref().and_then(|address| address.as_link_addr()?.addr());
        known[at].mac = known[at].mac.or(mac.filter(|mac| *mac != [0; 6]));
        let address = entry.address.as_ref().and_then(ip);
        if let Some(address) = address.filter(|address| !is_link_local(*address)) {
            let prefix = entry.netmask.as_ref().and_then(ip).map_or(full(&address), |mask| prefix(&mask));
            known[at].addresses.push((address, prefix));
        }
    }
    for interface in &mut known {
        interface.addresses.sort_by_key(|(address, _)| address.is_ipv6());
    }
    Ok(known)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

/// Whether an address is valid on one link only.
pub fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn full(address: &IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn prefix(mask: &IpAddr) -> u8 {
    let bits = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    bits as u8
}

/// The MTU of an interface, bytes. /sys may be that of another network namespace.
fn mtu(name: &str) -> io::Result<u32> {
    use std::os::fd::AsRawFd;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all bytes of an `ifreq` may be 0.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    // SAFETY: `request` names the interface, lives until then, and has room for the MTU.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has written this field.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// The speed of an interface, Mbit/s. 0 for those that are memory: their drivers invent one.
fn speed(name: &str) -> u32 {
    let interface = Path::new("/sys/class/net").join(name);
    let is_real = ["device", "bonding"].iter().any(|file| interface.join(file).exists());
    let speed = fs::read_to_string(interface.join("speed")).ok().filter(|_| is_real);
    speed.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found() {
        let lo = Interfaces::find(&"lo=3".parse().unwrap()).unwrap();
        let [Interface { name, index, mac: None, is_up, mtu, speed, addresses }] = &lo.all[..] else {
            panic!("{lo:?}")
        };
        assert_eq!((name.as_str(), *index, *is_up, *speed), ("lo", 1, true, 3000));
        assert!(*mtu >= 1500 && addresses.contains(&("127.0.0.1".parse().unwrap(), 8)), "{lo:?}");
        let address = lo.addresses()[0];
        assert_eq!((address.interface, address.prefix, address.mtu), (0, 8, *mtu));
    }

    #[test]
    fn an_interface_that_is_missing_is_named() {
        let error = Interfaces::find(&"nothere0".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("no interface `nothere0`") && error.contains("lo"), "{error}");
    }

    #[test]
    fn a_prefix_is_what_the_mask_says() {
        let prefix = |mask: &str| super::prefix(&mask.parse().unwrap());
        assert_eq!((prefix("255.255.255.0"), prefix("0.0.0.0"), prefix("ffff:ffff::")), (24, 0, 32));
    }
}
