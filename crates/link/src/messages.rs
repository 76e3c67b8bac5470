//! Arguments of the system calls of a UDP socket: messages with their addresses and control messages, set up once and
//! changed only where a call differs from the previous call.

use crate::cmsg;
use crate::inbox::{Arrival, SLOT};
use crate::outbox::{Group, Iovec, Outbox};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// Messages per system call, in either direction.
pub const BATCH: usize = 8;

/// Bytes for the control messages of one datagram: source or destination address, hop limit, and segment size.
const CONTROL: usize = 128;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL]);

const _: () =
    assert!(size_of::<Iovec>() == size_of::<libc::iovec>() && align_of::<Iovec>() == align_of::<libc::iovec>());

/// Arguments of sendmmsg. They point into themselves, so they are boxed and never moved.
pub struct SendBatch {
    names: [libc::sockaddr_storage; BATCH],
    iovecs: [libc::iovec; BATCH],
    controls: [Control; BATCH],
    messages: [libc::mmsghdr; BATCH],
    /// The socket is connected: messages have neither a destination nor a source.
    connected: bool,
    /// The current contents of `names` and `controls`.
    described: [Option<Envelope>; BATCH],
}

/// Addressing of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Envelope {
    to: SocketAddr,
    from: IpAddr,
    ifindex: u32,
    hops: u8,
    /// Bytes of a segment; 0 for a single datagram.
    segment: usize,
}

// SAFETY: the raw pointers point into the structure itself and, during a call, into the outbox.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// An empty batch, boxed because its pointers point into it.
    pub fn new(connected: bool) -> Box<Self> {
        // SAFETY: zero is valid for the system structures; `controls` and `described` are initialised here.
        let mut batch = Box::new(unsafe {
            SendBatch {
                names: std::mem::zeroed(),
                iovecs: std::mem::zeroed(),
                controls: [Control([0; CONTROL]); BATCH],
                messages: std::mem::zeroed(),
                connected,
                described: [None; BATCH],
            }
        });
        for at in 0..BATCH {
            let (name, control) = (batch.names[at..].as_mut_ptr(), batch.controls[at].0.as_mut_ptr());
            let header = &mut batch.messages[at].msg_hdr;
            header.msg_name = if connected { std::ptr::null_mut() } else { name.cast() };
            header.msg_control = control.cast();
        }
        batch
    }

    /// Sends the first groups; returns how many, at least one. The error is that of the first group.
    pub fn send(&mut self, fd: RawFd, outbox: &Outbox, groups: &[Group]) -> io::Result<usize> {
        let count = groups.len().min(BATCH);
        for (at, group) in groups.iter().take(count).enumerate() {
            self.set(at, outbox, group);
        }
        let messages = self.messages.as_mut_ptr();
        // SAFETY: `count` headers with pointers into `self` and the outbox, alive during the call. The kernel
        // reads application memory behind the iovecs as it finds it, or returns EFAULT.
        // Raw system calls, because the library's functions are cancellation points: a thread of the program that is
        // cancelled here would never release the engine.
        let sent = unsafe {
            match count {
                // sendmsg returns bytes, not messages.
                1 => libc::syscall(libc::SYS_sendmsg, fd, messages, libc::MSG_NOSIGNAL).min(1),
                _ => libc::syscall(libc::SYS_sendmmsg, fd, messages, count as u32, libc::MSG_NOSIGNAL),
            }
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Sends one datagram of a group alone: `parts` are its iovecs.
    pub fn send_alone(&mut self, fd: RawFd, group: &Group, parts: &[libc::iovec]) -> io::Result<()> {
        self.address(0, group, 0);
        let header = &mut self.messages[0].msg_hdr;
        (header.msg_iov, header.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len());
        // SAFETY: one header with pointers into `self` and to `parts`, alive during the call. The kernel reads
        // memory behind `parts` as it finds it, or returns EFAULT. A raw system call, as above.
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, header, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Writes a group's addressing into message `at`, with segments of `segment` bytes (0: a single datagram).
    fn address(&mut self, at: usize, group: &Group, segment: usize) {
        let (to, from, ifindex, hops) = (group.to, group.from, group.ifindex, group.hops);
        let envelope = Envelope { to, from, ifindex, hops, segment };
        if self.described[at] != Some(envelope) {
            self.describe(at, envelope);
        }
    }

    fn set(&mut self, at: usize, outbox: &Outbox, group: &Group) {
        self.address(at, group, if group.len > group.segment { group.segment } else { 0 });
        let header = &mut self.messages[at].msg_hdr;
        (header.msg_iov, header.msg_iovlen) = match group.iovecs {
            (_, 0) => {
                let bytes = &outbox.bytes[group.start..group.start + group.len];
                self.iovecs[at] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                (&raw mut self.iovecs[at], 1)
            }
            // An `Iovec` has the layout of `libc::iovec`.
            (first, count) => (outbox.iovecs[first..first + count].as_ptr().cast_mut().cast(), count),
        };
    }

    fn describe(&mut self, at: usize, envelope: Envelope) {
        let mut control = cmsg::Writer::new(&mut self.controls[at].0);
        match envelope.from {
            _ if self.connected => {}
            IpAddr::V4(from) => control.push(
                libc::IPPROTO_IP,
                libc::IP_PKTINFO,
                &libc::in_pktinfo {
                    ipi_ifindex: envelope.ifindex as i32,
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(from.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                },
            ),
            IpAddr::V6(from) => control.push(
                libc::IPPROTO_IPV6,
                libc::IPV6_PKTINFO,
                &libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: from.octets() },
                    ipi6_ifindex: envelope.ifindex,
                },
            ),
        }
        if envelope.hops != 0 {
            let (level, kind) = match envelope.to {
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
            };
            control.push(level, kind, &i32::from(envelope.hops));
        }
        if envelope.segment != 0 {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(envelope.segment as u16));
        }
        let header = &mut self.messages[at].msg_hdr;
        header.msg_controllen = control.len();
        if !self.connected {
            let to = socket2::SockAddr::from(envelope.to);
            header.msg_namelen = to.len();
            // SAFETY: both are sockaddr_storage; all of it is initialised.
            self.names[at] = unsafe { *to.as_ptr().cast::<libc::sockaddr_storage>() };
        }
        self.described[at] = Some(envelope);
    }
}

