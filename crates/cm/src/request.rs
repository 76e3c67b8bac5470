//! What the two sides say about their QPs.

use crate::{Address, Error};
use weir_wire::cm::{Path, Rep, Req, ServiceId};

/// What kind of QPs a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    #[default]
    Rc,
    Uc,
    /// The active side has the initiator, the passive side the target.
    Xrc,
}

/// Enhanced connection establishment: capabilities that a vendor's adapters agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ece {
    /// 24 bits.
    pub vendor_id: u32,
    pub options: u32,
}

/// What the active side asks for (IBTA 12.6.5). `responder_resources` and `initiator_depth` are those of the active
/// side's QP, also in the request that the passive side sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub service_id: ServiceId,
    /// The node GUID of the active side.
    pub ca_guid: u64,
    pub transport: Transport,
    pub qpn: u32,
    pub qkey: u32,
    pub starting_psn: u32,
    /// How many READs and atomics the QP accepts at a time.
    pub responder_resources: u8,
    /// How many READs and atomics the QP has in flight at a time.
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub srq: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub pkey: u16,
    /// As `enum ibv_mtu`: 256 · 2^(value - 1) bytes.
    pub path_mtu: u8,
    /// The passive side has 4.096 µs · 2^value to answer, the packet's way not counted.
    pub remote_response_timeout: u8,
    /// The active side answers within 4.096 µs · 2^value.
    pub local_response_timeout: u8,
    /// How often either side repeats a message that is not answered; 15 at most.
    pub max_retries: u8,
    /// Local ACK timeout of the QP, 4.096 µs · 2^value: twice the time of a packet's way. It is also the time for which
    /// the connection stays in timewait.
    pub ack_timeout: u8,
    pub flow_label: u32,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub service_level: u8,
    /// Static rate, as `enum ibv_rate`.
    pub packet_rate: u8,
    pub ece: Ece,
    /// 92 bytes at most; a received request has all 92.
    pub private: Vec<u8>,
}

/// The timeouts and retries of Linux's rdma_cm; everything else is zero.
impl Default for Request {
    fn default() -> Self {
        Request {
            service_id: ServiceId(0),
            ca_guid: 0,
            transport: Transport::Rc,
            qpn: 0,
            qkey: 0,
            starting_psn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            srq: false,
            retry_count: 7,
            rnr_retry_count: 7,
            pkey: weir_wire::DEFAULT_PKEY,
            path_mtu: 3,
            remote_response_timeout: 20,
            local_response_timeout: 20,
            max_retries: 15,
            ack_timeout: 19,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
            packet_rate: 0,
            ece: Ece::default(),
            private: Vec::new(),
        }
    }
}

/// What the passive side answers (IBTA 12.6.8); everything is about its own QP.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Reply {
    /// The node GUID of the passive side.
    pub ca_guid: u64,
    pub qpn: u32,
    pub qkey: u32,
    pub starting_psn: u32,
    /// How many READs and atomics the QP accepts at a time.
    pub responder_resources: u8,
    /// How many READs and atomics the QP has in flight at a time.
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub srq: bool,
    pub rnr_retry_count: u8,
    /// The QP answers a packet within 4.096 µs · 2^value.
    pub target_ack_delay: u8,
    pub ece: Ece,
    /// 196 bytes at most; a received reply has all 196.
    pub private: Vec<u8>,
}

/// The LID that Linux sends for a path through routers, where it cannot know one.
const PERMISSIVE_LID: u16 = 0xffff;

