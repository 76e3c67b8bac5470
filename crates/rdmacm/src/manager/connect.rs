//! Connections: what the program asks for.

use super::id::{Id, PACKET_LIFE_TIME, State, UDP_QKEY, ack_timeout};
use super::{Done, EINVAL, Manager, Outcome};
use crate::abi::{self, ConnectionParameters};
use crate::ports;
use weir_cm::{
    Address, ConnectionId, Ece, Error, IpHeader, RejectReason, Reply, Request, ServiceId, SidrReply, SidrRequest,
    SidrStatus,
};
use weir_device::Errno;

/// The most requests that wait for the program, as the kernel's default of max_backlog.
const MOST_BACKLOG: u32 = 1024;
/// Retry counts have three bits.
const MOST_RETRIES: u8 = 7;
/// `IBV_EVENT_COMM_EST`, and the events of path migration.
const COMMUNICATION_ESTABLISHED: u32 = 4;

impl Manager {
    pub(super) fn listen(&mut self, file: u64, command: abi::Listen) -> Outcome {
        if self.id(file, command.id)?.state == State::Idle {
            self.bind_to_any(command.id)?;
        }
        let id = self.id(file, command.id)?;
        if id.state != State::Bound {
            return Err(EINVAL);
        }
        let device = id.attached.as_ref().map(|attached| attached.device.name.clone());
        let (space, owner) = self.owner(command.id).ok_or(EINVAL)?;
        // A port that was bound for reuse must be free of other listeners.
        let free = self.ports.check(space, &owner, false);
        free.map_err(|error| self.no_port(command.id, "rdma_listen", error))?;
        self.host.use_device(device.as_deref())?;
        let listens = self.ports.listen(&mut *self.host, space, owner.address.port());
        listens.map_err(|error| self.no_port(command.id, "rdma_listen", error))?;
        let id = self.id(file, command.id)?;
        id.state = State::Listen;
        id.backlog = if (1..MOST_BACKLOG).contains(&command.backlog) { command.backlog } else { MOST_BACKLOG };
        Ok(Done::Nothing)
    }

    pub(super) fn connect(&mut self, file: u64, command: abi::Connect) -> Outcome {
        let parameters = command.parameters;
        if parameters.valid == 0 {
            return Err(EINVAL);
        }
        let id = self.id(file, command.id)?;
        if id.state != State::RouteResolved {
            return Err(EINVAL);
        }
        let (local, remote) = (id.local.ok_or(EINVAL)?, id.remote.ok_or(EINVAL)?);
        let attached = id.attached.clone().ok_or(EINVAL)?;
        let to = Address { local: local.ip(), remote: remote.ip(), device: attached.device.ifindex };
        let header = IpHeader { source: local, destination: remote.ip() }.emit();
        let private = [&header[..], private(&parameters)].concat();
        let service_id = ServiceId(ports::service(id.space, remote.port()));
        let request = (!id.is_datagram()).then(|| Request {
            service_id,
            ca_guid: attached.device.guid,
            transport: id.qp_type.transport(),
            qpn: parameters.qp_num,
            starting_psn: id.psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            flow_control: parameters.flow_control != 0,
            srq: parameters.srq != 0,
            retry_count: parameters.retry_count.min(MOST_RETRIES),
            rnr_retry_count: parameters.rnr_retry_count.min(MOST_RETRIES),
            path_mtu: attached.device.mtu,
            ack_timeout: ack_timeout(id.ack_delay(), life_time(id)),
            traffic_class: id.traffic_class.unwrap_or(0),
            ece: Ece { vendor_id: command.ece.vendor_id, options: command.ece.attr_mod },
            private: private.clone(),
            ..Request::default()
        });
        id.qpn = parameters.qp_num;
        id.qkey = if parameters.qkey == 0 { UDP_QKEY } else { parameters.qkey };
        self.host.use_device(Some(&attached.device.name))?;
        let connection = match &request {
            Some(request) => self.cm.connect(self.now, &to, request),
            None => {
                self.cm.resolve_service(self.now, &to, &SidrRequest { service_id, private, ..SidrRequest::default() })
            }
        };
        let connection = connection.map_err(errno)?;
        let id = self.id(file, command.id)?;
        if let Some(request) = request {
            id.agreed.responder_resources = request.responder_resources;
            id.agreed.initiator_depth = request.initiator_depth;
            id.agreed.retry_count = request.retry_count;
            id.agreed.path_mtu = request.path_mtu;
            id.agreed.hop_limit = request.hop_limit;
            id.agreed.traffic_class = request.traffic_class;
        }
        (id.connection, id.state) = (Some(connection), State::Connect);
        self.connections.insert(connection, command.id);
        Ok(Done::Nothing)
    }

    pub(super) fn accept(&mut self, file: u64, command: abi::Accept) -> Outcome {
        let id = self.id(file, command.id)?;
        let connection = id.connection.filter(|_| id.state == State::Connect).ok_or(EINVAL)?;
        let datagram = id.is_datagram();
        let accepted = self.accept_connection(file, command, connection);
        if accepted.is_err() {
            // As the kernel: the peer need not wait.
            if datagram {
                let none = ConnectionParameters::default();
                let _ = self.answer(self.now, command.id, connection, SidrStatus::REJECTED, &none, &[]);
            } else {
                let _ = self.cm.reject(self.now, connection, RejectReason::CONSUMER, &[], &[]);
            }
        }
        accepted
    }

