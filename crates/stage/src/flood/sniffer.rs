//! A third host that sees the packets of a transfer, as a port mirror shows them.

use super::datagram::{FORGED_TTL, HEADERS};
use super::raw;
use crate::{Side, Stage};
use anyhow::Result;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// The IPv4 packets that pass a host's interface.
pub struct Sniffer(OwnedFd);

impl Sniffer {
    /// On this side of the stage. Needs CAP_NET_RAW.
    pub fn new(stage: &Stage, side: Side) -> Result<Sniffer> {
        let (family, kind) = (libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
        // SAFETY: system calls with constants.
        let socket = stage.enter(side, || raw::open(|| unsafe { libc::socket(family, kind, protocol) }))??;
        let size: i32 = 64 << 20;
        // SAFETY: passes a pointer to an int and its size.
        unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE);
            libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const size).cast(), size_of::<i32>() as u32)
        };
        Ok(Sniffer(socket))
    }

    /// The UDP packets without options and fragments that have come, and that go to this address.
    pub fn packets(&self, to: Ipv4Addr) -> Vec<Vec<u8>> {
        let mut found = vec![];
        let mut bytes = vec![0u8; 1 << 16];
        loop {
            // SAFETY: the buffer is valid during the call.
            let got = unsafe { libc::recv(self.0.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            let Ok(len) = usize::try_from(got) else { return found };
            let is_udp =
                bytes[8] != FORGED_TTL && len > HEADERS && bytes[0] == 0x45 && bytes[9] == libc::IPPROTO_UDP as u8;
            if is_udp && bytes[16..20] == to.octets() && bytes[6] & 0x3f == 0 && bytes[7] == 0 {
                found.push(bytes[..len].to_vec());
            }
        }
    }
}
