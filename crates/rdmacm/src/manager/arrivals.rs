//! Connections: what happens to them.

use super::Manager;
use super::attributes::address_vector;
use super::id::{Attached, Id, State};
use crate::abi::{ConnectionParameters, DatagramParameters, event};
use crate::address::is_link_local;
use crate::events::{Parameters, Queued, private};
use crate::host::is_full;
use crate::ports::Owner;
use std::net::SocketAddr;
use weir_cm::{
    Address, ConnectionId, Event, IpHeader, RejectReason, Reply, Request, ServiceId, SidrReply, SidrRequest, SidrStatus,
};
use weir_device::Errno;

/// For how long the kernel asks the active side to wait, if the request comes again before the program has answered:
/// 4.096 µs · 2^24, 69 seconds.
const SERVICE_TIMEOUT: u8 = 24;

impl Manager {
    /// These events are about to be raised. As on adapters, the program finds the completions of packets that came
    /// earlier when it sees a disconnection, at which it may destroy the QP.
    pub(super) fn take_packets_before(&mut self, events: &[Event]) {
        let mut devices: Vec<&str> = Vec::new();
        for event in events {
            let (Event::DisconnectRequest { id, .. } | Event::Disconnected { id, .. }) = event else { continue };
            if let Some((number, State::Connect)) = self.state(*id)
                && let Some(attached) = self.ids.get(number).and_then(|id| id.attached.as_ref())
                && !devices.contains(&&*attached.device.name)
            {
                devices.push(&attached.device.name);
            }
        }
        devices.into_iter().for_each(|device| self.host.take_packets(device));
    }

    /// Something has happened to a connection.
    pub(super) fn happened(&mut self, happened: Event) {
        if matches!(happened, Event::Request { .. } | Event::Reply { .. } | Event::Established { .. }) {
            self.watch_peers();
        }
        match happened {
            Event::Request { id, from, request } => self.requested(id, &from, &request),
            Event::ServiceRequest { id, from, request } => self.service_requested(id, &from, &request),
            Event::Reply { id, reply } => self.replied(id, &reply),
            Event::ServiceReply { id, reply } => self.service_replied(id, &reply),
            Event::Established { id, private } => {
                self.connected(id, event::ESTABLISHED, 0, &private);
            }
            Event::Rejected { id, reason, private, .. } => {
                self.rejected(id, reason);
                self.connected(id, event::REJECTED, i32::from(reason.0), &private);
            }
            Event::Unreachable { id } | Event::ServiceUnreachable { id } => {
                self.unreachable(id);
                self.connected(id, event::UNREACHABLE, -libc::ETIMEDOUT, &[]);
            }
            Event::DisconnectRequest { id, private } => self.disconnected(id, 0, &private),
            Event::Disconnected { id, timed_out, private } => {
                self.disconnected(id, if timed_out { -libc::ETIMEDOUT } else { 0 }, &private);
            }
            Event::TimewaitExit { id } => {
                if let Some((number, State::Disconnect)) = self.state(id) {
                    self.raise(number, event::TIMEWAIT_EXIT, 0, Parameters::None);
                }
            }
            Event::Delayed { .. } => {}
        }
    }

    /// The id of a connection, and its state.
    pub(super) fn state(&self, connection: ConnectionId) -> Option<(u32, State)> {
        let number = *self.connections.get(&connection)?;
        Some((number, self.ids.get(number)?.state))
    }

    /// An event of an id that connects or is connected.
    fn connected(&mut self, connection: ConnectionId, kind: u32, status: i32, data: &[u8]) {
        let Some((number, State::Connect)) = self.state(connection) else { return };
        let datagram = self.ids.get(number).is_some_and(Id::is_datagram);
        self.raise(number, kind, status, with_private(datagram, data));
    }

    fn disconnected(&mut self, connection: ConnectionId, status: i32, data: &[u8]) {
        let Some((number, State::Connect)) = self.state(connection) else { return };
        if let Some(id) = self.ids.get_mut(number) {
            id.state = State::Disconnect;
        }
        self.raise(number, event::DISCONNECTED, status, with_private(false, data));
    }

