//! The carrier that any user has: a UDP socket, with UDP_SEGMENT on the way out and UDP_GRO on the way in.
//!
//! Source addresses and interfaces are set and told by IP_PKTINFO: one wildcard socket serves all addresses of a
//! host. With IP_MTU_DISCOVER=DO the kernel sends Identification 0 (segment i of a group: i) and DF, which the ICRC
//! covers.

use crate::inbox::{Arrival, Inbox, SLOT};
use crate::outbox::{Group, Outbox, Piece};
use crate::{Carrier, cmsg};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};

/// How often a full send buffer is waited for, a millisecond each, before a group is lost as on a wire.
const WAITS: usize = 5;
/// Messages per system call, either way.
const BATCH: usize = 8;
/// The most segments that every kernel with UDP_SEGMENT takes.
const MAX_SEGMENTS: usize = 64;
/// What the socket buffers are asked to be; the kernel gives a user what net.core.rmem_max allows.
const WANTED_BUFFER: usize = 4 << 20;
/// The libc crate does not have it for this system.
const IPV6_MULTICAST_ALL: i32 = 29;

/// A UDP socket on one port of one address family.
pub struct Udp {
    socket: Socket,
    port: u16,
    v6: bool,
    receive: Box<ReceiveBatch>,
    /// Messages to ask for at once: each one that is not there costs as much as a failed call.
    ask: usize,
    segments: usize,
}

impl Udp {
    /// Binds the wildcard address of a family (`v6`) to a port. `AddrInUse` if somebody has it.
    pub fn bind(port: u16, v6: bool) -> io::Result<Udp> {
        Self::open(v6)?.bound(any(v6, port))
    }

    /// The same for a port on which others receive multicast groups.
    pub fn bind_beside_groups(port: u16, v6: bool) -> io::Result<Udp> {
        let udp = Self::open(v6)?;
        udp.socket.set_reuse_address(true)?;
        udp.bound(any(v6, port))
    }

    /// Receives what an interface takes in for a multicast group at a port. Every socket that does so gets a copy.
    pub fn join(group: IpAddr, port: u16, ifindex: u32) -> io::Result<Udp> {
        let udp = Self::open(group.is_ipv6())?;
        udp.socket.set_reuse_address(true)?;
        // Bound to the group, it takes nobody's other packets away.
        match group {
            IpAddr::V4(v4) => {
                let udp = udp.bound(SocketAddr::new(group, port))?;
                udp.socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(ifindex))?;
                Ok(udp)
            }
            IpAddr::V6(v6) => {
                let udp = udp.bound(SocketAddrV6::new(v6, port, 0, ifindex).into())?;
                udp.socket.join_multicast_v6(&v6, ifindex)?;
                Ok(udp)
            }
        }
    }

    fn open(v6: bool) -> io::Result<Udp> {
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM.cloexec().nonblocking(), Some(Protocol::UDP))?;
        if v6 {
            socket.set_only_v6(true)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            // Groups that other sockets have joined are not ours. Old kernels do not know the option.
            let _ = set(&socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
        } else {
            set(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        }
        // Not to be had on old kernels: then each datagram comes and goes alone.
        let gro = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        for (plain, forced) in [(libc::SO_RCVBUF, libc::SO_RCVBUFFORCE), (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE)] {
            if set(&socket, libc::SOL_SOCKET, forced, WANTED_BUFFER as i32).is_err() {
                let _ = set(&socket, libc::SOL_SOCKET, plain, WANTED_BUFFER as i32);
            }
        }
        let segments = if gro { MAX_SEGMENTS } else { 1 };
        Ok(Udp { socket, port: 0, v6, receive: ReceiveBatch::new(), ask: 1, segments })
    }

    fn bound(mut self, to: SocketAddr) -> io::Result<Udp> {
        self.socket.bind(&to.into())?;
        self.port = to.port();
        Ok(self)
    }

    /// Bytes that the kernel holds for us before it drops: the whole buffer, its own overhead included.
    pub fn receive_buffer(&self) -> usize {
        self.socket.recv_buffer_size().unwrap_or(0)
    }

    /// Whether its family is IPv6.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// The port that it is bound to.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn send_groups(&mut self, outbox: &Outbox, groups: &[Group]) -> io::Result<()> {
        let mut rest = groups;
        let mut missing = None;
        let mut waits = 0;
        while !rest.is_empty() {
            let mut batch = SendBatch::new();
            for group in rest.iter().take(BATCH) {
                batch.add(outbox, group);
            }
            match batch.send(self.socket.as_raw_fd()) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && waits < WAITS => {
                    // The send buffer is full of datagrams that have not left: it drains, unless the link stands still.
                    self.wait_writable();
                    waits += 1;
                }
                // Somebody's port is closed (an ICMP error of an earlier datagram), no route, no address: this group
                // is lost as a packet on a wire would be, and the others still go.
                Err(error) => {
                    if error.raw_os_error() == Some(libc::EFAULT) {
                        missing = Some(error);
                    }
                    rest = &rest[1..];
                }
            }
        }
        missing.map_or(Ok(()), Err)
    }

    fn wait_writable(&self) {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd, on the stack.
        unsafe { libc::poll(&mut poll, 1, 1) };
    }
}