impl Request {
    /// The message; counts and exponents that are too great for their bits are the greatest. Linux says "subnet local" and LID 0 for a hop limit up to 1, otherwise the permissive LID.
    pub(crate) fn message(&self, local_comm_id: u32, address: &Address) -> Result<Req, Error> {
        let (transport_service, extended_transport) = match self.transport {
            Transport::Rc => (0, 0),
            Transport::Uc => (1, 0),
            Transport::Xrc => (3, 1),
        };
        let subnet_local = self.hop_limit <= 1;
        let lid = if subnet_local { 0 } else { PERMISSIVE_LID };
        Ok(Req {
            local_comm_id,
            ece_vendor: self.ece.vendor_id,
            service_id: self.service_id,
            ca_guid: self.ca_guid,
            qkey: self.qkey,
            qpn: self.qpn,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            remote_response_timeout: self.remote_response_timeout.min(31),
            transport_service,
            flow_control: self.flow_control,
            starting_psn: self.starting_psn,
            local_response_timeout: self.local_response_timeout.min(31),
            retry_count: self.retry_count.min(7),
            pkey: self.pkey,
            path_mtu: self.path_mtu,
            rnr_retry_count: self.rnr_retry_count.min(7),
            max_cm_retries: self.max_retries.min(15),
            srq: self.srq,
            extended_transport,
            primary: Path {
                local_lid: lid,
                remote_lid: lid,
                local_gid: address.local_gid(),
                remote_gid: address.remote_gid(),
                flow_label: self.flow_label,
                packet_rate: self.packet_rate,
                traffic_class: self.traffic_class,
                hop_limit: self.hop_limit,
                service_level: self.service_level,
                subnet_local,
                ack_timeout: self.ack_timeout.min(31),
            },
            private: padded(&self.private)?,
            ..Req::default()
        })
    }

    /// The request in a message, with the options of its ECE. None if it is for QPs that do not exist here.
    pub(crate) fn from_message(req: &Req, ece_options: u32) -> Option<Request> {
        let transport = match (req.transport_service, req.extended_transport) {
            (0, _) => Transport::Rc,
            (1, _) => Transport::Uc,
            (3, 1) => Transport::Xrc,
            _ => return None,
        };
        Some(Request {
            service_id: req.service_id,
            ca_guid: req.ca_guid,
            transport,
            qpn: req.qpn,
            qkey: req.qkey,
            starting_psn: req.starting_psn,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: req.flow_control,
            srq: req.srq,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            pkey: req.pkey,
            path_mtu: req.path_mtu,
            remote_response_timeout: req.remote_response_timeout,
            local_response_timeout: req.local_response_timeout,
            max_retries: req.max_cm_retries,
            ack_timeout: req.primary.ack_timeout,
            flow_label: req.primary.flow_label,
            traffic_class: req.primary.traffic_class,
            hop_limit: req.primary.hop_limit,
            service_level: req.primary.service_level,
            packet_rate: req.primary.packet_rate,
            ece: Ece { vendor_id: req.ece_vendor, options: ece_options },
            private: req.private.to_vec(),
        })
    }
}

impl Reply {
    /// The message. The QPN of an XRC target stands where other transports have an EE context.
    pub(crate) fn message(&self, ids: (u32, u32), transport: Transport) -> Result<Rep, Error> {
        let xrc = transport == Transport::Xrc;
        let [_, high, middle, low] = self.ece.vendor_id.to_be_bytes();
        Ok(Rep {
            local_comm_id: ids.0,
            remote_comm_id: ids.1,
            qkey: self.qkey,
            qpn: if xrc { 0 } else { self.qpn },
            ece_vendor_high: high,
            local_eecn: if xrc { self.qpn } else { 0 },
            ece_vendor_middle: middle,
            starting_psn: self.starting_psn,
            ece_vendor_low: low,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            target_ack_delay: self.target_ack_delay.min(31),
            flow_control: self.flow_control,
            rnr_retry_count: self.rnr_retry_count.min(7),
            srq: self.srq || xrc,
            ca_guid: self.ca_guid,
            private: padded(&self.private)?,
            ..Rep::default()
        })
    }

    /// The reply in a message, with the options of its ECE.
    pub(crate) fn from_message(rep: &Rep, transport: Transport, ece_options: u32) -> Reply {
        let vendor = [0, rep.ece_vendor_high, rep.ece_vendor_middle, rep.ece_vendor_low];
        Reply {
            ca_guid: rep.ca_guid,
            qpn: if transport == Transport::Xrc { rep.local_eecn } else { rep.qpn },
            qkey: rep.qkey,
            starting_psn: rep.starting_psn,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            flow_control: rep.flow_control,
            srq: rep.srq,
            rnr_retry_count: rep.rnr_retry_count,
            target_ack_delay: rep.target_ack_delay,
            ece: Ece { vendor_id: u32::from_be_bytes(vendor), options: ece_options },
            private: rep.private.to_vec(),
        }
    }
}

/// Data that fills its field, with zeros behind it.
pub(crate) fn padded<const N: usize>(data: &[u8]) -> Result<[u8; N], Error> {
    let mut field = [0; N];
    field.get_mut(..data.len()).ok_or(Error::TooLong)?.copy_from_slice(data);
    Ok(field)
}
