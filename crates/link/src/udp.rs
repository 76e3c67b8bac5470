//! The carrier that any user can open: a UDP socket, with UDP_SEGMENT for sends and UDP_GRO for receives.
//!
//! IP_PKTINFO sets and returns local addresses and interfaces, so that one wildcard socket serves all addresses of a
//! host. With IP_MTU_DISCOVER=DO the kernel sends Identification 0 (segment i of a group: i) and DF, which the ICRC
//! covers.

use crate::allow::Allowed;
use crate::frequent::Destination;
use crate::inbox::Inbox;
use crate::messages::{BATCH, ReceiveBatch, SendBatch};
use crate::outbox::{Group, Outbox};
use crate::send_error::SendErrors;
use crate::single_datagram::SingleDatagram;
use crate::{Carrier, DisabledFeatures, SendError, SendErrorKind, clock};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};

/// How often a send waits for room in the send buffer, a millisecond each, before the group is lost as on a wire.
const WAITS: usize = 5;
/// The number of segments that every kernel with UDP_SEGMENT accepts.
const MAX_SEGMENTS: usize = 64;
/// Requested size of the socket buffers, bytes; an unprivileged user gets at most net.core.rmem_max.
const WANTED_BUFFER: usize = 4 << 20;
/// The libc crate does not define these two for Linux.
const IPV6_MULTICAST_ALL: i32 = 29;
const UDP_NO_CHECK6_RX: i32 = 102;

/// A UDP socket bound to one port of one address family.
pub struct Udp {
    socket: Socket,
    port: u16,
    v6: bool,
    outgoing: Box<SendBatch>,
    incoming: Box<ReceiveBatch>,
    /// Messages to request per receive call: each message slot that stays empty costs as much as a failed call.
    ask: usize,
    segments: Segments,
    single_datagram: SingleDatagram,
    send_errors: SendErrors,
    /// What it is connected to.
    destination: Option<Destination>,
    /// Which addresses it receives from.
    allowed: Allowed,
}

/// Whether the kernel accepts several datagrams in one send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segments {
    /// It accepts them, as far as known.
    Taken,
    /// `DisabledFeatures::UDP_SEGMENT`: the first group counts as refused, as some kernels and interfaces refuse it.
    ToBeRefused,
    /// It refuses them.
    Refused,
}

/// Errors by which kernels refuse segments. EIO: the interface computes no checksums (Linux before 6.11), or IPsec is
/// on the path. EMSGSIZE: the first datagram or the group is too long; sending that datagram alone shows which.
const REFUSALS: [i32; 6] = [libc::EIO, libc::EINVAL, libc::EOPNOTSUPP, libc::ENOPROTOOPT, libc::EMSGSIZE, libc::ENOSYS];

impl Udp {
    /// Binds the wildcard address of a family (`v6`) to a port. `AddrInUse` if another socket has the port.
    pub fn bind(port: u16, v6: bool, disabled: DisabledFeatures, allowed: &Allowed) -> io::Result<Udp> {
        Self::open(v6, disabled, allowed)?.bound(any(v6, port))
    }

    /// The same for a port that foreign adapters send to and that other sockets share for multicast groups.
    pub fn bind_beside_groups(port: u16, v6: bool, disabled: DisabledFeatures, allowed: &Allowed) -> io::Result<Udp> {
        let udp = Self::open(v6, disabled, allowed)?;
        udp.take_zero_checksums();
        udp.socket.set_reuse_address(true)?;
        udp.bound(any(v6, port))
    }

