//! Ethernet frames of an interface, through a packet socket: what raw packet QPs send and receive.
//!
//! The socket gets a copy of each frame that its filter accepts; the kernel's own protocols get the frame nevertheless.
//! It needs CAP_NET_RAW.

use crate::socket_filter;
use socket2::SockRef;
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A packet socket that is bound to one interface. It never blocks.
pub struct Ethernet {
    socket: OwnedFd,
    ifindex: u32,
}

/// An instruction of a classic BPF program.
pub use libc::sock_filter as FilterInstruction;

/// Frames that the interface receives beyond those to its own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// To one more address, a unicast or a multicast one.
    Address([u8; 6]),
    AllMulticast,
    Promiscuous,
}

/// Bytes of frames that wait for a turn, with the kernel's bookkeeping: some thousand short frames, as adapters have
/// receives for. No sender of raw frames slows down for a receiver.
const RECEIVE_BUFFER: i32 = 8 << 20;
/// Bytes of a VLAN tag, and its place in a frame.
const TAG: usize = 4;
const TAG_AT: usize = 12;

impl Ethernet {
    /// A socket without a filter. EPERM without CAP_NET_RAW.
    pub fn open(ifindex: u32) -> io::Result<Ethernet> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Without a protocol it receives nothing until it is bound.
        // SAFETY: creates a descriptor, owned from here on if the call succeeds.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, 0);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let ethernet = Ethernet { socket, ifindex };
        ethernet.set(libc::PACKET_IGNORE_OUTGOING, &1i32)?;
        // A socket that may not have more than the system's limit gets that much.
        if ethernet.set_at(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER).is_err() {
            let _ = ethernet.set_at(libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER);
        }
        // The kernel takes VLAN tags out of frames, and reports them beside.
        ethernet.set(libc::PACKET_AUXDATA, &1i32)?;
        Ok(ethernet)
    }

    /// The descriptor that becomes readable when a frame has come.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Begins to receive.
    pub fn listen(&self) -> io::Result<()> {
        // SAFETY: an all-zero address is valid; the call reads as many bytes as it is told.
        unsafe {
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
            address.sll_ifindex = self.ifindex as i32;
            let length = size_of::<libc::sockaddr_ll>() as u32;
            result(libc::bind(self.descriptor(), (&raw const address).cast(), length) as isize).map(drop)
        }
    }

    /// Replaces the filter of received frames. An empty program accepts all.
    pub fn set_filter(&self, program: &[FilterInstruction]) -> io::Result<()> {
        let socket = SockRef::from(&self.socket);
        if program.is_empty() {
            // ENOENT without a filter.
            let _ = socket.detach_filter();
            return Ok(());
        }
        socket_filter::attach(&socket, program)
    }

    /// Makes the interface receive more frames. Each membership is left as often as it is joined.
    pub fn join(&self, membership: Membership) -> io::Result<()> {
        self.set(libc::PACKET_ADD_MEMBERSHIP, &self.request(membership))
    }

    /// Undoes a [`join`](Self::join).
    pub fn leave(&self, membership: Membership) {
        let _ = self.set(libc::PACKET_DROP_MEMBERSHIP, &self.request(membership));
    }

    fn request(&self, membership: Membership) -> libc::packet_mreq {
        let mut request =
            libc::packet_mreq { mr_ifindex: self.ifindex as i32, mr_type: 0, mr_alen: 0, mr_address: [0; 8] };
        request.mr_type = match membership {
            Membership::Promiscuous => libc::PACKET_MR_PROMISC as u16,
            Membership::AllMulticast => libc::PACKET_MR_ALLMULTI as u16,
            Membership::Address(address) => {
                request.mr_alen = 6;
                request.mr_address[..6].copy_from_slice(&address);
                let multicast = address[0] & 1 != 0;
                (if multicast { libc::PACKET_MR_MULTICAST } else { libc::PACKET_MR_UNICAST }) as u16
            }
        };
        request
    }

    /// Sends a frame. `WouldBlock`: the socket's buffer is full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: an all-zero address is valid; the calls read as many bytes as they are told.
        unsafe {
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_ifindex = self.ifindex as i32;
            if let Some(protocol) = frame.get(12..14) {
                address.sll_protocol = u16::from_ne_bytes([protocol[0], protocol[1]]);
            }
            let length = size_of::<libc::sockaddr_ll>() as u32;
            let (to, flags) = ((&raw const address).cast(), libc::MSG_NOSIGNAL);
            result(libc::sendto(self.descriptor(), frame.as_ptr().cast(), frame.len(), flags, to, length)).map(drop)
        }
    }

    /// Receives a frame to `into`, with the VLAN tag that the kernel took out of it; returns the length of the frame,
    /// which is more than `into` has if the frame was cut off. `None`: there is no frame.
    pub fn receive(&self, into: &mut [u8]) -> Option<usize> {
        let mut control = MaybeUninit::<[u64; 16]>::uninit();
        let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: an all-zero header is valid. The kernel writes within `into` and `control`, and returns how much.
        unsafe {
            let mut header: libc::msghdr = zeroed();
            (header.msg_iov, header.msg_iovlen) = (&raw mut iov, 1);
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; 16]>() as _;
            let length = loop {
                match result(libc::recvmsg(self.descriptor(), &raw mut header, libc::MSG_TRUNC)) {
                    Ok(length) => break length,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return None,
                }
            };
            let tag = tag(&header);
            Some(tag.map_or(length, |tag| insert(into, length, tag)))
        }
    }

    fn set<T>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        self.set_at(libc::SOL_PACKET, option, value)
    }

    fn set_at<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let (value, length) = ((&raw const *value).cast(), size_of::<T>() as u32);
        // SAFETY: the call reads as many bytes as `T` has.
        result(unsafe { libc::setsockopt(self.descriptor(), level, option, value, length) as isize }).map(drop)
    }
}

