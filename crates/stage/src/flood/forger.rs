//! A raw socket that sends packets with any source address.

use super::raw;
use crate::Stage;
use anyhow::Result;
use socket2::SockAddr;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sends IPv4 packets with any source address.
pub struct Forger(OwnedFd);

impl Forger {
    /// On the third host. Needs CAP_NET_RAW.
    pub fn new(stage: &Stage) -> Result<Forger> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a system call with constants.
        let open = || raw::open(|| unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_RAW) });
        Ok(Forger(stage.enter_third(open)??))
    }

    /// Sends a packet with its IP and UDP headers. A full queue loses it, as on a wire.
    pub fn send(&self, packet: &[u8]) {
        let address: [u8; 4] = packet[16..20].try_into().expect("four bytes");
        let to = SockAddr::from(SocketAddrV4::new(address.into(), 0));
        // SAFETY: the packet and the address are valid during the call.
        unsafe {
            libc::sendto(self.0.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0, to.as_ptr().cast(), to.len())
        };
    }
}
