//! Lines of the log about calls and connections that fail: what the program asked for, why it fails, and what to do.

use super::Manager;
use super::id::State;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_cm::{ConnectionId, RejectReason, SidrStatus};
use weir_device::Errno;

const NO_DEVICE: &str = "no device of Weir has this address: take one that `weir devices` shows, and with WEIR_INTERFACE one of \
                         that interface";
const NO_LISTENER: &str = "no program listens to this port there: start it before, and compare the port, the port space \
                           (RDMA_PS_TCP, RDMA_PS_UDP) and the address that it has bound";
const REFUSED: &str = "the program there refuses it (rdma_reject), could not accept it, or listens for QPs of another type: \
                       its log and the private data of the event may say why";

/// Between two lines about what peers cause. The lines of a second are for calls of this process: peers must not use them
/// up.
const AGAIN: Duration = Duration::from_secs(60);

impl Manager {
    /// No device has the address to bind. Returns the error.
    pub(super) fn no_device(&mut self, address: &SocketAddr) -> Errno {
        self.host.log(format_args!("rdma_cm: rdma_bind_addr to {address}: {NO_DEVICE}"));
        Errno(libc::EADDRNOTAVAIL)
    }

    /// A port cannot be bound, or not be listened to. Returns the error.
    pub(super) fn no_port(&mut self, number: u32, call: &str, error: Errno) -> Errno {
        let Some(address) = self.ids.get(number).and_then(|id| id.local) else { return error };
        let why = match error.0 {
            libc::EACCES => {
                "ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_BIND_SERVICE: take a higher port"
            }
            libc::EADDRNOTAVAIL if address.port() == 0 => {
                "all ports are in use: destroy ids, or widen net.ipv4.ip_local_port_range"
            }
            libc::EADDRINUSE | libc::EADDRNOTAVAIL => {
                "the port is in use, by another rdma_cm_id of this process or by another process of this network \
                 namespace: end that one, or take another port (0: any that is free)"
            }
            // What opening a device has logged.
            _ => return error,
        };
        let device = self.device_of(number);
        self.host.log(format_args!("{device}: {call} to {address}: {why}"));
        error
    }

    /// The system has no way to an address. Returns the error.
    pub(super) fn no_route(&mut self, number: u32, to: IpAddr, error: Errno) -> Errno {
        let (device, cause) = (self.device_of(number), io::Error::from_raw_os_error(error.0));
        if error.0 == libc::EACCES {
            self.host.log(format_args!(
                "{device}: rdma_resolve_addr of {to}: it is not an allowed address (option --allow of `weir run`, \
                 WEIR_ALLOW), or a route forbids it: see `ip route get {to}`"
            ));
        } else {
            self.host.log(format_args!(
                "{device}: rdma_resolve_addr of {to}: there is no route ({cause}): see `ip route get {to}`"
            ));
        }
        error
    }

    /// The way to an address begins at an address that no device has.
    pub(super) fn no_source(&mut self, to: IpAddr, from: IpAddr) {
        self.host.log(format_args!(
            "rdma_cm: rdma_resolve_addr of {to}: RDMA_CM_EVENT_ADDR_ERROR: packets to it leave from {from}, and {NO_DEVICE}"
        ));
    }

    /// The peer rejects a connection.
    pub(super) fn rejected(&mut self, connection: ConnectionId, reason: RejectReason) {
        let why = of_rejection(reason);
        self.ended(connection, format_args!("RDMA_CM_EVENT_REJECTED, {reason}: {why}"));
    }

    /// The peer does not answer.
    pub(super) fn unreachable(&mut self, connection: ConnectionId) {
        self.ended(
            connection,
            format_args!(
                "RDMA_CM_EVENT_UNREACHABLE: no answer comes. Check that the host is up, that a process there uses RDMA, \
                 and that firewalls let UDP port 4791 pass, both ways; NAT between the two cannot work"
            ),
        );
    }

    /// A service gives no QP.
    pub(super) fn no_service(&mut self, connection: ConnectionId, status: SidrStatus) {
        let (number, why) = match status {
            SidrStatus::UNSUPPORTED => (status.0, NO_LISTENER),
            SidrStatus::REJECTED => (status.0, REFUSED),
            SidrStatus(other) => (other, "see what the log of the peer says"),
        };
        self.ended(connection, format_args!("RDMA_CM_EVENT_UNREACHABLE, status {number}: {why}"));
    }

