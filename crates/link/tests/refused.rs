//! Kernels that refuse UDP_SEGMENT, UDP_GRO, IPv6 or single datagrams: the fallback is used, and each error is
//! reported once.

mod common;

use common::outbox;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};
use weir_link::{Allowed, Carrier, DisabledFeatures, Group, Inbox, Iovec, Outbox, Ports, SendErrorKind, Udp};
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Bytes of a packet without its ICRC.
const BODY: usize = 500;

/// A socket on an unused port.
fn bind(disabled: DisabledFeatures) -> Udp {
    let free = |port: &u16| Udp::bind(*port, false, disabled, &Allowed::default()).ok();
    (21800..30000).find_map(|port| free(&port)).expect("there is a free port")
}

fn addressed(udp: &Udp) -> SocketAddr {
    SocketAddr::new(HERE, udp.port())
}

/// The kernel refuses UDP_SEGMENT from a socket that sends no checksums, as it does (before Linux 6.11) towards an
/// interface that computes none.
fn without_checksums(udp: &Udp) {
    let on = 1i32;
    // SAFETY: passes an int on the stack and its size.
    let done = unsafe {
        let (fd, len) = (udp.as_raw_fd(), size_of::<i32>() as libc::socklen_t);
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const on).cast(), len)
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

fn envelope(from: &Udp, to: &Udp, ip_id: u16) -> Envelope {
    Envelope { src: HERE, dst: HERE, src_port: from.port(), dst_port: to.port(), ip_id, dont_fragment: true }
}

/// Packet `id` of a burst, with the ICRC of segment `id` of one send.
fn packet(from: &Udp, to: &Udp, id: u16) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..BODY).map(|at| (at as u16 ^ id) as u8).collect();
    packet.extend(icrc::compute(&envelope(from, to, id), &packet).to_le_bytes());
    packet
}

/// Receives the next `count` datagrams.
fn receive(udp: &mut Udp, count: usize) -> Vec<Vec<u8>> {
    let (mut inbox, mut datagrams) = (Inbox::new(8), Vec::new());
    let end = Instant::now() + Duration::from_secs(10);
    while datagrams.len() < count {
        assert!(Instant::now() < end, "only {} of {count} arrived", datagrams.len());
        udp.receive(&mut inbox).unwrap();
        datagrams.extend(inbox.arrivals.iter().flat_map(|arrival| inbox.datagrams(arrival).map(<[u8]>::to_vec)));
    }
    assert_eq!(datagrams.len(), count);
    datagrams
}

/// Checks the datagrams of a burst that the kernel refuses as one send.
fn burst_alone(mut from: Udp, errno: i32) {
    let mut to = bind(DisabledFeatures::empty());
    let burst: Vec<u8> = (0..10).flat_map(|id| packet(&from, &to, id)).collect();
    let alone = packet(&from, &to, 0);
    let (address, segment) = (addressed(&to), BODY + 4);
    let sent = outbox(&[(address, HERE, &alone, segment), (address, HERE, &burst, segment)]);
    assert_eq!(from.max_segments(), 64, "before the first refusal");
    for round in 0..3 {
        from.send(&sent).unwrap();
        let datagrams = receive(&mut to, 11);
        for (at, datagram) in datagrams.iter().enumerate() {
            let expected = packet(&from, &to, at.saturating_sub(1) as u16);
            assert_eq!(datagram[..BODY], expected[..BODY], "round {round}, datagram {at}");
            // An adapter sees the Identification, which is 0 now, and must find the ICRC right.
            let verdict = icrc::verify(&envelope(&from, &to, 0), datagram);
            assert_eq!(verdict, Verdict::Good, "round {round}, datagram {at}");
        }
        assert_eq!(from.max_segments(), 1, "segments are disabled");
    }
    let error = from.take_send_error().expect("the refusal is reported");
    assert_eq!((error.kind, error.errno, error.to), (SendErrorKind::Segments, errno, address));
    assert_eq!(from.take_send_error(), None, "only once");
}

#[test]
fn segments_that_the_kernel_refuses_go_one_by_one() {
    let from = bind(DisabledFeatures::empty());
    without_checksums(&from);
    burst_alone(from, libc::EINVAL);
}

#[test]
fn segments_that_are_switched_off_go_one_by_one() {
    burst_alone(bind(DisabledFeatures::UDP_SEGMENT), libc::EIO);
}