    fn accept_connection(&mut self, file: u64, command: abi::Accept, connection: ConnectionId) -> Outcome {
        let parameters = command.parameters;
        let now = self.now;
        let id = self.id(file, command.id)?;
        if parameters.valid == 0 {
            // The active side has connected its QP.
            if id.is_datagram() {
                return self.answer(now, command.id, connection, SidrStatus::VALID, &parameters, &[]);
            }
            return self.cm.ready(connection, &[]).map_err(errno).map(|()| Done::Nothing);
        }
        if id.is_datagram() {
            id.qpn = parameters.qp_num;
            id.qkey = if parameters.qkey == 0 { UDP_QKEY } else { parameters.qkey };
            self.answer(now, command.id, connection, SidrStatus::VALID, &parameters, private(&parameters))?;
            self.id(file, command.id)?.uid = command.uid;
            return Ok(Done::Nothing);
        }
        let reply = Reply {
            ca_guid: id.attached.as_ref().map_or(0, |attached| attached.device.guid),
            qpn: parameters.qp_num,
            starting_psn: id.psn,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            flow_control: parameters.flow_control != 0,
            srq: parameters.srq != 0,
            rnr_retry_count: parameters.rnr_retry_count.min(MOST_RETRIES),
            target_ack_delay: id.ack_delay(),
            ece: Ece { vendor_id: command.ece.vendor_id, options: command.ece.attr_mod },
            private: private(&parameters).to_vec(),
            ..Reply::default()
        };
        id.qpn = parameters.qp_num;
        self.cm.accept(now, connection, &reply).map_err(errno)?;
        let id = self.id(file, command.id)?;
        id.uid = command.uid;
        id.agreed.responder_resources = reply.responder_resources;
        id.agreed.initiator_depth = reply.initiator_depth;
        Ok(Done::Nothing)
    }

    pub(super) fn reject(&mut self, file: u64, command: abi::Reject) -> Outcome {
        let reason = match command.reason {
            0 => RejectReason::CONSUMER,
            reason => RejectReason(u16::from(reason)),
        };
        if reason != RejectReason::CONSUMER && reason != RejectReason::VENDOR_OPTION_UNSUPPORTED {
            return Err(EINVAL);
        }
        let now = self.now;
        let id = self.id(file, command.id)?;
        let connection = id.connection.ok_or(EINVAL)?;
        let private = &command.private_data[..usize::from(command.private_data_len)];
        if id.is_datagram() {
            let none = ConnectionParameters::default();
            return self.answer(now, command.id, connection, SidrStatus::REJECTED, &none, private);
        }
        self.cm.reject(now, connection, reason, &[], private).map_err(errno)?;
        Ok(Done::Nothing)
    }

    /// Answers the resolution of a service.
    fn answer(
        &mut self,
        now: weir_transport::Instant,
        number: u32,
        connection: ConnectionId,
        status: SidrStatus,
        parameters: &ConnectionParameters,
        private: &[u8],
    ) -> Outcome {
        let id = self.ids.get(number).ok_or(EINVAL)?;
        let qkey = if id.qkey == 0 { UDP_QKEY } else { id.qkey };
        let (qpn, qkey) = if status == SidrStatus::VALID { (parameters.qp_num, qkey) } else { (0, 0) };
        let reply = SidrReply { status, qpn, qkey, info: Vec::new(), private: private.to_vec() };
        self.cm.answer_service(now, connection, &reply).map_err(errno)?;
        Ok(Done::Nothing)
    }

    pub(super) fn disconnect(&mut self, file: u64, command: abi::Disconnect) -> Outcome {
        let now = self.now;
        let connection = self.id(file, command.id)?.connection.ok_or(EINVAL)?;
        // Where there is nothing to end, the kernel reports no error.
        let _ = self.cm.disconnect(now, connection, &[]);
        Ok(Done::Nothing)
    }

    pub(super) fn notify(&mut self, file: u64, command: abi::Notify) -> Outcome {
        let connection = self.id(file, command.id)?.connection.ok_or(EINVAL)?;
        if command.event != COMMUNICATION_ESTABLISHED {
            return Err(EINVAL);
        }
        self.cm.established(connection).map_err(errno)?;
        Ok(Done::Nothing)
    }
}

/// The private data that a program sends.
fn private(parameters: &ConnectionParameters) -> &[u8] {
    &parameters.private_data[..usize::from(parameters.private_data_len)]
}

/// The time of a packet's way, from the ACK timeout if the program has set one.
fn life_time(id: &Id) -> u8 {
    id.ack_timeout.filter(|timeout| *timeout > 0).map_or(PACKET_LIFE_TIME, |timeout| timeout - 1)
}

/// The kernel's error for a call that the protocol refuses.
pub(super) fn errno(error: Error) -> Errno {
    Errno(match error {
        Error::NoIds => libc::ENOMEM,
        Error::Connected => libc::EISCONN,
        Error::UnknownId | Error::WrongState | Error::TooLong | Error::Families => libc::EINVAL,
    })
}
