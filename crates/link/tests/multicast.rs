//! Multicast groups on a port that another socket holds for unicast, on the loopback interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use weir_link::{Carrier, DisabledFeatures, Group, Inbox, Outbox, Ports};

const LOOPBACK: u32 = 1;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 5);

#[test]
fn each_member_of_a_group_gets_a_copy_and_no_other_socket() {
    let port = free_port();
    let mut holder = carrier();
    holder.listen(port).unwrap();
    let (mut first, mut second) = (carrier(), carrier());
    let membership = first.join(GROUP.into(), port, LOOPBACK).unwrap();
    second.join(GROUP.into(), port, LOOPBACK).unwrap();
    assert!(first.fds().contains(&membership));
    let mut sender = carrier();

    send(&mut sender, GROUP, port, b"to the group");
    for member in [&mut first, &mut second] {
        assert_eq!(received(member), Some((GROUP.into(), port, b"to the group".to_vec())));
        assert_eq!(received(member), None);
    }
    assert_eq!(received(&mut holder), None, "the holder has not joined the group");
    // Unicast datagrams still go to the holder only.
    send(&mut sender, Ipv4Addr::LOCALHOST, port, b"to the holder");
    assert_eq!(received(&mut holder), Some((Ipv4Addr::LOCALHOST.into(), port, b"to the holder".to_vec())));
    assert_eq!((received(&mut first), received(&mut second)), (None, None));

    first.leave(membership);
    assert!(!first.fds().contains(&membership));
    send(&mut sender, GROUP, port, b"again");
    assert_eq!((received(&mut first), received(&mut second).is_some()), (None, true));
}

#[test]
fn a_port_that_is_bound_exclusively_is_not_shared() {
    let port = free_port();
    let _alone = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    let error = carrier().join(GROUP.into(), port, LOOPBACK).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

/// RoCEv2 adapters send UDP checksum 0 over IPv6 too; the kernel drops such datagrams by default.
#[test]
fn datagrams_without_checksum_are_accepted_on_the_roce_port() {
    /// The libc crate does not define it for Linux.
    const UDP_NO_CHECK6_TX: i32 = 101;
    let (port, mut holder) = (free_port(), carrier());
    holder.listen(port).unwrap();
    let adapter = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let (one, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the option takes an int, and its size is given.
    let rc =
        unsafe { libc::setsockopt(adapter.as_raw_fd(), libc::SOL_UDP, UDP_NO_CHECK6_TX, (&raw const one).cast(), len) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    adapter.send_to(b"unchecked", (Ipv6Addr::LOCALHOST, port)).unwrap();
    assert_eq!(received(&mut holder), Some((Ipv6Addr::LOCALHOST.into(), port, b"unchecked".to_vec())));
    // A slot's port receives packets without ICRC, so that the UDP checksum is required there.
    let mut slot = carrier();
    adapter.send_to(b"unchecked", (Ipv6Addr::LOCALHOST, slot.port())).unwrap();
    assert_eq!(received(&mut slot), None);
}

/// A carrier with a port of its own.
fn carrier() -> Ports {
    loop {
        match Ports::bind(free_port(), DisabledFeatures::empty()) {
            Ok(ports) => return ports,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        }
    }
}

fn free_port() -> u16 {
    UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap().local_addr().unwrap().port()
}

fn send(carrier: &mut Ports, to: Ipv4Addr, port: u16, bytes: &[u8]) {
    let mut outbox = Outbox::new(1000, 1);
    outbox.bytes[..bytes.len()].copy_from_slice(bytes);
    outbox.len = bytes.len();
    let group = Group::new(SocketAddr::new(to.into(), port), Ipv4Addr::LOCALHOST.into(), LOOPBACK);
    outbox.groups.push(Group { len: bytes.len(), segment: bytes.len(), hops: 1, ..group });
    carrier.send(&outbox).unwrap();
}

/// The next datagram, if any arrives: its destination address and port, and its bytes.
fn received(carrier: &mut Ports) -> Option<(IpAddr, u16, Vec<u8>)> {
    let mut inbox = Inbox::new(2);
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        if carrier.receive(&mut inbox).unwrap() > 0 {
            let arrival = inbox.arrivals[0];
            assert_eq!(arrival.ifindex, LOOPBACK);
            return Some((arrival.to, arrival.to_port, inbox.bytes[arrival.start..][..arrival.len].to_vec()));
        }
    }
    None
}
