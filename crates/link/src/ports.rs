//! The sockets of one adapter as one carrier: its slot's port in both families, the same port connected to the
//! destination of most packets, port 4791 while the adapter holds it, and one socket for each multicast group.

use crate::allow::Allowed;
use crate::frequent::{Destination, Frequent};
use crate::send_error::SendErrors;
use crate::udp::Udp;
use crate::{Carrier, DisabledFeatures, Group, Inbox, Outbox, SendError, SendErrorKind, clock};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// Receive calls between two checks of silent sockets.
const SILENT_CALLS: u32 = 64;
/// The same for the sockets of the port that it sends from. Most processes never receive from foreign adapters or
/// groups: their sockets for those add almost no cost to a poll.
const SILENT_CALLS_OWN: u32 = 16;
/// The most receive calls for what came before a socket was connected.
const EARLIER: u32 = 64;
/// Receive calls without a datagram after which a socket is silent.
const COLD_AFTER: u32 = 4096;

/// UDP sockets that send from one port and receive on several.
pub struct Ports {
    ports: Vec<Port>,
    own: u16,
    calls: u32,
    next: usize,
    disabled: DisabledFeatures,
    allowed: Allowed,
    frequent: Frequent,
    /// A socket was connected, and datagrams of its peer that came before may not be taken yet: so many receives look
    /// for them alone.
    earlier: u32,
    /// Errors of groups without a socket of their address family.
    send_errors: SendErrors,
}

/// Binds a port in a family.
type Bind = fn(u16, bool, DisabledFeatures, &Allowed) -> io::Result<Udp>;

struct Port {
    udp: Udp,
    silent: u32,
}

impl Ports {
    /// Binds the port in the families that the machine has. `AddrInUse` if another socket has it in any of them.
    pub fn bind(port: u16, disabled: DisabledFeatures) -> io::Result<Ports> {
        Self::bind_for(port, disabled, Allowed::default())
    }

    /// The same; the kernel drops what comes from other hosts that are not allowed.
    pub fn bind_for(port: u16, disabled: DisabledFeatures, allowed: Allowed) -> io::Result<Ports> {
        let mut ports = Ports {
            ports: Vec::with_capacity(4),
            own: port,
            calls: 0,
            next: 0,
            disabled,
            allowed,
            frequent: Frequent::new(),
            earlier: 0,
            send_errors: SendErrors::default(),
        };
        ports.add_port(port, Udp::bind)?;
        Ok(ports)
    }

    fn add_port(&mut self, port: u16, bind: Bind) -> io::Result<()> {
        let before = self.ports.len();
        let mut missing = None;
        for v6 in [false, true] {
            match bind(port, v6, self.disabled, &self.allowed) {
                Ok(udp) => self.ports.push(Port { udp, silent: COLD_AFTER }),
                // With no free descriptor it is unknown whether the machine has that family.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) =>
                {
                    self.ports.truncate(before);
                    return Err(error);
                }
                Err(error) => missing = Some(error),
            }
        }
        match missing {
            Some(error) if self.ports.len() == before => Err(error),
            _ => Ok(()),
        }
    }

    /// The port that it sends from.
    pub fn port(&self) -> u16 {
        self.own
    }

    /// Bytes that the kernel buffers for one socket before it drops.
    pub fn receive_buffer(&self) -> usize {
        self.ports.iter().map(|port| port.udp.receive_buffer()).min().unwrap_or(0)
    }

    /// The socket of the family that sends to any destination.
    fn sender(&mut self, v6: bool) -> Option<&mut Udp> {
        let own = self.own;
        let fits = |udp: &&mut Udp| udp.port() == own && udp.is_v6() == v6 && udp.destination().is_none();
        self.ports.iter_mut().map(|port| &mut port.udp).find(fits)
    }

    /// The connected socket.
    fn connected(&mut self) -> Option<&mut Udp> {
        self.ports.iter_mut().map(|port| &mut port.udp).find(|udp| udp.destination().is_some())
    }

    fn connected_to(&self) -> Option<Destination> {
        self.ports.iter().find_map(|port| port.udp.destination())
    }

    /// Receives what came before a socket was connected: it is older than what that socket has.
    #[cold]
    fn receive_earlier(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        let v6 = self.connected_to().is_some_and(|destination| destination.from.is_ipv6());
        let got = self.sender(v6).map_or(Ok(0), |udp| udp.receive(inbox))?;
        // Others may send without end.
        self.earlier = if got > 0 { self.earlier - 1 } else { 0 };
        Ok(got)
    }
}

