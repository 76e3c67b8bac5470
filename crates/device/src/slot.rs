//! Slots: which process of a host a QPN belongs to.
//!
//! A QPN is a slot (10 bits) and an index (14 bits). A process claims a slot by binding the abstract unix socket
//! `@weir/slot/N`: exclusive within the network namespace, across users, and gone with the process. Slot N listens on
//! UDP port 20480 + N. The same socket takes packets that the holder of port 4791 hands over.

use crate::clock;
use crate::trust::Trust;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind, recvmsg, sendto, setsockopt,
    socket, sockopt,
};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use weir_link::{Arrival, Ports};

/// Bits of a QPN that count QPs within a process.
pub const INDEX_BITS: u32 = 14;
/// Slots of a network namespace.
pub const SLOTS: u16 = 1 << (24 - INDEX_BITS);
/// UDP port of slot 0.
pub const FIRST_PORT: u16 = 20480;

/// The slot in a QPN.
pub fn slot_of(qpn: u32) -> u16 {
    (qpn >> INDEX_BITS) as u16
}

/// A claimed slot; dropping it gives it back.
pub struct Slot {
    number: u16,
    socket: OwnedFd,
    trust: Trust,
}

impl Slot {
    /// Claims a free slot, and its port with it. Error: EMFILE-like trouble, or all slots are taken.
    pub fn claim() -> io::Result<(Slot, Ports)> {
        // Starting anywhere keeps a new process from inheriting the packets of one that just died.
        let start = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))? as u16;
        for step in 0..SLOTS {
            let number = start.wrapping_add(step) % SLOTS;
            // 0 and 0xffffff are reserved QPNs, and 1 is the GSI: the first slot would hold two of them.
            if number == 0 || number == SLOTS - 1 {
                continue;
            }
            let Ok(socket) = claim_name(&name(number)) else { continue };
            match Ports::bind(FIRST_PORT + number) {
                Ok(ports) => {
                    // The kernel says of each packet whose process sent it.
                    setsockopt(&socket, sockopt::PassCred, &true)?;
                    return Ok((Slot { number, socket, trust: Trust::new() }, ports));
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "all slots of this host are taken"))
    }

    /// Its number, below [`SLOTS`].
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Takes a packet that was handed over into `buffer`, where the arrival says; `None` if there is none. Packets from
    /// anybody but the holder of port 4791 are dropped, and so are those of a holder who is not believed.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Option<Arrival> {
        for _ in 0..FORGERIES {
            let (len, sender) = self.take(buffer)?;
            let Some(header) = buffer[..len].first_chunk::<HEADER>() else { continue };
            let arrival = decode(header, len - HEADER);
            if sender.is_some_and(|user| self.trust.believes(user, arrival.from.ip(), clock::now())) {
                return Some(arrival);
            }
        }
        None
    }

    /// Takes a message: its length, and the holder's user if it is of the holder.
    fn take(&self, buffer: &mut [u8]) -> Option<(usize, Option<u32>)> {
        let (mut parts, mut control) = ([IoSliceMut::new(buffer)], Control([0; CONTROL]));
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut control.0), flags).ok()?;
        let named = message.address.is_some_and(|from| from.as_abstract() == Some(HOLDER.as_bytes()));
        // An error: something came along for which there was no room.
        let user = message.cmsgs().ok().and_then(|mut controls| {
            controls.find_map(|control| match control {
                ControlMessageOwned::ScmCredentials(sender) => Some(sender.uid()),
                _ => None,
            })
        });
        Some((message.bytes, user.filter(|_| named)))
    }
}

/// Room for credentials and no more: descriptors that somebody sends along must not become ours.
const CONTROL: usize = size_of::<libc::cmsghdr>() + size_of::<libc::ucred>().next_multiple_of(size_of::<usize>());

#[repr(align(8))]
struct Control([u8; CONTROL]);

impl AsRawFd for Slot {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// The holder of port 4791, who hands packets to the slots that they are for. Its name is exclusive, but any local user
/// may be the one who has it: what it hands over counts as a foreign adapter's, never as a Weir peer's, and only from a
/// user whom [`Trust`] believes.
pub struct Holder(OwnedFd);

const HOLDER: &str = "weir/roce";
/// Packets of others that are dropped at a time: a flood of them must not keep the engine.
const FORGERIES: usize = 16;

impl Holder {
    /// Claims the name; `AddrInUse` if another process has it.
    pub fn claim() -> io::Result<Holder> {
        claim_name(HOLDER).map(Holder)
    }