    /// A listener's backlog is full: a request is ignored.
    pub(super) fn full_backlog(&mut self, number: u32, local: SocketAddr, remote: SocketAddr) {
        if self.full_said.is_some_and(|said| self.now - said < AGAIN) {
            return;
        }
        self.full_said = Some(self.now);
        let device = self.device_of(number);
        self.host.log(format_args!(
            "{device}: a request of {remote} to {local} is ignored until it comes again, because the backlog is full: call \
             rdma_get_cm_event more often, or rdma_listen with a larger backlog (said once a minute)"
        ));
    }

    /// A connection is not made.
    fn ended(&mut self, connection: ConnectionId, why: std::fmt::Arguments<'_>) {
        let Some((number, State::Connect)) = self.state(connection) else { return };
        let device = self.device_of(number);
        let Some(id) = self.ids.get(number) else { return };
        let (qpn, Some(remote)) = (id.qpn, id.remote) else { return };
        self.host.log(format_args!("{device}, QP {qpn:#08x}: the connection to {remote} fails: {why}"));
    }

    /// The name of an id's device, for the log.
    fn device_of(&self, number: u32) -> String {
        let attached = self.ids.get(number).and_then(|id| id.attached.as_ref());
        attached.map_or_else(|| "rdma_cm".to_owned(), |attached| attached.device.name.clone())
    }
}

/// Why a peer rejects, and what to do.
fn of_rejection(reason: RejectReason) -> &'static str {
    match reason {
        RejectReason::INVALID_SERVICE_ID => NO_LISTENER,
        RejectReason::CONSUMER => REFUSED,
        RejectReason::STALE_CONNECTION => {
            "the QP belongs to another connection there: destroy the QP, and connect with a new one"
        }
        RejectReason::TIMEOUT => "the peer has waited in vain for an answer: look for a slow program or lost packets",
        _ => "see what the log of the peer says, and IBTA 12.6.7.2 for the reason",
    }
}

#[cfg(test)]
mod tests {
    use super::of_rejection;
    use crate::abi::*;
    use crate::address;
    use crate::manager::testing::*;
    use weir_cm::RejectReason;
    use weir_device::Errno;

    /// What a process says since the last call.
    fn said(pair: &Pair) -> Vec<String> {
        std::mem::take(&mut pair.wire.lock().unwrap().said)
    }

    #[track_caller]
    fn says(pair: &Pair, parts: &[&str]) {
        let said = said(pair);
        assert_eq!(said.len(), 1, "{said:?}");
        parts.iter().for_each(|part| assert!(said[0].contains(part), "{part} in {said:?}"));
    }

    #[test]
    fn a_port_or_an_address_that_cannot_be_bound_has_a_line() {
        let mut pair = Pair::new();
        let [first, second] = [1, 2].map(|uid| pair.server.create(uid, port_space::TCP));
        pair.server.listen(first, "10.0.0.2:7471", 1).unwrap();
        assert!(said(&pair).is_empty());
        assert_eq!(pair.server.bind(second, "10.0.0.2:7471"), Err(Errno(libc::EADDRINUSE)));
        says(&pair, &["rdma_cm: rdma_bind_addr to 10.0.0.2:7471: the port is in use", "take another port"]);
        assert_eq!(pair.server.bind(second, "0.0.0.0:7471"), Err(Errno(libc::EADDRNOTAVAIL)));
        says(&pair, &["rdma_bind_addr to 0.0.0.0:7471: the port is in use"]);
        assert_eq!(pair.server.bind(second, "10.0.0.2:80"), Err(Errno(libc::EACCES)));
        says(&pair, &["rdma_bind_addr to 10.0.0.2:80: ", "CAP_NET_BIND_SERVICE"]);
        assert_eq!(pair.server.bind(second, "10.0.0.77:80"), Err(Errno(libc::EADDRNOTAVAIL)));
        says(&pair, &["rdma_bind_addr to 10.0.0.77:80: no device of Weir has this address", "weir devices"]);
    }

