//! One packet in every encapsulation.

use crate::LinkType;
use std::net::{IpAddr, Ipv6Addr};
use weir_wire::ip::{Envelope, UDP_LEN, fill_ipv4_checksum};
use weir_wire::{ICRC_LEN, ROCE_PORT, icrc};

/// What a packet is carried in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    Ipv4,
    Ipv6,
    Ipv4Vlan,
    /// Two VLAN tags.
    Ipv6QinQ,
    /// IPv4 with options.
    Ipv4Options,
    /// IPv6 with extension headers.
    Ipv6Extensions,
    RoceV1,
    RoceV1Vlan,
    /// InfiniBand without a GRH.
    Local,
    /// InfiniBand with a GRH.
    Global,
    CookedIpv4,
    CookedVlanIpv6,
    CookedRoceV1,
    Cooked2Ipv4,
    Cooked2Ipv6,
    /// In ERF records, as `ibdump` writes them.
    ErfLocal,
    ErfGlobal,
    ErfEthernet,
}

use Carried::*;

/// DSCP 0x1a and ECN 2.
const CLASS: u8 = 0x6a;
const HOP_LIMIT: u8 = 61;
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_QINQ: [u8; 2] = [0x88, 0xa8];
const ETHERTYPE_ROCE_V1: [u8; 2] = [0x89, 0x15];

impl Carried {
    pub const ALL: [Carried; 18] = [
        Ipv4,
        Ipv6,
        Ipv4Vlan,
        Ipv6QinQ,
        Ipv4Options,
        Ipv6Extensions,
        RoceV1,
        RoceV1Vlan,
        Local,
        Global,
        CookedIpv4,
        CookedVlanIpv6,
        CookedRoceV1,
        Cooked2Ipv4,
        Cooked2Ipv6,
        ErfLocal,
        ErfGlobal,
        ErfEthernet,
    ];
    /// UDP source port of RoCEv2.
    pub const SRC_PORT: u16 = 20_500;
    pub const TRAFFIC_CLASS: u8 = CLASS;
    pub const LIDS: [u16; 2] = [0x0105, 0x0209];
    pub const SERVICE_LEVEL: u8 = 5;
    /// Nanoseconds since 1970 in ERF records.
    pub const ERF_TIME: u64 = 9_500_000_000;

    /// The LINKTYPE of its frames in a file.
    pub fn link_type(self) -> u16 {
        match self {
            Local | Global => LinkType::Infiniband.number(),
            CookedIpv4 | CookedVlanIpv6 | CookedRoceV1 => LinkType::Cooked.number(),
            Cooked2Ipv4 | Cooked2Ipv6 => LinkType::Cooked2.number(),
            ErfLocal | ErfGlobal | ErfEthernet => crate::frame::LINKTYPE_ERF,
            _ => LinkType::Ethernet.number(),
        }
    }

    /// IP addresses or GIDs of sender and receiver; `None` for LIDs.
    pub fn addresses(self) -> Option<[IpAddr; 2]> {
        let texts = match self {
            Ipv4 | Ipv4Vlan | Ipv4Options | CookedIpv4 | Cooked2Ipv4 | ErfEthernet => ["10.0.0.1", "10.0.0.2"],
            Local | ErfLocal => return None,
            _ => ["fe80::1", "fe80::2:3"],
        };
        Some(texts.map(|text| text.parse().expect("an address")))
    }

    /// The innermost VLAN.
    pub fn vlan(self) -> Option<u16> {
        match self {
            Ipv4Vlan | CookedVlanIpv6 | RoceV1Vlan => Some(5),
            Ipv6QinQ => Some(0xffe),
            _ => None,
        }
    }

    /// The frame of a packet, which is given from BTH to pad.
    pub fn frame(self, transport: &[u8]) -> Vec<u8> {
        self.around(self.network(transport))
    }

    /// The frame of a UDP datagram between these ports; `None` for what carries no UDP.
    pub fn udp(self, ports: [u16; 2], payload: &[u8]) -> Option<Vec<u8>> {
        match self {
            RoceV1 | RoceV1Vlan | CookedRoceV1 | Local | Global | ErfLocal | ErfGlobal => None,
            _ => Some(self.around(self.ip(&self.envelope(ports), payload))),
        }
    }

    /// A frame around what begins with the network header.
    fn around(self, network: Vec<u8>) -> Vec<u8> {
        let ethernet = |rest: &[&[u8]]| padded([&[2; 12][..], &rest.concat()].concat());
        let tag = |vlan: u16| (0x6000 | vlan).to_be_bytes();
        match self {
            Ipv4 | Ipv4Options => ethernet(&[&[8, 0], &network]),
            Ipv6 | Ipv6Extensions => ethernet(&[&[0x86, 0xdd], &network]),
            Ipv4Vlan => ethernet(&[&ETHERTYPE_VLAN, &tag(5), &[8, 0], &network]),
            Ipv6QinQ => ethernet(&[&ETHERTYPE_QINQ, &tag(7), &ETHERTYPE_VLAN, &tag(0xffe), &[0x86, 0xdd], &network]),
            RoceV1 => ethernet(&[&ETHERTYPE_ROCE_V1, &network]),
            RoceV1Vlan => ethernet(&[&ETHERTYPE_VLAN, &tag(5), &ETHERTYPE_ROCE_V1, &network]),
            Local | Global => network,
            CookedIpv4 => [&cooked(4), &[8, 0][..], &network].concat(),
            CookedVlanIpv6 => [&cooked(0), &ETHERTYPE_VLAN[..], &tag(5), &[0x86, 0xdd], &network].concat(),
            CookedRoceV1 => [&cooked(0), &ETHERTYPE_ROCE_V1[..], &network].concat(),
            Cooked2Ipv4 => [&cooked2([8, 0], 4)[..], &network].concat(),
            Cooked2Ipv6 => [&cooked2([0x86, 0xdd], 0)[..], &network].concat(),
            ErfLocal | ErfGlobal => erf(21, &[], &network),
            // Two bytes in front of the frame align its IP header.
            ErfEthernet => erf(2, &[0; 2], &ethernet(&[&[8, 0], &network])),
        }
    }

