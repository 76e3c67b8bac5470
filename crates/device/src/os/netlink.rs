//! Queries the kernel for interfaces and their addresses over a descriptor that may stay open. A query needs no
//! further descriptor, so that a process at its descriptor limit can still query its interfaces.

use crate::Errno;
use crate::os::grow::zeroed;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A routing socket in the network namespace of the thread that opened it.
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `IFF_*`.
    pub flags: u32,
    /// Bytes.
    pub mtu: u32,
    /// MAC address; zeros if the interface has none.
    pub mac: [u8; 6],
    /// The driver of a virtual interface, such as `veth` or `vlan`; empty for others.
    pub kind: String,
    /// In the order of the kernel's list: IPv4, then IPv6.
    pub addresses: Vec<IpAddr>,
}

/// How often a list is requested that changes during the dump.
const TRIES: usize = 8;
/// Receive buffer, bytes: the kernel sends a dump in messages of at most this size.
const ROOM: usize = 32 << 10;
/// Timeout of a response of the kernel, seconds.
const RESPONSE_TIMEOUT: libc::time_t = 1;

/// `struct ifinfomsg`: family, padding, type, index, flags, change.
const LINK_HEADER: usize = 16;
/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
const ADDRESS_HEADER: usize = 8;

impl Netlink {
    /// Opens a socket. Errors: EMFILE, ENFILE, and the error of a sandbox that forbids it.
    pub fn open() -> Result<Netlink, Errno> {
        // SAFETY: creates a descriptor, which `socket` owns if it is valid; setsockopt reads a timeval of the given
        // length.
        unsafe {
            let socket = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE);
            if socket < 0 {
                return Err(Errno::last());
            }
            let socket = OwnedFd::from_raw_fd(socket);
            let timeout = libc::timeval { tv_sec: RESPONSE_TIMEOUT, tv_usec: 0 };
            let length = size_of_val(&timeout) as libc::socklen_t;
            let value = (&raw const timeout).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, length);
            Ok(Netlink::over(socket))
        }
    }

    /// Queries over this routing socket.
    pub fn over(socket: OwnedFd) -> Netlink {
        Netlink { socket, sequence: 0 }
    }

    /// The descriptor of the open socket.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The kernel's number of the network namespace of the socket; 0 if it gives none (before Linux 5.14).
    pub fn namespace(&self) -> u64 {
        let (mut number, mut length) = (0u64, size_of::<u64>() as libc::socklen_t);
        let value = (&raw mut number).cast();
        // SAFETY: writes a number of the given length.
        unsafe { libc::getsockopt(self.descriptor(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, value, &raw mut length) };
        number
    }

    /// All interfaces. Errors: those of the kernel; ENOMEM; EBUSY if the list changes during every dump.
    pub fn links(&mut self) -> Result<Vec<Link>, Errno> {
        let mut links: Vec<Link> =
            self.list(libc::RTM_GETLINK, libc::RTM_NEWLINK)?.iter().filter_map(|body| link(body)).collect();
        for (index, address) in self.list(libc::RTM_GETADDR, libc::RTM_NEWADDR)?.iter().filter_map(|body| address(body))
        {
            if let Some(link) = links.iter_mut().find(|link| link.index == index) {
                link.addresses.push(address);
            }
        }
        Ok(links)
    }

    /// The bodies of the messages of a list.
    fn list(&mut self, request: u16, wanted: u16) -> Result<Vec<Vec<u8>>, Errno> {
        for _ in 0..TRIES {
            self.ask(request)?;
            if let Some(found) = self.take(wanted)? {
                return Ok(found);
            }
        }
        Err(Errno(libc::EBUSY))
    }

    fn ask(&mut self, request: u16) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        // A header and a family; family 0 requests all families.
        const LENGTH: usize = HEADER + 4;
        let mut message = [0u8; LENGTH];
        message[..4].copy_from_slice(&(LENGTH as u32).to_ne_bytes());
        message[4..6].copy_from_slice(&request.to_ne_bytes());
        message[6..8].copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
        message[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        // SAFETY: sends `LENGTH` bytes of an array of that length.
        let sent = unsafe { libc::send(self.descriptor(), message.as_ptr().cast(), LENGTH, 0) };
        if sent < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    /// Receives a dump. `None` if the list changed during the dump.
    fn take(&mut self, wanted: u16) -> Result<Option<Vec<Vec<u8>>>, Errno> {
        let (mut found, mut complete) = (Vec::new(), true);
        // Not from a vector, which would end the process if memory is short.
        let mut buffer = zeroed(ROOM)?;
        loop {
            // SAFETY: receives at most `ROOM` bytes into a buffer of that length.
            let count = unsafe { libc::recv(self.descriptor(), buffer.as_mut_ptr().cast(), ROOM, libc::MSG_TRUNC) };
            let count = match usize::try_from(count) {
                Ok(count) if count <= ROOM => count,
                Ok(_) => return Err(Errno(libc::EMSGSIZE)),
                Err(_) => match Errno::last() {
                    Errno(libc::EINTR) => continue,
                    error => return Err(error),
                },
            };
            // Messages of an earlier dump may still arrive if its end was not received.
            for message in messages(&buffer[..count]).filter(|message| message.sequence == self.sequence) {
                complete &= message.flags & DUMP_INTERRUPTED == 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(complete.then_some(found)),
                    libc::NLMSG_ERROR => {
                        let error = word(message.body).map_or(libc::EPROTO, |error| -(error as i32));
                        return Err(Errno(error));
                    }
                    _ if message.kind == wanted => found.push(message.body.to_vec()),
                    _ => {}
                }
            }
        }
    }
}

