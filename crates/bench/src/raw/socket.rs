//! UDP in bursts: sendmmsg with UDP_SEGMENT and recvmmsg with UDP_GRO, with headers that are built once.

use super::framing::Burst;
use anyhow::{Context, Result};
use nix::sys::socket::{SockaddrLike, SockaddrStorage, getsockopt, setsockopt, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

/// Receive buffer to request, bytes; the kernel grants less to ordinary users.
const BUFFER: usize = 8 << 20;
/// Bytes of a receive slot: UDP_GRO delivers no more at once.
const SLOT: usize = 1 << 16;
/// Room for one control message with an int, aligned as cmsghdr must be.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 32]);

/// A UDP socket with UDP_GRO and a large receive buffer that never blocks.
pub fn bind(address: IpAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((address, 0)).context("binding a UDP socket")?;
    socket.set_nonblocking(true)?;
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
    }
    setsockopt(&socket, sockopt::UdpGroSegment, &true).context("UDP_GRO")?;
    Ok(socket)
}

/// Bytes that a peer may have in flight to the socket without drops.
pub fn window(socket: &UdpSocket) -> Result<u64> {
    // The kernel charges its own overhead to the buffer. Windows between 256 KiB and 2 MiB give the same speed.
    let granted = getsockopt(socket, sockopt::RcvBuf)? as u64;
    Ok((granted / 4).min(1 << 20))
}

/// Waits until one of the descriptors is as asked (POLLIN, POLLOUT) or `milliseconds` have passed; which are.
pub fn wait(descriptors: &[RawFd], events: libc::c_short, milliseconds: libc::c_int) -> io::Result<Vec<bool>> {
    let mut asked: Vec<_> = descriptors.iter().map(|&fd| libc::pollfd { fd, events, revents: 0 }).collect();
    // SAFETY: so many descriptors are in the list.
    let result = unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, milliseconds) };
    would_block_is_zero(result)?;
    Ok(asked.iter().map(|one| one.revents != 0).collect())
}

/// A fixed series of bursts to one destination, all from one staging buffer.
pub struct Outgoing {
    headers: Vec<libc::mmsghdr>,
    bursts: Vec<Burst>,
    // The headers point to these; on the heap, so that moving the struct does not move them.
    _staging: Box<[u8]>,
    _to: Box<SockaddrStorage>,
    _vectors: Box<[libc::iovec]>,
    _controls: Box<[Control]>,
}

impl Outgoing {
    /// Headers for `bursts`, each of at most 64 KiB. All send the same bytes.
    pub fn new(to: SocketAddr, bursts: &[Burst]) -> Outgoing {
        Outgoing::from_area(to, bursts, 1)
    }

    /// The same, but each burst sends bytes of its own, from memory that a program has written.
    pub fn spread(to: SocketAddr, bursts: &[Burst]) -> Outgoing {
        Outgoing::from_area(to, bursts, bursts.len())
    }

    fn from_area(to: SocketAddr, bursts: &[Burst], slots: usize) -> Outgoing {
        let mut staging = vec![7u8; slots * SLOT].into_boxed_slice();
        let to = Box::new(SockaddrStorage::from(to));
        let places = staging.chunks_exact_mut(SLOT).map(|slot| slot.as_mut_ptr()).collect::<Vec<_>>();
        let vector = |(n, b): (usize, &Burst)| {
            let iov_base = places[n % places.len()].cast();
            libc::iovec { iov_base, iov_len: b.len.min(SLOT) }
        };
        let mut vectors: Box<[_]> = bursts.iter().enumerate().map(vector).collect();
        let mut controls = vec![Control([0; 32]); bursts.len()].into_boxed_slice();
        let mut headers = Vec::new();
        for (i, burst) in bursts.iter().enumerate() {
            let mut header = empty_header();
            header.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = to.len();
            header.msg_hdr.msg_iov = &mut vectors[i];
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = ptr::from_mut(&mut controls[i]).cast();
            // SAFETY: CMSG_SPACE and CMSG_LEN compute only.
            let (space, len) = unsafe { (libc::CMSG_SPACE(2), libc::CMSG_LEN(2)) };
            header.msg_hdr.msg_controllen = space as usize;
            // SAFETY: the control buffer is aligned and has room for one header with two bytes (24 of 32).
            unsafe {
                let control = libc::CMSG_FIRSTHDR(&header.msg_hdr);
                (*control).cmsg_level = libc::SOL_UDP;
                (*control).cmsg_type = libc::UDP_SEGMENT;
                (*control).cmsg_len = len as usize;
                libc::CMSG_DATA(control).cast::<u16>().write_unaligned(burst.segment as u16);
            }
            headers.push(header);
        }
        let bursts = bursts.to_vec();
        Outgoing { headers, bursts, _staging: staging, _to: to, _vectors: vectors, _controls: controls }
    }

    /// The bursts, in order.
    pub fn bursts(&self) -> &[Burst] {
        &self.bursts
    }

    /// Sends `count` bursts, beginning with number `first`; returns how many the kernel accepted.
    pub fn send(&mut self, socket: &UdpSocket, first: usize, count: usize) -> io::Result<usize> {
        let headers = &mut self.headers[first..first + count];
        // SAFETY: the headers point to buffers that `self` owns and that outlive the call.
        let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), headers.len() as u32, 0) };
        would_block_is_zero(sent)
    }
}

/// Receive slots of 64 KiB.
pub struct Incoming {
    headers: Vec<libc::mmsghdr>,
    bytes: Box<[u8]>,
    _vectors: Box<[libc::iovec]>,
}

impl Incoming {
    /// `slots` empty slots.
    pub fn new(slots: usize) -> Incoming {
        let mut bytes = vec![0u8; slots * SLOT].into_boxed_slice();
        let vector = |slot: &mut [u8]| libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT };
        let mut vectors: Box<[_]> = bytes.chunks_mut(SLOT).map(vector).collect();
        let mut header = |vector: &mut libc::iovec| {
            let mut header = empty_header();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        let headers = vectors.iter_mut().map(&mut header).collect();
        Incoming { headers, bytes, _vectors: vectors }
    }

    /// Fills slots with what has arrived; returns how many.
    pub fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        // SAFETY: each header points to its own slot, which outlives the call; there is neither name nor control.
        let got = unsafe {
            let headers = self.headers.as_mut_ptr();
            libc::recvmmsg(socket.as_raw_fd(), headers, self.headers.len() as u32, 0, ptr::null_mut())
        };
        would_block_is_zero(got)
    }

    /// Bytes of slot `i` after a receive that filled it.
    pub fn slot(&self, i: usize) -> &[u8] {
        &self.bytes[i * SLOT..][..self.headers[i].msg_len as usize]
    }
}

fn empty_header() -> libc::mmsghdr {
    // SAFETY: all zeros is a valid mmsghdr: null pointers and zero lengths.
    unsafe { std::mem::zeroed() }
}

fn would_block_is_zero(count: libc::c_int) -> io::Result<usize> {
    if count >= 0 {
        return Ok(count as usize);
    }
    match io::Error::last_os_error() {
        e if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        e => Err(e),
    }
}