    /// Receives the datagrams of an interface for a multicast group at a port. Every socket that joins gets a copy.
    pub fn join(
        group: IpAddr,
        port: u16,
        ifindex: u32,
        disabled: DisabledFeatures,
        allowed: &Allowed,
    ) -> io::Result<Udp> {
        let udp = Self::open(group.is_ipv6(), disabled, allowed)?;
        udp.take_zero_checksums();
        udp.socket.set_reuse_address(true)?;
        // Bound to the group address, so that it receives no other datagrams of the port.
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

    /// A socket at the same port, which gets all later datagrams of one destination in place of this one. This one still
    /// has the earlier ones.
    pub fn connected(&self, to: Destination, disabled: DisabledFeatures) -> io::Result<Udp> {
        let mut udp = Self::open(self.v6, disabled, &self.allowed)?;
        udp.outgoing = SendBatch::new(true);
        if to.ifindex != 0 {
            // Linux before 5.7 permits it only with CAP_NET_RAW.
            set(&udp.socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, to.ifindex as i32)?;
        }
        // Only for a moment, and for sockets of the same user: no other process can take the port.
        udp.socket.set_reuse_port(true)?;
        self.socket.set_reuse_port(true)?;
        let bound = udp.bound(SocketAddr::new(to.from, self.port));
        self.socket.set_reuse_port(false)?;
        let mut udp = bound?;
        udp.socket.set_reuse_port(false)?;
        udp.connect(to)?;
        Ok(udp)
    }

    /// Connects a connected socket to another destination from the same address, by the same interface.
    pub fn connect(&mut self, to: Destination) -> io::Result<()> {
        self.socket.connect(&to.to.into())?;
        self.destination = Some(to);
        Ok(())
    }

    /// What it is connected to.
    pub fn destination(&self) -> Option<Destination> {
        self.destination
    }

    /// Why the kernel has no UDP_SEGMENT, UDP_GRO or IPv6; `None` if it has the feature. An interface may still
    /// refuse segments, which only the first send shows.
    pub fn refusal(feature: DisabledFeatures) -> Option<io::Error> {
        let (domain, option) = match feature {
            DisabledFeatures::UDP_SEGMENT => (Domain::IPV4, Some((libc::UDP_SEGMENT, 0))),
            DisabledFeatures::UDP_GRO => (Domain::IPV4, Some((libc::UDP_GRO, 1))),
            DisabledFeatures::IPV6 => (Domain::IPV6, None),
            _ => return None,
        };
        let socket = Socket::new(domain, Type::DGRAM.cloexec(), Some(Protocol::UDP));
        let tried = socket.and_then(|socket| match option {
            Some((name, value)) => set(&socket, libc::SOL_UDP, name, value),
            None => Ok(()),
        });
        tried.err()
    }

    fn open(v6: bool, disabled: DisabledFeatures, allowed: &Allowed) -> io::Result<Udp> {
        if v6 && disabled.contains(DisabledFeatures::IPV6) {
            return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
        }
        let domain = if v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::DGRAM.cloexec().nonblocking(), Some(Protocol::UDP))?;
        // Before the socket has a port, so that nothing comes in between.
        allowed.restrict(&socket, v6)?;
        if v6 {
            socket.set_only_v6(true)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            // Without this, the socket receives groups that other sockets joined. Linux before 4.20 lacks the option.
            let _ = set(&socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
        } else {
            set(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        }
        // Linux before 5.0 has no UDP_GRO. Segments to a receiver on the same machine may arrive uncut there, so that
        // each datagram is sent alone too.
        let gro =
            !disabled.contains(DisabledFeatures::UDP_GRO) && set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        // 0 enables nothing: the call tests whether the kernel knows the option.
        let segments = match gro && set(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok() {
            true if disabled.contains(DisabledFeatures::UDP_SEGMENT) => Segments::ToBeRefused,
            true => Segments::Taken,
            false => Segments::Refused,
        };
        for (plain, forced) in [(libc::SO_RCVBUF, libc::SO_RCVBUFFORCE), (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE)] {
            if set(&socket, libc::SOL_SOCKET, forced, WANTED_BUFFER as i32).is_err() {
                let _ = set(&socket, libc::SOL_SOCKET, plain, WANTED_BUFFER as i32);
            }
        }
        Ok(Udp {
            socket,
            port: 0,
            v6,
            outgoing: SendBatch::new(false),
            incoming: ReceiveBatch::new(),
            ask: 1,
            segments,
            single_datagram: SingleDatagram::new(),
            send_errors: SendErrors::default(),
            destination: None,
            allowed: allowed.clone(),
        })
    }

    /// Accepts datagrams over IPv6 with UDP checksum 0, as foreign adapters send them; the kernel drops them
    /// otherwise. The ICRC of datagrams at this port is always checked.
    fn take_zero_checksums(&self) {
        if self.v6 {
            // The option is available since Linux 3.16.
            let _ = set(&self.socket, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1);
        }
    }

    fn bound(mut self, to: SocketAddr) -> io::Result<Udp> {
        self.socket.bind(&to.into())?;
        self.port = to.port();
        Ok(self)
    }

    /// Bytes that the kernel buffers before it drops: the whole buffer, including the kernel's overhead.
    pub fn receive_buffer(&self) -> usize {
        self.socket.recv_buffer_size().unwrap_or(0)
    }

    /// Whether the address family is IPv6.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// The port that the socket is bound to.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn send_groups(&mut self, outbox: &Outbox, groups: &[Group]) -> io::Result<()> {
        let mut rest = groups;
        let mut missing = None;
        let mut waits = 0;
        while let Some(first) = rest.first() {
            match self.send_first(outbox, rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if self.try_again(&error, &mut waits) => {}
                // No route, no address, a firewall: this group is lost as on a wire, and the other groups are still
                // sent.
                Err(error) => {
                    let outcome = if self.may_go_alone(first, &error) {
                        self.send_alone(outbox, first, &error, &mut waits)
                    } else {
                        Err(error)
                    };
                    if let Err(error) = outcome {
                        self.note(SendErrorKind::Send, first, &error);
                        if error.raw_os_error() == Some(libc::EFAULT) {
                            missing = Some(error);
                        }
                    }
                    rest = &rest[1..];
                }
            }
        }
        missing.map_or(Ok(()), Err)
    }

    /// Sends the first groups; returns how many, at least one. The error is that of the first group.
    fn send_first(&mut self, outbox: &Outbox, groups: &[Group]) -> io::Result<usize> {
        if self.segments == Segments::Taken {
            return self.outgoing.send(self.socket.as_raw_fd(), outbox, groups);
        }
        match groups.iter().take_while(|group| group.count() < 2).count() {
            // The error of an interface that cannot send segments.
            0 => Err(io::Error::from_raw_os_error(libc::EIO)),
            plain => self.outgoing.send(self.socket.as_raw_fd(), outbox, &groups[..plain]),
        }
    }

    /// Whether to repeat the send; waits first if the send buffer is full.
    fn try_again(&self, error: &io::Error, waits: &mut usize) -> bool {
        match error.kind() {
            io::ErrorKind::Interrupted => true,
            // The kernel reports what happened to an earlier datagram, such as ECONNREFUSED, and has not sent this one.
            _ if self.destination.is_some() && *waits == 0 => {
                *waits = 1;
                true
            }
            io::ErrorKind::WouldBlock if *waits < WAITS => {
                // The send buffer is full of datagrams that have not left: it drains unless the link is stalled.
                self.wait_writable();
                *waits += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether the datagrams of a refused group may be accepted one by one.
    fn may_go_alone(&self, group: &Group, error: &io::Error) -> bool {
        group.count() > 1 && error.raw_os_error().is_some_and(|errno| REFUSALS.contains(&errno))
    }

    /// Sends the datagrams of a group one by one, because the kernel refused the group with `refusal`. If the first
    /// datagram is refused too, segments are not the reason, and the group is lost. Otherwise, except after EMSGSIZE,
    /// later groups are limited to one segment.
    #[cold]
    fn send_alone(&mut self, outbox: &Outbox, group: &Group, refusal: &io::Error, waits: &mut usize) -> io::Result<()> {
        let mut outcome = Ok(());
        for index in 0..group.count() {
            let sent = loop {
                let Some(parts) = self.single_datagram.datagram(outbox, group, index, self.port) else {
                    break Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
                };
                match self.outgoing.send_alone(self.socket.as_raw_fd(), group, parts) {
                    Err(error) if self.try_again(&error, waits) => {}
                    sent => break sent,
                }
            };
            match sent {
                Ok(()) if index == 0 && self.segments != Segments::Refused => {
                    // EMSGSIZE without a datagram that is too long says nothing about segments.
                    if refusal.raw_os_error() != Some(libc::EMSGSIZE) {
                        self.segments = Segments::Refused;
                        self.note(SendErrorKind::Segments, group, refusal);
                    }
                }
                Ok(()) => {}
                Err(error) if index == 0 => return Err(error),
                // The kernel may still accept the rest; to the receiver this is an ordinary loss.
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Records a failed send for the log. Ignores EFAULT, which the engine handles, ECONNREFUSED (the peer's port is
    /// closed) and EAGAIN (the link is slow).
    #[cold]
    fn note(&mut self, kind: SendErrorKind, group: &Group, error: &io::Error) {
        let Some(errno) = error.raw_os_error() else { return };
        if matches!(errno, libc::EFAULT | libc::ECONNREFUSED | libc::EAGAIN) {
            return;
        }
        let Group { to, from, ifindex, segment, len, .. } = *group;
        let error = SendError { kind, errno, to, from, ifindex, len: segment.min(len) };
        self.send_errors.note(error, clock::monotonic());
    }

    fn wait_writable(&self) {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd on the stack.
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
        let mut received = self.incoming.receive(self.socket.as_raw_fd(), &mut inbox.bytes, slots);
        let is_empty = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if self.destination.is_some() && received.as_ref().is_err_and(|error| !is_empty(error)) {
            // What happened to an earlier datagram: the kernel reports it before it gives what has arrived.
            received = self.incoming.receive(self.socket.as_raw_fd(), &mut inbox.bytes, slots);
        }
        match received {
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
            // The program has closed the socket.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ENOTSOCK)) => Err(error),
            // Nothing has arrived; or ECONNREFUSED and similar errors, which concern datagrams sent earlier.
            Err(_) => {
                self.ask = (self.ask / 2).max(1);
                Ok(0)
            }
        }
    }

    fn max_segments(&self) -> usize {
        if self.segments == Segments::Refused { 1 } else { MAX_SEGMENTS }
    }

    fn take_send_error(&mut self) -> Option<SendError> {
        self.send_errors.take()
    }

    fn supports_iovecs(&self) -> bool {
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
    // SAFETY: passes a pointer to an int and its size.
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