/// The VLAN tag that the kernel took out of a frame.
///
/// # Safety
/// The kernel has filled the header.
unsafe fn tag(header: &libc::msghdr) -> Option<[u8; TAG]> {
    // SAFETY: guaranteed by the caller; the macros stay within the control data.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
                let data = libc::CMSG_DATA(message).cast::<libc::tpacket_auxdata>().read_unaligned();
                if data.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
                    return None;
                }
                let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let protocol = if known { data.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 };
                let ([a, b], [c, d]) = (protocol.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
                return Some([a, b, c, d]);
            }
            message = libc::CMSG_NXTHDR(header, message);
        }
        None
    }
}

/// Puts a VLAN tag back into a frame of `length` bytes; returns its new length.
fn insert(frame: &mut [u8], length: usize, tag: [u8; TAG]) -> usize {
    if length < TAG_AT {
        return length;
    }
    let end = (length + TAG).min(frame.len());
    if end >= TAG_AT + TAG {
        frame.copy_within(TAG_AT..end - TAG, TAG_AT + TAG);
        frame[TAG_AT..TAG_AT + TAG].copy_from_slice(&tag);
    }
    length + TAG
}

fn result(returned: isize) -> io::Result<usize> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_returns_to_its_place() {
        let mut frame = [0u8; 24];
        for (byte, n) in frame.iter_mut().zip(0..20) {
            *byte = n;
        }
        assert_eq!(insert(&mut frame, 20, [0x81, 0, 0, 5]), 24);
        assert_eq!(frame[8..20], [8, 9, 10, 11, 0x81, 0, 0, 5, 12, 13, 14, 15]);
        assert_eq!(frame[20..], [16, 17, 18, 19]);
        // A frame that fills the buffer loses its end, and its length shows that.
        assert_eq!(insert(&mut frame, 24, [1, 2, 3, 4]), 28);
        assert_eq!(frame[12..20], [1, 2, 3, 4, 0x81, 0, 0, 5]);
        assert_eq!(insert(&mut frame, 3, [1, 2, 3, 4]), 3);
    }
}