impl AsRawFd for Udp {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Carrier for Udp {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        self.send_groups(outbox, &outbox.groups)
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        inbox.arrivals.clear();
        let slots = inbox.slots().min(BATCH).min(self.ask);
        match self.receive.receive(self.socket.as_raw_fd(), &mut inbox.bytes, slots) {
            Ok(count) => {
                if count == slots {
                    self.ask = (2 * slots).min(BATCH);
                }
                for slot in 0..count {
                    if let Some(arrival) = self.receive.arrival(slot, self.port) {
                        inbox.arrivals.push(arrival);
                    }
                }
                Ok(count)
            }
            // Nothing there; or ECONNREFUSED and its like, which are news of datagrams sent earlier.
            Err(_) => {
                self.ask = (self.ask / 2).max(1);
                Ok(0)
            }
        }
    }

    fn max_segments(&self) -> usize {
        self.segments
    }

    fn takes_pieces(&self) -> bool {
        true
    }

    fn listen(&mut self, _port: u16) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn fds(&self) -> Vec<RawFd> {
        vec![self.socket.as_raw_fd()]
    }
}

fn any(v6: bool, port: u16) -> SocketAddr {
    let address: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SocketAddr::new(address, port)
}

fn set(socket: &Socket, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: an int option by value.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the control messages of one datagram: source or destination address, and segment size.
const CONTROL: usize = 128;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

const _: () =
    assert!(size_of::<Piece>() == size_of::<libc::iovec>() && align_of::<Piece>() == align_of::<libc::iovec>());

/// Arguments of one sendmmsg. Lives on the stack of one call; pointers go into itself once it no longer moves.
struct SendBatch {
    count: usize,
    names: [MaybeUninit<libc::sockaddr_storage>; BATCH],
    name_lens: [libc::socklen_t; BATCH],
    iovecs: [libc::iovec; BATCH],
    /// Pieces in the outbox and their count; null: the one in `iovecs`.
    gathers: [(*const libc::iovec, usize); BATCH],
    controls: [MaybeUninit<Control>; BATCH],
    control_lens: [usize; BATCH],
}

impl SendBatch {
    fn new() -> Self {
        SendBatch {
            count: 0,
            names: [MaybeUninit::uninit(); BATCH],
            name_lens: [0; BATCH],
            iovecs: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH],
            gathers: [(std::ptr::null(), 0); BATCH],
            controls: [MaybeUninit::uninit(); BATCH],
            control_lens: [0; BATCH],
        }
    }

    fn add(&mut self, outbox: &Outbox, group: &Group) {
        let at = self.count;
        let mut control = cmsg::Writer::new(&mut self.controls[at].write(Control([0; CONTROL])).0);
        match (group.from, group.to) {
            (IpAddr::V4(from), _) => control.push(
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                &libc::in_pktinfo {
                    ipi_ifindex: group.ifindex as i32,
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                },
            ),
            (IpAddr::V6(from), _) => control.push(
                libc::IPPROTO_IPV6,
                libc::IPV6_PKTINFO,
                &libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: from.octets() },
                    ipi6_ifindex: group.ifindex,
                },
            ),
        }
        if group.hops != 0 {
            let (level, kind) = match group.to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
            };
            control.push(level, kind, &i32::from(group.hops));
        }
        if group.len > group.segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(group.segment as u16));
        }
        self.control_lens[at] = control.len();
        let to = socket2::SockAddr::from(group.to);
        // SAFETY: both are sockaddr_storage; all of it is initialised.
        self.names[at].write(unsafe { *to.as_ptr().cast::<libc::sockaddr_storage>() });
        self.name_lens[at] = to.len();
        self.gathers[at] = match group.pieces {
            (_, 0) => {
                let bytes = &outbox.bytes[group.start..group.start + group.len];
                self.iovecs[at] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                (std::ptr::null(), 1)
            }
            // A piece is laid out as an iovec.
            (first, count) => (outbox.pieces[first..first + count].as_ptr().cast(), count),
        };
        self.count += 1;
    }

    /// How many groups were sent, at least one; the error is the first group's.
    fn send(&mut self, fd: RawFd) -> io::Result<usize> {
        // SAFETY: zero is a valid mmsghdr.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for (at, message) in messages.iter_mut().enumerate().take(self.count) {
            let header = &mut message.msg_hdr;
            header.msg_name = self.names[at].as_mut_ptr().cast();
            header.msg_namelen = self.name_lens[at];
            let (pieces, count) = self.gathers[at];
            header.msg_iov = if pieces.is_null() { &raw mut self.iovecs[at] } else { pieces.cast_mut() };
            header.msg_iovlen = count;
            header.msg_control = self.controls[at].as_mut_ptr().cast();
            header.msg_controllen = self.control_lens[at];
        }
        // SAFETY: `count` headers whose pointers lead into self and the caller's outbox, alive during the call. What pieces
        // lead to the kernel reads as it finds it, or says EFAULT.
        // The bare call, for the library's is a point of cancellation: a program's thread that is cancelled here would
        // take the engine with it.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendmmsg, fd, messages.as_mut_ptr(), self.count as u32, libc::MSG_NOSIGNAL)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// Arguments of recvmmsg, set up once: they point into themselves, hence boxed and never moved out.