#[test]
fn payload_in_place_goes_one_by_one_too() {
    let (mut from, mut to) = (bind(DisabledFeatures::empty()), bind(DisabledFeatures::empty()));
    without_checksums(&from);
    let memory: Vec<u8> = (0..3000u32).map(|at| (at * 7) as u8).collect();
    let mut outbox = Outbox::new(4096, 4);
    outbox.bytes[..30].fill(9);
    outbox.groups.push(Group { segment: 1010, ..Group::new(addressed(&to), HERE, 0) });
    outbox.start_iovecs();
    for at in 0..3 {
        outbox.add_iovec(Iovec { addr: outbox.addr(at * 10), len: 10 });
        outbox.add_iovec(Iovec { addr: memory[at * 1000..].as_ptr().addr(), len: 1000 });
    }
    from.send(&outbox).unwrap();
    for (datagram, payload) in receive(&mut to, 3).iter().zip(memory.chunks(1000)) {
        assert_eq!((&datagram[..10], &datagram[10..]), (&[9; 10][..], payload));
    }
    assert_eq!(from.max_segments(), 1);

    // Unmapped memory is still reported, and the datagrams before it are still sent.
    outbox.iovecs.last_mut().unwrap().addr = 64;
    assert_eq!(from.send(&outbox).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    assert_eq!(receive(&mut to, 2).len(), 2);
}

#[test]
fn a_group_that_is_too_long_does_not_disable_segments() {
    let (mut from, mut to) = (bind(DisabledFeatures::empty()), bind(DisabledFeatures::empty()));
    let long = vec![5; 66_000];
    from.send(&outbox(&[(addressed(&to), HERE, &long, 33_000)])).unwrap();
    let lengths: Vec<usize> = receive(&mut to, 2).iter().map(Vec::len).collect();
    assert_eq!(lengths, [33_000; 2]);
    assert_eq!((from.max_segments(), from.take_send_error()), (64, None));
}

#[test]
fn each_kind_of_loss_is_reported_once() {
    let mut from = bind(DisabledFeatures::empty());
    let (long, broadcast) = (vec![5; 66_000], SocketAddr::from(([255, 255, 255, 255], 9)));
    let sent = outbox(&[(broadcast, HERE, &[1; 100], 100), (addressed(&from), HERE, &long, 66_000)]);
    for _ in 0..100 {
        from.send(&sent).unwrap();
    }
    let reported: Vec<_> = std::iter::from_fn(|| from.take_send_error()).collect();
    let reported: Vec<_> = reported.iter().map(|error| (error.kind, error.errno, error.to, error.len)).collect();
    let own = addressed(&from);
    let expected =
        [(SendErrorKind::Send, libc::EACCES, broadcast, 100), (SendErrorKind::Send, libc::EMSGSIZE, own, 66_000)];
    assert!(reported.len() == 2 && expected.iter().all(|error| reported.contains(error)), "{reported:?}");
    assert_eq!(from.max_segments(), 64);
}

/// A closed port is not reported, because the peer may have ended.
#[test]
fn a_closed_port_is_not_reported() {
    let mut from = bind(DisabledFeatures::empty());
    // A port that no test binds.
    let sent = outbox(&[(SocketAddr::new(HERE, 1), HERE, &[1; 100], 100)]);
    for _ in 0..10 {
        from.send(&sent).unwrap();
    }
    assert_eq!(from.take_send_error(), None);
}

#[test]
fn without_udp_gro_datagrams_are_received_and_sent_one_by_one() {
    let (mut from, mut to) = (bind(DisabledFeatures::empty()), bind(DisabledFeatures::UDP_GRO));
    assert_eq!(to.max_segments(), 1);
    let burst: Vec<u8> = (0..10).flat_map(|id| packet(&from, &to, id)).collect();
    from.send(&outbox(&[(addressed(&to), HERE, &burst, BODY + 4)])).unwrap();
    let (mut inbox, mut arrivals) = (Inbox::new(8), 0);
    let end = Instant::now() + Duration::from_secs(10);
    while arrivals < 10 {
        assert!(Instant::now() < end, "only {arrivals} of 10 arrived");
        to.receive(&mut inbox).unwrap();
        assert!(inbox.arrivals.iter().all(|arrival| arrival.len == BODY + 4));
        arrivals += inbox.arrivals.len();
    }
    assert_eq!((arrivals, from.max_segments()), (10, 64));
}

#[test]
fn without_ipv6_only_ipv4_is_used() {
    let bind = |disabled| (21800..30000).find_map(|port| Ports::bind(port, disabled).ok()).expect("a free port");
    let mut ports = bind(DisabledFeatures::IPV6);
    assert_eq!(families(&ports.fds()), [libc::AF_INET]);
    let to: SocketAddr = "[::1]:9".parse().unwrap();
    for _ in 0..10 {
        ports.send(&outbox(&[(to, to.ip(), &[1; 100], 100)])).unwrap();
    }
    let error = ports.take_send_error().expect("the missing family is reported");
    assert_eq!((error.kind, error.errno, error.to), (SendErrorKind::Send, libc::EAFNOSUPPORT, to));
    assert_eq!(ports.take_send_error(), None);
}

fn families(sockets: &[RawFd]) -> Vec<i32> {
    let family = |socket: &RawFd| {
        let (mut family, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
        // SAFETY: fills an int on the stack.
        let done = unsafe {
            let value = (&raw mut family).cast();
            libc::getsockopt(*socket, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &mut len)
        };
        assert_eq!(done, 0);
        family
    };
    sockets.iter().map(family).collect()
}