/// Arguments of recvmmsg, set up once. They point into themselves, so they are boxed and never moved.
pub struct ReceiveBatch {
    names: [MaybeUninit<libc::sockaddr_storage>; BATCH],
    iovecs: [libc::iovec; BATCH],
    controls: [Control; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

// SAFETY: the raw pointers point into the structure itself and, during a call, into the inbox.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// An empty batch, boxed because its pointers point into it.
    pub fn new() -> Box<Self> {
        Box::new(ReceiveBatch {
            names: [MaybeUninit::uninit(); BATCH],
            iovecs: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH],
            controls: [Control([0; CONTROL]); BATCH],
            // SAFETY: zero is a valid mmsghdr.
            messages: unsafe { std::mem::zeroed() },
        })
    }

    /// Receives into up to `slots` slots; returns how many were filled, at least one.
    pub fn receive(&mut self, fd: RawFd, bytes: &mut [u8], slots: usize) -> io::Result<usize> {
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
        // SAFETY: `slots` headers with pointers into `self` and `bytes`, all alive during the call.
        let got = unsafe {
            let (messages, nowhere) = (self.messages.as_mut_ptr(), std::ptr::null_mut::<libc::timespec>());
            match slots {
                1 => libc::syscall(libc::SYS_recvmsg, fd, messages, libc::MSG_DONTWAIT),
                _ => libc::syscall(libc::SYS_recvmmsg, fd, messages, slots as u32, libc::MSG_DONTWAIT, nowhere),
            }
        };
        match got {
            ..0 => Err(io::Error::last_os_error()),
            len if slots == 1 => {
                self.messages[0].msg_len = len as u32;
                Ok(1)
            }
            count => Ok(count as usize),
        }
    }

    /// The arrival in a slot; `None` if it was truncated or has no source address.
    pub fn arrival(&self, slot: usize, to_port: u16) -> Option<Arrival> {
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
        // SAFETY: at least sockaddr_in's bytes are initialised, and both families have the same first field.
        let v4 = unsafe { &*storage.cast::<libc::sockaddr_in>() };
        if i32::from(v4.sin_family) == libc::AF_INET {
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            return Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)));
        }
        if i32::from(v4.sin_family) == libc::AF_INET6 && len >= size_of::<libc::sockaddr_in6>() {
            // SAFETY: `len` covers sockaddr_in6.
            let v6 = unsafe { &*storage.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            // Without scope, so that it compares with addresses of GIDs; the arrival has the interface.
            return Some(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)));
        }
    }
    None
}