struct ReceiveBatch {
    names: [MaybeUninit<libc::sockaddr_storage>; BATCH],
    iovecs: [libc::iovec; BATCH],
    controls: [Control; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

// SAFETY: the raw pointers lead into the structure itself and, during a call, into the inbox.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    fn new() -> Box<Self> {
        Box::new(ReceiveBatch {
            names: [MaybeUninit::uninit(); BATCH],
            iovecs: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH],
            controls: [Control([0; CONTROL]); BATCH],
            // SAFETY: zero is a valid mmsghdr.
            messages: unsafe { std::mem::zeroed() },
        })
    }

    fn receive(&mut self, fd: RawFd, bytes: &mut [u8], slots: usize) -> io::Result<usize> {
        for (at, slot) in bytes.chunks_exact_mut(SLOT).take(slots).enumerate() {
            self.iovecs[at] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT };
            let header = &mut self.messages[at].msg_hdr;
            header.msg_name = self.names[at].as_mut_ptr().cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &mut self.iovecs[at];
            header.msg_iovlen = 1;
            header.msg_control = self.controls[at].0.as_mut_ptr().cast();
            header.msg_controllen = CONTROL;
            header.msg_flags = 0;
        }
        // SAFETY: `slots` headers whose pointers lead into self and `bytes`, all alive during the call.
        let got = unsafe {
            let nowhere = std::ptr::null_mut::<libc::timespec>();
            libc::syscall(libc::SYS_recvmmsg, fd, self.messages.as_mut_ptr(), slots as u32, libc::MSG_DONTWAIT, nowhere)
        };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize) }
    }

    /// What arrived in a slot; `None` if it was cut off or came from no address.
    fn arrival(&self, slot: usize, to_port: u16) -> Option<Arrival> {
        let message = &self.messages[slot];
        let header = &message.msg_hdr;
        if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        // SAFETY: the kernel filled msg_namelen bytes of a socket address.
        let from = unsafe { socket_addr(self.names[slot].as_ptr(), header.msg_namelen as usize)? };
        let len = message.msg_len as usize;
        let mut arrival = Arrival::new(from, to_port, slot * SLOT, len);
        for (level, kind, data) in cmsg::read(&self.controls[slot].0[..header.msg_controllen.min(CONTROL)]) {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if data.len() >= 12 => {
                    arrival.ifindex = u32::from_ne_bytes(data[..4].try_into().expect("four bytes"));
                    arrival.to = IpAddr::from(<[u8; 4]>::try_from(&data[8..12]).expect("four bytes"));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= 20 => {
                    arrival.to = IpAddr::from(<[u8; 16]>::try_from(&data[..16]).expect("sixteen bytes"));
                    arrival.ifindex = u32::from_ne_bytes(data[16..20].try_into().expect("four bytes"));
                }
                (libc::SOL_UDP, libc::UDP_GRO) if data.len() >= 4 => {
                    arrival.segment = u32::from_ne_bytes(data[..4].try_into().expect("four bytes")) as usize;
                }
                _ => {}
            }
        }
        Some(arrival)
    }
}

/// # Safety
/// `storage` must hold `len` initialised bytes of a socket address.
unsafe fn socket_addr(storage: *const libc::sockaddr_storage, len: usize) -> Option<SocketAddr> {
    if len >= size_of::<libc::sockaddr_in>() {
        // SAFETY: at least sockaddr_in's bytes are there, and both families start alike.
        let v4 = unsafe { &*storage.cast::<libc::sockaddr_in>() };
        if i32::from(v4.sin_family) == libc::AF_INET {
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            return Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)));
        }
        if i32::from(v4.sin_family) == libc::AF_INET6 && len >= size_of::<libc::sockaddr_in6>() {
            // SAFETY: the length says so.
            let v6 = unsafe { &*storage.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            // Comparable with addresses of GIDs: without scope; the interface is in the arrival.
            return Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)));
        }
    }
    None
}