const HEADER: usize = size_of::<libc::nlmsghdr>();
/// `NLM_F_DUMP_INTR`.
const DUMP_INTERRUPTED: u16 = 0x10;

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = word(bytes)? as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: half(&message[4..])?,
            flags: half(&message[6..])?,
            sequence: word(&message[8..])?,
            body: &message[HEADER..],
        })
    })
}

/// Types and values of `struct rtattr`s.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes)?);
        let attribute = bytes.get(..length).filter(|attribute| attribute.len() >= 4)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((half(&attribute[2..])?, &attribute[4..]))
    })
}

fn link(body: &[u8]) -> Option<Link> {
    let (index, flags) = (word(body.get(4..)?)?, word(body.get(8..)?)?);
    let mut link =
        Link { index, name: String::new(), flags, mtu: 0, mac: [0; 6], kind: String::new(), addresses: Vec::new() };
    for (kind, value) in attributes(body.get(LINK_HEADER..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MTU => link.mtu = word(value)?,
            libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
            libc::IFLA_LINKINFO => {
                link.kind = attributes(value)
                    .find(|(kind, _)| *kind == libc::IFLA_INFO_KIND)
                    .map_or_else(String::new, |(_, kind)| text(kind));
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// A string, which may end with a zero.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into()
}

/// An address and the index of its interface. On a point-to-point link `IFA_ADDRESS` is the address of the other end.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let index = word(body.get(4..)?)?;
    let find =
        |wanted| attributes(body.get(ADDRESS_HEADER..)?).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let value = find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))?;
    match i32::from(*body.first()?) {
        libc::AF_INET => Some((index, <[u8; 4]>::try_from(value).ok()?.into())),
        libc::AF_INET6 => Some((index, <[u8; 16]>::try_from(value).ok()?.into())),
        _ => None,
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn half(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses must match those of getifaddrs, which sends its own netlink queries.
    #[test]
    fn interfaces_are_those_of_getifaddrs() {
        let mut netlink = Netlink::open().unwrap();
        for _ in 0..2 {
            let links = netlink.links().unwrap();
            let mut expected: Vec<(String, IpAddr)> = nix::ifaddrs::getifaddrs()
                .unwrap()
                .filter_map(|found| {
                    let storage = found.address?;
                    let v4 = storage.as_sockaddr_in().map(|v4| v4.ip().into());
                    let address = v4.or_else(|| storage.as_sockaddr_in6().map(|v6| v6.ip().into()))?;
                    // The interface name of an IPv4 address may carry a label.
                    Some((found.interface_name.split(':').next()?.to_owned(), address))
                })
                .collect();
            let mut ours: Vec<(String, IpAddr)> = links
                .iter()
                .flat_map(|link| link.addresses.iter().map(|address| (link.name.clone(), *address)))
                .collect();
            expected.sort();
            ours.sort();
            assert_eq!(ours, expected);
            let lo = links.iter().find(|link| link.name == "lo").expect("every namespace has a loopback interface");
            assert_eq!((lo.index, lo.mac), (1, [0; 6]));
            assert!(lo.mtu >= 1280 && lo.flags & libc::IFF_LOOPBACK as u32 != 0, "{lo:?}");
        }
    }

    #[test]
    fn damaged_messages_end_the_list() {
        let mut message = [0u8; 32];
        (message[0], message[4]) = (32, 16);
        assert_eq!(
            messages(&message).map(|message| (message.kind, message.body.len())).collect::<Vec<_>>(),
            [(16, 16)]
        );
        assert_eq!(messages(&message[..31]).count(), 0);
        assert_eq!(messages(&[0; 100]).count(), 0, "a length of zero ends the iteration");
        assert_eq!(attributes(&[0; 100]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 7]).collect::<Vec<_>>(), [(1, &[7u8][..])]);
        for length in 0..32 {
            assert_eq!(link(&message[..length]), None);
            assert_eq!(address(&message[..length]), None);
        }
    }
}