    /// Hands a packet over, once at most: a full or missing receiver loses it, as a wire would.
    pub fn hand_over(&self, slot: u16, arrival: &Arrival, packet: &[u8]) {
        let mut message = [0; HEADER + 9216];
        let Some(body) = message.get_mut(HEADER..HEADER + packet.len()) else { return };
        body.copy_from_slice(packet);
        message[..HEADER].copy_from_slice(&encode(arrival));
        let Ok(to) = UnixAddr::new_abstract(name(slot).as_bytes()) else { return };
        let _ = sendto(self.0.as_raw_fd(), &message[..HEADER + packet.len()], &to, MsgFlags::MSG_DONTWAIT);
    }
}

impl AsRawFd for Holder {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn name(slot: u16) -> String {
    format!("weir/slot/{slot}")
}

fn claim_name(name: &str) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(socket)
}

/// Source address and port, our address, interface.
const HEADER: usize = 16 + 2 + 16 + 4;

fn encode(arrival: &Arrival) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..16].copy_from_slice(&octets(arrival.from.ip()));
    out[16..18].copy_from_slice(&arrival.from.port().to_be_bytes());
    out[18..34].copy_from_slice(&octets(arrival.to));
    out[34..].copy_from_slice(&arrival.ifindex.to_be_bytes());
    out
}

fn decode(header: &[u8; HEADER], len: usize) -> Arrival {
    let address = |at: usize| -> IpAddr {
        let octets: [u8; 16] = header[at..at + 16].try_into().expect("sixteen bytes");
        Ipv6Addr::from(octets).to_canonical()
    };
    let port = u16::from_be_bytes([header[16], header[17]]);
    let mut arrival = Arrival::new(SocketAddr::new(address(0), port), weir_wire::ROCE_PORT, HEADER, len);
    arrival.to = address(18);
    arrival.ifindex = u32::from_be_bytes(header[34..].try_into().expect("four bytes"));
    arrival
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_exclusive_and_come_back() {
        let (a, _ports) = Slot::claim().unwrap();
        let (b, _more) = Slot::claim().unwrap();
        assert_ne!(a.number(), b.number());
        let number = a.number();
        assert!(claim_name(&name(number)).is_err());
        drop(a);
        assert!(claim_name(&name(number)).is_ok());
    }

    #[test]
    fn only_the_holder_hands_over() {
        let (mut slot, _ports) = Slot::claim().unwrap();
        let mut arrival = Arrival::new("10.1.2.3:7777".parse().unwrap(), 4791, 0, 5);
        arrival.to = "10.1.2.4".parse().unwrap();
        arrival.ifindex = 3;
        let mut buffer = [0; 100];
        let forger = Holder(claim_name(&format!("weir/test/{}", std::process::id())).unwrap());
        forger.hand_over(slot.number(), &arrival, b"forged");
        assert!(slot.receive(&mut buffer).is_none());
        // Another test process may hold the real name.
        if let Ok(holder) = Holder::claim() {
            holder.hand_over(slot.number(), &arrival, b"hello");
            let got = slot.receive(&mut buffer).unwrap();
            assert_eq!(
                (got.from, got.to, got.ifindex, &buffer[got.start..][..got.len]),
                (arrival.from, arrival.to, 3, &b"hello"[..])
            );
        }
    }

    /// In a network namespace of its own, and with a user of its own: both are a thread's.
    #[test]
    fn another_user_is_believed_if_he_has_the_port() {
        std::thread::spawn(|| {
            if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
                eprintln!("skipped: a network namespace needs root");
                return;
            }
            let (mut slot, _ports) = Slot::claim().unwrap();
            let arrival = Arrival::new("10.1.2.3:7777".parse().unwrap(), 4791, 0, 5);
            let number = slot.number();
            let mut got = |port: Option<&'static str>, user: u32| {
                let hand_over = move || {
                    // SAFETY: changes the user of this thread only, where the library's call would change all.
                    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
                    let holder = Holder::claim().unwrap();
                    let port = port.map(|address| std::net::UdpSocket::bind(address).unwrap());
                    holder.hand_over(number, &arrival, b"hello");
                    (holder, port)
                };
                let _held = std::thread::spawn(hand_over).join().unwrap();
                slot.trust = Trust::new();
                slot.receive(&mut [0; 100]).is_some()
            };
            assert!(got(None, 0), "root");
            assert!(!got(None, 12345), "he took the name and nothing else");
            assert!(!got(Some("[::]:4791"), 12345), "the port of the other family");
            assert!(got(Some("0.0.0.0:4791"), 12345));
            assert!(!got(None, 65534), "whoever that is");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn descriptors_that_come_along_are_not_taken() {
        use nix::sys::socket::{ControlMessage, sendmsg};
        let (slot, _ports) = Slot::claim().unwrap();
        let sender = claim_name(&format!("weir/test/files/{}", std::process::id())).unwrap();
        let (file, to) = ([sender.as_raw_fd()], UnixAddr::new_abstract(name(slot.number()).as_bytes()).unwrap());
        let parts = [io::IoSlice::new(b"something")];
        let files = [ControlMessage::ScmRights(&file)];
        sendmsg(sender.as_raw_fd(), &parts, &files, MsgFlags::empty(), Some(&to)).unwrap();
        let (mut parts, mut buffer) = (Control([0; CONTROL]), [0; 100]);
        let mut into = [IoSliceMut::new(&mut buffer)];
        let socket = slot.socket.as_raw_fd();
        let message = recvmsg::<UnixAddr>(socket, &mut into, Some(&mut parts.0), MsgFlags::empty()).unwrap();
        assert!(message.flags.contains(MsgFlags::MSG_CTRUNC), "the kernel says that they were left out");
    }
}