    /// From the network header to the ICRC, for InfiniBand to the VCRC.
    fn network(self, body: &[u8]) -> Vec<u8> {
        match self {
            RoceV1 | RoceV1Vlan | CookedRoceV1 => {
                let grh = self.grh(body.len() + ICRC_LEN);
                [&grh[..], body, &icrc::compute_global(&grh, body).to_le_bytes()].concat()
            }
            Local | ErfLocal => {
                let lrh = lrh(2, body.len());
                [&lrh[..], body, &icrc::compute_local(&lrh, body).to_le_bytes(), &[0xee; 2]].concat()
            }
            Global | ErfGlobal => {
                let grh = self.grh(body.len() + ICRC_LEN);
                let icrc = icrc::compute_global(&grh, body).to_le_bytes();
                [&lrh(3, grh.len() + body.len())[..], &grh, body, &icrc, &[0xee; 2]].concat()
            }
            _ => {
                let envelope = self.envelope([Self::SRC_PORT, ROCE_PORT]);
                self.ip(&envelope, &[body, &icrc::compute(&envelope, body).to_le_bytes()].concat())
            }
        }
    }

    fn envelope(self, [src_port, dst_port]: [u16; 2]) -> Envelope {
        let [src, dst] = self.addresses().expect("IP has addresses");
        Envelope { src, dst, src_port, dst_port, ip_id: 0x1234, dont_fragment: true }
    }

    fn ip(self, envelope: &Envelope, payload: &[u8]) -> Vec<u8> {
        let mut head = vec![0; envelope.len()];
        envelope.emit(payload.len(), CLASS, HOP_LIMIT, &mut head);
        let udp = head.split_off(head.len() - UDP_LEN);
        match self {
            Ipv4Options => {
                // Four "no operation"s.
                head.extend([1; 4]);
                head[0] += 1;
                let len = u16::from_be_bytes([head[2], head[3]]) + 4;
                head[2..4].copy_from_slice(&len.to_be_bytes());
            }
            Ipv6Extensions => {
                // Destination options (eight bytes of padding), then a fragment header of a packet that is not divided.
                head[6] = 60;
                head.extend([44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 9]);
                let len = u16::from_be_bytes([head[4], head[5]]) + 16;
                head[4..6].copy_from_slice(&len.to_be_bytes());
            }
            _ if envelope.src.is_ipv4() => fill_ipv4_checksum(&mut head),
            _ => {}
        }
        [&head[..], &udp, payload].concat()
    }

    fn grh(self, len: usize) -> [u8; 40] {
        let mut grh = [0; 40];
        grh[..4].copy_from_slice(&(6 << 28 | u32::from(CLASS) << 20 | 0x1_2345).to_be_bytes());
        grh[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        (grh[6], grh[7]) = (0x1b, HOP_LIMIT);
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => Ipv6Addr::octets(&address),
        };
        let [from, to] = self.addresses().expect("a GRH has addresses").map(octets);
        grh[8..24].copy_from_slice(&from);
        grh[24..].copy_from_slice(&to);
        grh
    }
}

/// An LRH in front of `len` bytes without the ICRC.
fn lrh(next: u8, len: usize) -> [u8; 8] {
    let [from, to] = Carried::LIDS.map(u16::to_be_bytes);
    let words = (((8 + len + ICRC_LEN) / 4) as u16).to_be_bytes();
    // Virtual lane 3.
    [0x30, Carried::SERVICE_LEVEL << 4 | next, to[0], to[1], words[0], words[1], from[0], from[1]]
}

/// A cooked header of Ethernet without the protocol.
fn cooked(packet_type: u8) -> Vec<u8> {
    vec![0, packet_type, 0, 1, 0, 6, 2, 2, 2, 2, 2, 2, 0, 0]
}

fn cooked2(protocol: [u8; 2], packet_type: u8) -> Vec<u8> {
    [&protocol[..], &[0, 0, 0, 0, 0, 3, 0, 1, packet_type, 6, 2, 2, 2, 2, 2, 2, 0, 0]].concat()
}

/// A record, padded to eight bytes.
fn erf(kind: u8, align: &[u8], frame: &[u8]) -> Vec<u8> {
    let len = (16 + align.len() + frame.len()).next_multiple_of(8);
    let mut record = (9u64 << 32 | 1 << 31).to_le_bytes().to_vec();
    record.extend([kind, 4]);
    record.extend((len as u16).to_be_bytes());
    record.extend([0, 0]);
    record.extend((frame.len() as u16).to_be_bytes());
    record.extend(align);
    record.extend(frame);
    record.resize(len, 0);
    record
}

/// Pads an Ethernet frame to the minimum.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}