    fn replied(&mut self, connection: ConnectionId, reply: &Reply) {
        let Some((number, State::Connect)) = self.state(connection) else { return };
        if let Some(id) = self.ids.get_mut(number) {
            id.agreed.qpn = reply.qpn;
            id.agreed.psn = reply.starting_psn;
            id.agreed.initiator_depth = reply.responder_resources;
            id.agreed.responder_resources = reply.initiator_depth;
            id.agreed.rnr_retry_count = reply.rnr_retry_count;
            id.agreed.timeout = super::id::ack_timeout(reply.target_ack_delay, super::id::PACKET_LIFE_TIME);
            id.agreed.known = true;
            id.ece = reply.ece;
        }
        // The program connects its QP now; a peer that repeats its reply meanwhile is asked to wait.
        let _ = self.cm.delay_duplicates(self.now, connection, SERVICE_TIMEOUT, &[]);
        let (private_data, private_data_len) = private(&reply.private);
        let parameters = ConnectionParameters {
            qp_num: reply.qpn,
            private_data,
            private_data_len,
            srq: u8::from(reply.srq),
            responder_resources: reply.initiator_depth,
            initiator_depth: reply.responder_resources,
            flow_control: u8::from(reply.flow_control),
            rnr_retry_count: reply.rnr_retry_count,
            ..ConnectionParameters::default()
        };
        self.raise(number, event::CONNECT_RESPONSE, 0, Parameters::Connection(parameters));
    }

    fn service_replied(&mut self, connection: ConnectionId, reply: &SidrReply) {
        let Some((number, State::Connect)) = self.state(connection) else { return };
        if reply.status != SidrStatus::VALID {
            self.no_service(connection, reply.status);
            let status = i32::from(reply.status.0);
            return self.raise(number, event::UNREACHABLE, status, with_private(true, &reply.private));
        }
        let Some(id) = self.ids.get_mut(number) else { return };
        (id.agreed.qpn, id.qkey) = (reply.qpn, reply.qkey);
        let (private_data, private_data_len) = private(&reply.private);
        let parameters = DatagramParameters {
            qp_num: reply.qpn,
            qkey: reply.qkey,
            address: address_vector(id),
            private_data,
            private_data_len,
            reserved: [0; 7],
        };
        self.raise(number, event::ESTABLISHED, 0, Parameters::Datagram(parameters));
    }

    fn requested(&mut self, connection: ConnectionId, from: &Address, request: &Request) {
        let found = self.listener(request.service_id, from, &request.private);
        let Some((listener, ends)) = found else {
            return self.refuse(connection, RejectReason::INVALID_SERVICE_ID);
        };
        let takes = self.ids.get(listener).is_some_and(|id| id.qp_type.takes(request.transport));
        let attached = match self.attached(from) {
            Ok(attached) => attached.filter(|_| takes),
            Err(error) => return self.ignore(connection, error),
        };
        let Some(attached) = attached else { return self.refuse(connection, RejectReason::CONSUMER) };
        let (private_data, private_data_len) = private(&request.private[IpHeader::LEN..]);
        let parameters = ConnectionParameters {
            qp_num: request.qpn,
            private_data,
            private_data_len,
            srq: u8::from(request.srq),
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: u8::from(request.flow_control),
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ..ConnectionParameters::default()
        };
        let learn = |id: &mut Id| id.learn_request(request);
        if self.announce(listener, connection, ends, attached, learn, Parameters::Connection(parameters)) {
            let _ = self.cm.delay_duplicates(self.now, connection, SERVICE_TIMEOUT, &[]);
        }
    }

    /// Rejects a request that no id has. Nothing of it remains: it would count as half open otherwise.
    fn refuse(&mut self, connection: ConnectionId, reason: RejectReason) {
        let _ = self.cm.reject(self.now, connection, reason, &[], &[]);
        self.cm.forget(self.now, connection);
    }

    fn service_requested(&mut self, connection: ConnectionId, from: &Address, request: &SidrRequest) {
        let found = self.listener(request.service_id, from, &request.private);
        let found = found.filter(|(listener, _)| self.ids.get(*listener).is_some_and(Id::is_datagram));
        let attached = match self.attached(from) {
            Ok(attached) => attached,
            Err(error) => return self.ignore(connection, error),
        };
        let Some(((listener, ends), attached)) = found.zip(attached) else {
            let refused = SidrReply { status: SidrStatus::UNSUPPORTED, ..SidrReply::default() };
            let _ = self.cm.answer_service(self.now, connection, &refused);
            self.cm.forget(self.now, connection);
            return;
        };
        let (private_data, private_data_len) = private(&request.private[IpHeader::LEN..]);
        let parameters = DatagramParameters { private_data, private_data_len, ..DatagramParameters::default() };
        self.announce(listener, connection, ends, attached, |_| {}, Parameters::Datagram(parameters));
    }