impl Carrier for Ports {
    fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
        let mut rest = &outbox.groups[..];
        let mut failed = None;
        self.frequent.note(rest);
        let connected = self.connected_to();
        let by_connected = |group: &Group| connected.is_some_and(|destination| destination.fits(group));
        while let Some(first) = rest.first() {
            let (v6, connected) = (first.to.is_ipv6(), by_connected(first));
            let same = |group: &&Group| group.to.is_ipv6() == v6 && by_connected(group) == connected;
            let run = rest.iter().take_while(same).count();
            match if connected { self.connected() } else { self.sender(v6) } {
                Some(udp) => failed = failed.or(udp.send_groups(outbox, &rest[..run]).err()),
                None => self.note_missing_family(first),
            }
            rest = &rest[run..];
        }
        failed.map_or(Ok(()), Err)
    }

    fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
        if self.earlier > 0 && self.receive_earlier(inbox)? > 0 {
            return Ok(inbox.arrivals.len());
        }
        self.calls = self.calls.wrapping_add(1);
        let count = self.ports.len();
        for offset in 0..count {
            let at = (self.next + offset) % count;
            let port = &self.ports[at];
            let every = if port.udp.port() == self.own { SILENT_CALLS_OWN } else { SILENT_CALLS };
            let look_at_cold = self.calls.is_multiple_of(every);
            if port.silent >= COLD_AFTER && !look_at_cold && count > 1 && self.ports_warm(at) {
                continue;
            }
            let port = &mut self.ports[at];
            match port.udp.receive(inbox)? {
                0 => port.silent = port.silent.saturating_add(1),
                got => {
                    port.silent = 0;
                    self.next = (at + 1) % count;
                    return Ok(got);
                }
            }
        }
        inbox.arrivals.clear();
        Ok(0)
    }

    fn wants_socket(&mut self) -> bool {
        !self.disabled.contains(DisabledFeatures::UDP_CONNECT) && self.frequent.takes_change(self.connected_to())
    }

    fn add_socket(&mut self) -> io::Result<()> {
        let Some(to) = self.frequent.wanted() else { return Ok(()) };
        let disabled = self.disabled;
        let is_bound_alike = |earlier: Destination| (earlier.from, earlier.ifindex) == (to.from, to.ifindex);
        match self.connected() {
            Some(udp) if udp.destination().is_some_and(is_bound_alike) => udp.connect(to)?,
            // Its address and interface are not worth another socket.
            Some(_) => return Ok(()),
            None => {
                let Some(sender) = self.sender(to.from.is_ipv6()) else { return Ok(()) };
                let udp = sender.connected(to, disabled)?;
                self.ports.push(Port { udp, silent: 0 });
            }
        }
        self.earlier = EARLIER;
        Ok(())
    }

    fn look_everywhere(&mut self) {
        // The call after it has number 0, a multiple of every number of calls.
        self.calls = u32::MAX;
    }

    fn supports_iovecs(&self) -> bool {
        true
    }

    fn listen(&mut self, port: u16) -> io::Result<()> {
        self.add_port(port, Udp::bind_beside_groups)
    }

    fn join(&mut self, group: IpAddr, port: u16, ifindex: u32) -> io::Result<RawFd> {
        let udp = Udp::join(group, port, ifindex, self.disabled, &self.allowed)?;
        let membership = udp.as_raw_fd();
        self.ports.push(Port { udp, silent: COLD_AFTER });
        Ok(membership)
    }

    fn leave(&mut self, membership: RawFd) {
        self.ports.retain(|port| port.udp.as_raw_fd() != membership);
    }

    fn fds(&self) -> Vec<RawFd> {
        self.ports.iter().map(|port| port.udp.as_raw_fd()).collect()
    }

    fn take_send_error(&mut self) -> Option<SendError> {
        let of_sockets = self.ports.iter_mut().find_map(|port| port.udp.take_send_error());
        of_sockets.or_else(|| self.send_errors.take())
    }

    fn max_segments(&self) -> usize {
        self.ports.iter().map(|port| port.udp.max_segments()).min().unwrap_or(1)
    }
}

impl Ports {
    /// Records that this machine has no sockets of the address family of a group.
    #[cold]
    fn note_missing_family(&mut self, group: &Group) {
        let Group { to, from, ifindex, len, .. } = *group;
        let error = SendError { kind: SendErrorKind::Send, errno: libc::EAFNOSUPPORT, to, from, ifindex, len };
        self.send_errors.note(error, clock::monotonic());
    }

    /// Whether a socket other than `at` is not silent: then `at` may be skipped.
    fn ports_warm(&self, at: usize) -> bool {
        self.ports.iter().enumerate().any(|(other, port)| other != at && port.silent < COLD_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};

    /// Receives until something comes; returns the number of calls.
    fn calls_until_arrival(ports: &mut Ports, inbox: &mut Inbox) -> usize {
        (1..1000).find(|_| ports.receive(inbox).unwrap() > 0).expect("an arrival")
    }

    #[test]
    fn a_look_everywhere_finds_what_came_to_a_silent_socket() {
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let free = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut ports = Ports::bind(free(), DisabledFeatures::default()).unwrap();
        let other = free();
        ports.listen(other).unwrap();
        let (own, mut inbox) = (ports.port(), Inbox::new(4));
        let send = |port: u16| sender.send_to(&[1; 32], (Ipv4Addr::LOCALHOST, port)).unwrap();
        send(own);
        calls_until_arrival(&mut ports, &mut inbox);
        // The own port is not silent now, the other one is.
        send(other);
        ports.calls = 1;
        assert!(calls_until_arrival(&mut ports, &mut inbox) > 10);
        ports.ports.iter_mut().filter(|port| port.udp.port() == other).for_each(|port| port.silent = COLD_AFTER);
        send(other);
        ports.calls = 1;
        ports.look_everywhere();
        assert_eq!(calls_until_arrival(&mut ports, &mut inbox), 1);
    }
}
