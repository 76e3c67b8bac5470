//! An id (`struct rdma_cm_id`): a listener or one end of a connection.

use crate::abi::port_space;
use crate::host::Device;
use std::net::SocketAddr;
use weir_cm::{ConnectionId, Ece, Request, Transport};
use weir_device::Errno;

/// What an id does. Addresses and routes are resolved at once, so there are no states of waiting for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Connect,
    Disconnect,
    Listen,
    /// Its device is gone: it can only be destroyed.
    Removed,
}

/// The kind of an id's QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    Rc,
    Uc,
    Ud,
    XrcInitiator,
    XrcTarget,
}

impl QpType {
    /// That of a port space; in the space IB the program chooses it (`enum ibv_qp_type`).
    pub fn of(space: u16, chosen: u8) -> Result<QpType, Errno> {
        match (space, chosen) {
            (port_space::TCP, _) | (port_space::IB, 2) => Ok(QpType::Rc),
            (port_space::UDP | port_space::IPOIB, _) | (port_space::IB, 4) => Ok(QpType::Ud),
            (port_space::IB, 3) => Ok(QpType::Uc),
            (port_space::IB, 9) => Ok(QpType::XrcInitiator),
            (port_space::IB, 10) => Ok(QpType::XrcTarget),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The kind of connection; datagrams have none.
    pub fn transport(self) -> Transport {
        match self {
            QpType::Uc => Transport::Uc,
            QpType::XrcInitiator | QpType::XrcTarget => Transport::Xrc,
            QpType::Rc | QpType::Ud => Transport::Rc,
        }
    }

    /// Returns whether a listener takes a request for this kind of connection.
    pub fn takes(self, transport: Transport) -> bool {
        match self {
            QpType::Rc => transport == Transport::Rc,
            QpType::Uc => transport == Transport::Uc,
            QpType::XrcTarget => transport == Transport::Xrc,
            QpType::Ud | QpType::XrcInitiator => false,
        }
    }
}

/// The device of an id, and the index of the id's address in the device's GID table.
#[derive(Clone, Debug)]
pub struct Attached {
    pub device: Device,
    pub gid_index: u8,
}

/// What is known of the peer's QP, and agreed with the peer.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    pub qpn: u32,
    /// The peer receives packets from this PSN on.
    pub psn: u32,
    /// READs and atomics of the peer that this side's QP accepts at a time.
    pub responder_resources: u8,
    /// READs and atomics of this side's QP in flight.
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub path_mtu: u8,
    /// ACK timeout of this side's QP, as `ibv_qp_attr::timeout`.
    pub timeout: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub service_level: u8,
    pub flow_label: u32,
    /// The peer's QP is known.
    pub known: bool,
}

/// An id.
pub struct Id {
    /// The file that it belongs to.
    pub file: u64,
    /// The program's name for it; 0: a request that is not accepted yet, which has no events.
    pub uid: u64,
    pub space: u16,
    pub qp_type: QpType,
    pub state: State,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// It has bound the port of `local`.
    pub owns_port: bool,
    pub attached: Option<Attached>,
    /// The route is known: a path can be queried.
    pub has_path: bool,
    pub traffic_class: Option<u8>,
    pub reuse: bool,
    pub family_only: Option<bool>,
    pub ack_timeout: Option<u8>,
    /// The PSN from which this side receives.
    pub psn: u32,
    /// Requests that may wait for the program; of a listener.
    pub backlog: u32,
    pub events_reported: u32,
    pub connection: Option<ConnectionId>,
    pub agreed: Agreed,
    pub qkey: u32,
    pub qpn: u32,
    /// The peer's ECE.
    pub ece: Ece,
    /// The numbers of the multicast groups that it has joined.
    pub groups: Vec<u32>,
}

impl Id {
    /// A new one.
    pub fn new(file: u64, uid: u64, space: u16, qp_type: QpType, psn: u32) -> Id {
        Id {
            file,
            uid,
            space,
            qp_type,
            state: State::Idle,
            local: None,
            remote: None,
            owns_port: false,
            attached: None,
            has_path: false,
            traffic_class: None,
            reuse: false,
            family_only: None,
            ack_timeout: None,
            psn: psn & 0xff_ffff,
            backlog: 0,
            events_reported: 0,
            connection: None,
            agreed: Agreed::default(),
            qkey: 0,
            qpn: 0,
            ece: Ece::default(),
            groups: Vec::new(),
        }
    }

    pub fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }

    /// Returns whether it is for addresses of its own family only. IPv4 addresses always are.
    pub fn is_family_only(&self) -> bool {
        self.family_only.unwrap_or(false) || self.local.is_some_and(|local| local.is_ipv4())
    }

    /// How long the device takes for an ACK.
    pub fn ack_delay(&self) -> u8 {
        self.attached.as_ref().map_or(0, |attached| attached.device.ack_delay)
    }

    /// What the request of the active side says becomes known.
    pub fn learn_request(&mut self, request: &Request) {
        self.agreed = Agreed {
            qpn: request.qpn,
            psn: request.starting_psn,
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            path_mtu: request.path_mtu,
            timeout: ack_timeout(self.ack_delay(), request.ack_timeout.saturating_sub(1)),
            hop_limit: request.hop_limit,
            traffic_class: request.traffic_class,
            service_level: request.service_level,
            flow_label: request.flow_label,
            known: true,
        };
        self.ece = request.ece;
    }
}

/// A multicast group that an id has joined.
pub struct Group {
    pub id: u32,
    pub events_reported: u32,
}

/// The Q_Key of UDP's port space and of multicast groups.
pub const UDP_QKEY: u32 = 0x0123_4567;
/// The time of a packet's way that Linux assumes on RoCE, 4.096 µs · 2^value.
pub const PACKET_LIFE_TIME: u8 = 16;

/// The ACK timeout of a QP: twice the time of a packet's way, and the time that the peer needs, rounded up as Linux
/// does (IBTA 9.7.6.1.3, 12.7.34).
pub fn ack_timeout(peer_delay: u8, packet_life_time: u8) -> u8 {
    let round_trip = packet_life_time + 1;
    let sum = if round_trip >= peer_delay {
        round_trip + u8::from(peer_delay >= round_trip - 1)
    } else {
        peer_delay + u8::from(round_trip >= peer_delay - 1)
    };
    sum.min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts_are_those_of_linux() {
        assert_eq!([ack_timeout(15, 16), ack_timeout(16, 16), ack_timeout(0, 16)], [17, 18, 17]);
        assert_eq!([ack_timeout(20, 16), ack_timeout(17, 16), ack_timeout(31, 31)], [20, 18, 31]);
    }

    #[test]
    fn qp_types_follow_from_the_port_space() {
        assert_eq!(QpType::of(port_space::TCP, 99), Ok(QpType::Rc));
        assert_eq!(QpType::of(port_space::UDP, 0), Ok(QpType::Ud));
        assert_eq!(QpType::of(port_space::IB, 3), Ok(QpType::Uc));
        assert_eq!(QpType::of(port_space::IB, 8), Err(Errno(libc::EINVAL)));
        assert_eq!(QpType::of(0x1234, 2), Err(Errno(libc::EINVAL)));
    }
}
