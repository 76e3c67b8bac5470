//! The socket that is connected to the destination of most packets.

mod common;

use common::outbox;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use weir_link::{Carrier, DisabledFeatures, Inbox, Outbox, Ports};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A peer's socket on an unused port.
fn socket(here: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((here, 0)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// The sockets of a process, on an unused port.
fn bind(disabled: DisabledFeatures) -> Ports {
    (22800..30000).find_map(|port| Ports::bind(port, disabled).ok()).expect("there is a free port")
}

fn group(from: IpAddr, to: SocketAddr, bytes: &[u8]) -> Outbox {
    let mut outbox = outbox(&[(to, from, bytes, bytes.len())]);
    outbox.groups[0].any_id = true;
    outbox
}

/// Sends to an address until the carrier wants a socket for it; it gets that. Returns the number of sends.
fn connect(ports: &mut Ports, here: IpAddr, to: SocketAddr) -> usize {
    let sends = (1..100_000).find(|_| {
        ports.send(&group(here, to, b"first")).unwrap();
        ports.wants_socket()
    });
    ports.add_socket().unwrap();
    sends.expect("it wants a socket")
}

/// The next datagrams: what, from where, to which address.
fn receive(ports: &mut Ports, count: usize) -> Vec<(Vec<u8>, SocketAddr, IpAddr)> {
    let (mut inbox, mut found) = (Inbox::new(4), Vec::new());
    let end = Instant::now() + Duration::from_secs(10);
    while found.len() < count {
        assert!(Instant::now() < end, "only {found:?}");
        ports.receive(&mut inbox).unwrap();
        for arrival in &inbox.arrivals {
            assert_eq!(arrival.to_port, ports.port());
            found.extend(inbox.datagrams(arrival).map(|bytes| (bytes.to_vec(), arrival.from, arrival.to)));
        }
    }
    found
}

#[test]
fn datagrams_of_the_destination_and_of_others_come_once_and_in_order() {
    for here in [V4, V6] {
        let mut ports = bind(DisabledFeatures::empty());
        let (peer, other) = (socket(here), socket(here));
        let (to, own) = (peer.local_addr().unwrap(), SocketAddr::new(here, ports.port()));
        peer.send_to(b"0", own).unwrap();
        let sockets = ports.fds().len();
        assert_eq!(connect(&mut ports, here, to), 257);
        assert_eq!(ports.fds().len(), sockets + 1);
        assert!(!ports.wants_socket());
        peer.send_to(b"1", own).unwrap();
        other.send_to(b"2", own).unwrap();
        let mut found = receive(&mut ports, 3);
        // Nothing says in which order those of two peers come.
        found.sort();
        let expected = [(b"0", &peer), (b"1", &peer), (b"2", &other)];
        assert_eq!(found, expected.map(|(bytes, from)| (bytes.to_vec(), from.local_addr().unwrap(), here)));
        let mut buffer = [0; 16];
        peer.set_nonblocking(true).unwrap();
        while let Ok(got) = peer.recv_from(&mut buffer) {
            assert_eq!(got, (5, own));
        }
        peer.set_nonblocking(false).unwrap();
        ports.send(&group(here, to, b"later")).unwrap();
        assert_eq!((peer.recv_from(&mut buffer).unwrap(), &buffer[..5]), ((5, own), &b"later"[..]));
        for round in 0..50u8 {
            peer.send_to(&[round], own).unwrap();
        }
        let numbers: Vec<u8> = receive(&mut ports, 50).into_iter().map(|(bytes, ..)| bytes[0]).collect();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    }
}

#[test]
fn a_link_of_an_interface_gets_a_socket_that_is_bound_to_it() {
    let mut ports = bind(DisabledFeatures::empty());
    let (peer, own) = (socket(V4), SocketAddr::new(V4, ports.port()));
    let to = peer.local_addr().unwrap();
    // SAFETY: a name that ends with a zero.
    let loopback = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
    let sockets = ports.fds().len();
    let send = |ports: &mut Ports, ifindex| {
        let mut outbox = group(V4, to, b"x");
        outbox.groups[0].ifindex = ifindex;
        ports.send(&outbox).unwrap();
    };
    let connects = |ports: &mut Ports, ifindex| {
        (0..100_000).any(|_| {
            send(ports, ifindex);
            ports.wants_socket()
        })
    };
    assert!(connects(&mut ports, loopback));
    ports.add_socket().unwrap();
    assert_eq!(ports.fds().len(), sockets + 1);
    peer.send_to(b"1", own).unwrap();
    assert_eq!(receive(&mut ports, 1), [(b"1".to_vec(), to, V4)]);
    // That to the same address by its route is another destination, for which there is none.
    assert!(connects(&mut ports, 0));
    ports.add_socket().unwrap();
    assert_eq!(ports.fds().len(), sockets + 1);
    let mut buffer = [0; 16];
    peer.set_nonblocking(true).unwrap();
    while let Ok(got) = peer.recv_from(&mut buffer) {
        assert_eq!(got, (1, own));
    }
    peer.set_nonblocking(false).unwrap();
    for ifindex in [loopback, 0] {
        send(&mut ports, ifindex);
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (1, own));
    }
}

#[test]
fn earlier_datagrams_come_first() {
    let mut ports = bind(DisabledFeatures::empty());
    let peer = socket(V4);
    let own = SocketAddr::new(V4, ports.port());
    (0..5u8).for_each(|number| assert_eq!(peer.send_to(&[number], own).unwrap(), 1));
    connect(&mut ports, V4, peer.local_addr().unwrap());
    (5..10u8).for_each(|number| assert_eq!(peer.send_to(&[number], own).unwrap(), 1));
    let numbers: Vec<u8> = receive(&mut ports, 10).into_iter().map(|(bytes, ..)| bytes[0]).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
}

#[test]
fn the_port_stays_that_of_one_process() {
    let mut ports = bind(DisabledFeatures::empty());
    let peer = socket(V4);
    connect(&mut ports, V4, peer.local_addr().unwrap());
    let again = Ports::bind(ports.port(), DisabledFeatures::empty());
    assert_eq!(again.err().map(|error| error.kind()), Some(ErrorKind::AddrInUse));
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    for address in [V4, Ipv4Addr::UNSPECIFIED.into()] {
        let taken = socket.bind(&SocketAddr::new(address, ports.port()).into());
        assert_eq!(taken.err().map(|error| error.kind()), Some(ErrorKind::AddrInUse), "{address}");
    }
}

/// The kernel tells a connected socket that the port of an earlier datagram was closed.
#[test]
fn no_datagram_is_lost_because_the_destination_was_closed() {
    let mut ports = bind(DisabledFeatures::empty());
    let peer = socket(V4);
    let to = peer.local_addr().unwrap();
    connect(&mut ports, V4, to);
    drop(peer);
    for _ in 0..3 {
        ports.send(&group(V4, to, b"nowhere")).unwrap();
    }
    let peer = UdpSocket::bind(to).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    ports.send(&group(V4, to, b"here")).unwrap();
    let mut buffer = [0; 16];
    assert_eq!((peer.recv(&mut buffer).unwrap(), &buffer[..4]), (4, &b"here"[..]));
    assert!(ports.take_send_error().is_none());
}

#[test]
fn the_socket_moves_to_a_new_destination_that_gets_most() {
    let mut ports = bind(DisabledFeatures::empty());
    let (one, two) = (socket(V4), socket(V4));
    connect(&mut ports, V4, one.local_addr().unwrap());
    let sockets = ports.fds();
    assert_eq!(connect(&mut ports, V4, two.local_addr().unwrap()), 16 * 256 + 1);
    assert_eq!(ports.fds(), sockets);
    let own = SocketAddr::new(V4, ports.port());
    one.send_to(b"1", own).unwrap();
    two.send_to(b"2", own).unwrap();
    let mut found: Vec<_> = receive(&mut ports, 2).into_iter().map(|(bytes, from, _)| (bytes, from)).collect();
    found.sort();
    let expected = [(b"1", &one), (b"2", &two)];
    assert_eq!(found, expected.map(|(bytes, from)| (bytes.to_vec(), from.local_addr().unwrap())));
}

#[test]
fn without_the_feature_no_socket_is_wanted() {
    let mut ports = bind(DisabledFeatures::UDP_CONNECT);
    let peer = socket(V4);
    for _ in 0..10_000 {
        ports.send(&group(V4, peer.local_addr().unwrap(), b"x")).unwrap();
        assert!(!ports.wants_socket());
    }
}