    /// Makes the id of a new connection, and tells the listener. Returns whether the listener had room for it. If not,
    /// the request is ignored, and its sender repeats it.
    fn announce(
        &mut self,
        number: u32,
        connection: ConnectionId,
        (local, remote): (SocketAddr, SocketAddr),
        attached: Attached,
        learn: impl FnOnce(&mut Id),
        parameters: Parameters,
    ) -> bool {
        let psn = self.host.random();
        let Some(listener) = self.ids.get_mut(number).filter(|listener| listener.backlog > 0) else {
            self.full_backlog(number, local, remote);
            let _ = self.cm.ignore(connection);
            return false;
        };
        let mut id = Id::new(listener.file, 0, listener.space, listener.qp_type, psn);
        let (file, uid) = (listener.file, listener.uid);
        (id.local, id.remote, id.attached) = (Some(local), Some(remote), Some(attached));
        (id.state, id.connection, id.has_path) = (State::Connect, Some(connection), true);
        learn(&mut id);
        let ece = crate::abi::Ece { vendor_id: id.ece.vendor_id, attr_mod: id.ece.options };
        let Some(new) = self.ids.insert(id) else {
            let _ = self.cm.ignore(connection);
            return false;
        };
        if let Some(listener) = self.ids.get_mut(number) {
            listener.backlog -= 1;
        }
        self.connections.insert(connection, new);
        let response = crate::abi::Event {
            uid,
            id: new,
            event: event::CONNECT_REQUEST,
            status: 0,
            parameters: parameters.bytes(),
            reserved: 0,
            ece,
        };
        if let Some(queue) = self.files.get_mut(&file) {
            queue.push(Queued { id: number, group: None, request: Some(new), response });
        }
        true
    }

    /// The listener for a request, and the addresses of the new connection: first a listener on the address itself,
    /// then one on all addresses.
    fn listener(&self, service: ServiceId, from: &Address, private: &[u8]) -> Option<(u32, (SocketAddr, SocketAddr))> {
        let header = IpHeader::parse(private)?;
        let port = service.as_ip()?.1;
        let scope = if is_link_local(header.destination) { from.device } else { 0 };
        let local = with_scope(SocketAddr::new(header.destination, port), scope);
        let remote = with_scope(header.source, if is_link_local(header.source.ip()) { from.device } else { 0 });
        let listens = |owner: &&Owner| self.ids.get(owner.id).is_some_and(|id| id.state == State::Listen);
        let owners = self.ports.owners(service.0);
        let exact = owners.iter().filter(listens).find(|owner| owner.address.ip() == local.ip());
        let any = |owner: &&Owner| {
            owner.address.ip().is_unspecified() && (!owner.family_only || owner.address.is_ipv4() == local.is_ipv4())
        };
        let found = exact.or_else(|| owners.iter().filter(listens).find(any))?;
        Some((found.id, (local, remote)))
    }

    /// The device at which a request has come. Errors: EMFILE, ENFILE.
    fn attached(&mut self, from: &Address) -> Result<Option<Attached>, Errno> {
        let scope = if is_link_local(from.local) { from.device } else { 0 };
        let Some((device, gid_index)) = self.host.device_of(from.local, scope)? else { return Ok(None) };
        match self.host.use_device(Some(&device.name)) {
            Ok(()) => Ok(Some(Attached { device, gid_index })),
            Err(error) if is_full(error) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Ignores a request, for which no descriptor is free: its sender repeats it.
    fn ignore(&mut self, connection: ConnectionId, error: Errno) {
        self.host.log(format_args!(
            "rdma_cm: a request for a connection waits until its sender repeats it, because no descriptor is free (errno {}): \
             raise the limit (`ulimit -n`)",
            error.0
        ));
        let _ = self.cm.ignore(connection);
    }
}

fn with_scope(address: SocketAddr, scope: u32) -> SocketAddr {
    match address {
        SocketAddr::V6(mut v6) => {
            v6.set_scope_id(scope);
            v6.into()
        }
        v4 => v4,
    }
}

/// Parameters of an event that have private data only.
fn with_private(datagram: bool, data: &[u8]) -> Parameters {
    let (private_data, private_data_len) = private(data);
    if datagram {
        Parameters::Datagram(DatagramParameters { private_data, private_data_len, ..DatagramParameters::default() })
    } else {
        Parameters::Connection(ConnectionParameters {
            private_data,
            private_data_len,
            ..ConnectionParameters::default()
        })
    }
}
