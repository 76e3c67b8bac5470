//! The messages that set up and end a connection.

use super::bits::message;
use super::{RejectReason, ServiceId};
use std::net::Ipv6Addr;

message! {
    /// A path between two ports, as the REQ describes it (IBTA 12.6.5). Ports of RoCE have no LIDs.
    Path {
        local_lid: u16 = (0, 0, 16),
        remote_lid: u16 = (2, 0, 16),
        /// The GID of the sender of the REQ; IPv4 addresses are mapped into IPv6.
        local_gid: Ipv6Addr = (4, 0, 128),
        remote_gid: Ipv6Addr = (20, 0, 128),
        flow_label: u32 = (36, 0, 20),
        /// Static rate (IBTA 9.11.1).
        packet_rate: u8 = (39, 2, 6),
        traffic_class: u8 = (40, 0, 8),
        hop_limit: u8 = (41, 0, 8),
        service_level: u8 = (42, 0, 4),
        subnet_local: bool = (42, 4, 1),
        /// Local ACK timeout of the sender's QP: 4.096 µs · 2^value.
        ack_timeout: u8 = (43, 0, 5),
    }
}
message! {
    /// REQ: the active side asks for a connection (IBTA 12.6.5).
    Req {
        /// The sender's communication ID.
        local_comm_id: u32 = (0, 0, 32),
        /// Vendor of the enhanced connection establishment (ECE); its options are the header's attribute modifier.
        ece_vendor: u32 = (5, 0, 24),
        service_id: ServiceId = (8, 0, 64),
        /// The sender's node GUID.
        ca_guid: u64 = (16, 0, 64),
        qkey: u32 = (28, 0, 32),
        qpn: u32 = (32, 0, 24),
        /// How many READs and atomics the sender accepts at a time.
        responder_resources: u8 = (35, 0, 8),
        local_eecn: u32 = (36, 0, 24),
        /// How many READs and atomics the sender has in flight at a time.
        initiator_depth: u8 = (39, 0, 8),
        remote_eecn: u32 = (40, 0, 24),
        /// Within 4.096 µs · 2^value the receiver has to answer.
        remote_response_timeout: u8 = (43, 0, 5),
        /// RC 0, UC 1, RD 2, given by `extended_transport` 3.
        transport_service: u8 = (43, 5, 2),
        flow_control: bool = (43, 7, 1),
        starting_psn: u32 = (44, 0, 24),
        /// Within 4.096 µs · 2^value the sender answers.
        local_response_timeout: u8 = (47, 0, 5),
        retry_count: u8 = (47, 5, 3),
        pkey: u16 = (48, 0, 16),
        /// 256 · 2^(value - 1) bytes.
        path_mtu: u8 = (50, 0, 4),
        rdc_exists: bool = (50, 4, 1),
        rnr_retry_count: u8 = (50, 5, 3),
        /// How often either side repeats a message that is not answered.
        max_cm_retries: u8 = (51, 0, 4),
        srq: bool = (51, 4, 1),
        /// XRC is 1 (IBTA annex A14).
        extended_transport: u8 = (51, 5, 3),
        primary: Path = (52, 0, 352),
        alternate: Path = (96, 0, 352),
        private: [u8; 92] = (140, 0, 736),
    }
}
message! {
    /// MRA: a REQ, REP or LAP is received, its answer needs more time (IBTA 12.6.6).
    Mra {
        local_comm_id: u32 = (0, 0, 32),
        remote_comm_id: u32 = (4, 0, 32),
        /// REQ 0, REP 1, LAP 2.
        message: u8 = (8, 0, 2),
        /// The answer comes within 4.096 µs · 2^value.
        service_timeout: u8 = (9, 0, 5),
        private: [u8; 222] = (10, 0, 1776),
    }
}
message! {
    /// REJ: the sender refuses, or gives up (IBTA 12.6.7).
    Rej {
        local_comm_id: u32 = (0, 0, 32),
        remote_comm_id: u32 = (4, 0, 32),
        /// REQ 0, REP 1, none of them 2.
        message: u8 = (8, 0, 2),
        /// Valid bytes of `ari`.
        ari_len: u8 = (9, 0, 7),
        reason: RejectReason = (10, 0, 16),
        /// Additional rejection information; its meaning is that of the reason.
        ari: [u8; 72] = (12, 0, 576),
        private: [u8; 148] = (84, 0, 1184),
    }
}
message! {
    /// REP: the passive side accepts (IBTA 12.6.8).
    Rep {
        local_comm_id: u32 = (0, 0, 32),
        remote_comm_id: u32 = (4, 0, 32),
        qkey: u32 = (8, 0, 32),
        qpn: u32 = (12, 0, 24),
        /// Vendor of the enhanced connection establishment (ECE), its three bytes at three places; its options are the
        /// header's attribute modifier.
        ece_vendor_high: u8 = (15, 0, 8),
        local_eecn: u32 = (16, 0, 24),
        ece_vendor_middle: u8 = (19, 0, 8),
        starting_psn: u32 = (20, 0, 24),
        ece_vendor_low: u8 = (23, 0, 8),
        responder_resources: u8 = (24, 0, 8),
        initiator_depth: u8 = (25, 0, 8),
        /// The sender's QP needs up to 4.096 µs · 2^value to answer a packet.
        target_ack_delay: u8 = (26, 0, 5),
        /// The alternate path: accepted 0, not supported 1, rejected 2.
        failover: u8 = (26, 5, 2),
        flow_control: bool = (26, 7, 1),
        rnr_retry_count: u8 = (27, 0, 3),
        srq: bool = (27, 3, 1),
        /// The sender's node GUID.
        ca_guid: u64 = (28, 0, 64),
        private: [u8; 196] = (36, 0, 1568),
    }
}
message! {
    /// RTU: the active side is ready to use the connection (IBTA 12.6.9).
    Rtu {
        local_comm_id: u32 = (0, 0, 32),
        remote_comm_id: u32 = (4, 0, 32),
        private: [u8; 224] = (8, 0, 1792),
    }
}
message! {
    /// DREQ: the sender ends the connection (IBTA 12.6.10).
    Dreq {
        local_comm_id: u32 = (0, 0, 32),
        remote_comm_id: u32 = (4, 0, 32),
        /// The QP of the receiver.
        remote_qpn: u32 = (8, 0, 24),
        private: [u8; 220] = (12, 0, 1760),
    }
}
message! {
    /// DREP: the answer to DREQ (IBTA 12.6.11).
    Drep {
        local_comm_id: u32 = (0, 0, 32),
        remote_comm_id: u32 = (4, 0, 32),
        private: [u8; 224] = (8, 0, 1792),
    }
}
