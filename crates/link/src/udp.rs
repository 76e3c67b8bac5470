//! The carrier that any user has: a UDP socket, with UDP_SEGMENT on the way out and UDP_GRO on the way in.
//!
//! Source addresses and interfaces are set and told by IP_PKTINFO: one wildcard socket serves all addresses of a
//! host. With IP_MTU_DISCOVER=DO the kernel sends Identification 0 (segment i of a group: i) and DF, which the ICRC
//! covers.

use crate::Carrier;
use crate::inbox::Inbox;
use crate::messages::{BATCH, ReceiveBatch, SendBatch};
use crate::outbox::{Group, Outbox};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};

/// How often a full send buffer is waited for, a millisecond each, before a group is lost as on a wire.
const WAITS: usize = 5;
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
    outgoing: Box<SendBatch>,
    incoming: Box<ReceiveBatch>,
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
        Ok(Udp { socket, port: 0, v6, outgoing: SendBatch::new(), incoming: ReceiveBatch::new(), ask: 1, segments })
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
            match self.outgoing.send(self.socket.as_raw_fd(), outbox, rest) {
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
        match self.incoming.receive(self.socket.as_raw_fd(), &mut inbox.bytes, slots) {
            Ok(count) => {
                if count == slots {
                    self.ask = (2 * slots).min(BATCH);
                }
                for slot in 0..count {
                    if let Some(arrival) = self.incoming.arrival(slot, self.port) {
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