    #[test]
    fn an_address_that_is_not_resolved_has_a_line() {
        let mut pair = Pair::new();
        let id = pair.client.create(1, port_space::TCP);
        let mut command = ResolveIp { id, timeout_ms: 2000, ..ResolveIp::default() };
        address::write(Some("[2001:db8::1]:7471".parse().unwrap()), &mut command.destination);
        assert_eq!(pair.client.run(command::RESOLVE_IP, command), Err(Errno(libc::ENETUNREACH)));
        says(&pair, &["rdma_resolve_addr of 2001:db8::1: there is no route", "ip route get 2001:db8::1"]);
        // Packets leave from an address without a device.
        pair.wire.lock().unwrap().no_addresses = true;
        let id = pair.client.create(2, port_space::TCP);
        let mut command = ResolveIp { id, timeout_ms: 2000, ..ResolveIp::default() };
        address::write(Some("10.0.0.2:7471".parse().unwrap()), &mut command.destination);
        pair.client.run(command::RESOLVE_IP, command).unwrap();
        pair.client.expect(2, event::ADDR_ERROR);
        says(
            &pair,
            &["rdma_resolve_addr of 10.0.0.2: RDMA_CM_EVENT_ADDR_ERROR", "leave from 10.0.0.1", "weir devices"],
        );
    }

    #[test]
    fn a_connection_that_is_not_made_has_a_line_with_the_device_the_qp_and_what_to_do() {
        let mut pair = Pair::new();
        let connect = |pair: &mut Pair, uid, space, to: &str| {
            let id = pair.client.create(uid, space);
            pair.client.resolve(uid, id, to);
            pair.client.connect(id, b"").unwrap();
            format!("weir_t0, QP {:#08x}: the connection to {to} fails: RDMA_CM_EVENT_", 0x1000 + id)
        };
        // No listener.
        let start = connect(&mut pair, 1, port_space::TCP, "10.0.0.2:7473");
        pair.deliver();
        pair.client.expect(1, event::REJECTED);
        says(&pair, &[&format!("{start}REJECTED, invalid service ID (8): no program listens"), "start it before"]);
        // The program rejects.
        for (uid, space, port, kind, event) in [
            (2, port_space::TCP, 7474, "REJECTED, consumer reject (28): ", event::REJECTED),
            (3, port_space::UDP, 7475, "UNREACHABLE, status 2: ", event::UNREACHABLE),
        ] {
            let listener = pair.server.create(100 + uid, space);
            pair.server.listen(listener, &format!("0.0.0.0:{port}"), 1).unwrap();
            let start = connect(&mut pair, uid, space, &format!("10.0.0.2:{port}"));
            pair.deliver();
            let request = pair.server.expect(100 + uid, event::CONNECT_REQUEST);
            pair.server.run(command::REJECT, Reject { id: request.id, ..Reject::default() }).unwrap();
            pair.deliver();
            pair.client.expect(uid, event);
            says(&pair, &[&format!("{start}{kind}the program there refuses it"), "private data"]);
        }
        // No answer.
        let start = connect(&mut pair, 4, port_space::TCP, "10.0.0.2:7471");
        pair.lose();
        while *pair.client.shown.lock().unwrap() == 0 {
            let next = pair.client.manager.next().unwrap();
            pair.client.manager.tick(next);
            pair.lose();
        }
        pair.client.expect(4, event::UNREACHABLE);
        says(&pair, &[&format!("{start}UNREACHABLE: no answer comes"), "UDP port 4791"]);
    }

    #[test]
    fn each_reason_of_a_rejection_says_what_to_do() {
        for (reason, text) in [
            (RejectReason::STALE_CONNECTION, "the QP belongs to another connection there: destroy the QP"),
            (RejectReason::TIMEOUT, "the peer has waited in vain for an answer"),
            (RejectReason(99), "see what the log of the peer says"),
        ] {
            assert!(of_rejection(reason).contains(text), "{reason}");
        }
    }

    #[test]
    fn a_request_to_a_full_backlog_has_a_line() {
        let mut pair = Pair::new();
        let connect = |pair: &mut Pair, uid| {
            let id = pair.client.create(uid, port_space::TCP);
            pair.client.resolve(uid, id, "10.0.0.2:7471");
            pair.client.connect(id, b"").unwrap();
        };
        let listener = pair.server.create(1, port_space::TCP);
        pair.server.listen(listener, "10.0.0.2:7471", 1).unwrap();
        (10..13).for_each(|uid| connect(&mut pair, uid));
        pair.deliver();
        says(&pair, &["weir_t0: a request of 10.0.0.1:", "to 10.0.0.2:7471 is ignored", "larger backlog"]);
        // Once a minute.
        pair.pass(59);
        assert!(said(&pair).is_empty(), "requests that come again have no line");
        pair.pass(2);
        connect(&mut pair, 13);
        pair.deliver();
        says(&pair, &["is ignored"]);
    }
}
