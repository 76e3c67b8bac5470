//! The fields that are compared: their names in tshark, and their values from Weir's parser.

use std::net::IpAddr;
use weir_capture::packet::{Address, Encapsulation, RdmaPacket};
use weir_wire::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Headers, ICRC_LEN, Ieth, ImmDt, Reth};

/// A packet to Weir.
pub struct Seen<'a> {
    pub found: &'a RdmaPacket<'a>,
    pub headers: &'a Headers,
}

/// The format in which tshark prints a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Print {
    /// Decimal, 0x and hexadecimal, or True and False.
    Number,
    /// Hexadecimal bytes.
    Bytes,
    /// An IP address.
    Address,
}

/// A field's name in tshark, its format, and its value from Weir's parser.
pub type Field = (&'static str, Print, fn(&Seen<'_>) -> Option<u128>);

/// Payload length, if no other dissector claims the payload; tshark counts the pad bytes as payload.
pub const PAYLOAD_LEN: &str = "data.len";
/// tshark prints it for packets that are not completely captured too.
pub const ICRC: &str = "infiniband.invariant.crc";

/// Fields of the headers in front of the BTH, and of the BTH.
pub const OUTER: [Field; 26] = [
    ("infiniband.bth.opcode", Print::Number, |p| bth(p, |h| h.opcode.0.into())),
    ("infiniband.bth.psn", Print::Number, |p| bth(p, |h| h.psn.get().into())),
    ("infiniband.bth.destqp", Print::Number, |p| bth(p, |h| h.dest_qp.into())),
    ("infiniband.bth.a", Print::Number, |p| bth(p, |h| h.ack_req.into())),
    ("infiniband.bth.se", Print::Number, |p| bth(p, |h| h.solicited.into())),
    ("infiniband.bth.m", Print::Number, |p| bth(p, |h| h.mig_req.into())),
    ("infiniband.bth.padcnt", Print::Number, |p| bth(p, |h| h.pad.into())),
    ("infiniband.bth.p_key", Print::Number, |p| bth(p, |h| h.pkey.into())),
    ("infiniband.bth.tver", Print::Number, |p| bth(p, |h| h.version.into())),
    ("infiniband.bth.reserved7", Print::Number, |p| bth(p, |h| h.reserved.into())),
    ("ip.src", Print::Address, |p| ip(p, true).filter(|ip| ip.is_ipv4()).map(bits)),
    ("ip.dst", Print::Address, |p| ip(p, false).filter(|ip| ip.is_ipv4()).map(bits)),
    ("ip.dsfield", Print::Number, |p| ip(p, true).filter(|ip| ip.is_ipv4()).map(|_| p.found.traffic_class.into())),
    ("ipv6.src", Print::Address, |p| ip(p, true).filter(|ip| ip.is_ipv6()).map(bits)),
    ("ipv6.dst", Print::Address, |p| ip(p, false).filter(|ip| ip.is_ipv6()).map(bits)),
    ("ipv6.tclass", Print::Number, |p| ip(p, true).filter(|ip| ip.is_ipv6()).map(|_| p.found.traffic_class.into())),
    ("udp.srcport", Print::Number, |p| match p.found.encapsulation {
        Encapsulation::RoceV2 { src_port } => Some(src_port.into()),
        _ => None,
    }),
    ("udp.length", Print::Number, |p| match p.found.encapsulation {
        Encapsulation::RoceV2 { .. } => Some(p.found.transport_len as u128 + 8),
        _ => None,
    }),
    ("vlan.id", Print::Number, |p| p.found.vlan.map(Into::into)),
    ("infiniband.grh.sgid", Print::Address, |p| gid(p, p.found.from)),
    ("infiniband.grh.dgid", Print::Address, |p| gid(p, p.found.to)),
    ("infiniband.grh.tclass", Print::Number, |p| gid(p, p.found.from).map(|_| p.found.traffic_class.into())),
    ("infiniband.grh.paylen", Print::Number, |p| gid(p, p.found.from).map(|_| p.found.transport_len as u128)),
    ("infiniband.lrh.slid", Print::Number, |p| lrh(p).map(|(from, ..)| from.into())),
    ("infiniband.lrh.dlid", Print::Number, |p| lrh(p).map(|(_, to, _)| to.into())),
    ("infiniband.lrh.sl", Print::Number, |p| lrh(p).map(|(.., level)| level.into())),
];

/// Fields behind the BTH.
pub const INNER: [Field; 14] = [
    ("infiniband.aeth.syndrome", Print::Number, |p| p.headers.get::<Aeth>().map(|h| h.syndrome().into())),
    ("infiniband.aeth.msn", Print::Number, |p| p.headers.get::<Aeth>().map(|h| h.msn().into())),
    ("infiniband.reth.va", Print::Number, |p| {
        let reth = p.headers.get::<Reth>().map(|h| h.va.get());
        reth.or(p.headers.get::<AtomicEth>().map(|h| h.va.get())).map(Into::into)
    }),
    ("infiniband.reth.r_key", Print::Number, |p| {
        let reth = p.headers.get::<Reth>().map(|h| h.rkey.get());
        reth.or(p.headers.get::<AtomicEth>().map(|h| h.rkey.get())).map(Into::into)
    }),
    ("infiniband.reth.dmalen", Print::Number, |p| p.headers.get::<Reth>().map(|h| h.dma_len.get().into())),
    ("infiniband.atomiceth.swapdt", Print::Number, |p| {
        p.headers.get::<AtomicEth>().map(|h| h.swap_or_add.get().into())
    }),
    ("infiniband.atomiceth.cmpdt", Print::Number, |p| p.headers.get::<AtomicEth>().map(|h| h.compare.get().into())),
    ("infiniband.atomicacketh.origremdt", Print::Number, |p| {
        p.headers.get::<AtomicAckEth>().map(|h| h.original.get().into())
    }),
    ("infiniband.immdt", Print::Bytes, |p| p.headers.get::<ImmDt>().map(|h| h.imm.get().into())),
    ("infiniband.ieth", Print::Bytes, |p| p.headers.get::<Ieth>().map(|h| h.rkey.get().into())),
    ("infiniband.deth.q_key", Print::Number, |p| p.headers.get::<Deth>().map(|h| h.qkey.get().into())),
    ("infiniband.deth.srcqp", Print::Number, |p| p.headers.get::<Deth>().map(|h| (h.src_qp.get() & 0xff_ffff).into())),
    (ICRC, Print::Number, |p| {
        let trailer = p.found.transport.last_chunk::<ICRC_LEN>().filter(|_| p.found.is_complete())?;
        Some(u32::from_be_bytes(*trailer).into())
    }),
    (PAYLOAD_LEN, Print::Number, |p| {
        let payload = p.found.payload_len(p.headers).ok()?;
        Some((payload + usize::from(p.headers.bth.pad)) as u128)
    }),
];

/// The value of a field as tshark prints it.
pub fn value(print: Print, text: &str) -> Option<u128> {
    match (print, text) {
        (_, "") => None,
        (_, "True") => Some(1),
        (_, "False") => Some(0),
        (Print::Bytes, _) => u128::from_str_radix(&text.replace(':', ""), 16).ok(),
        (Print::Address, _) => text.parse().ok().map(bits),
        (Print::Number, _) => match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    }
}

fn bth(seen: &Seen<'_>, field: fn(&Bth) -> u128) -> Option<u128> {
    Some(field(&seen.headers.bth))
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address in an IP header.
fn ip(seen: &Seen<'_>, of_sender: bool) -> Option<IpAddr> {
    let RdmaPacket { from, to, encapsulation, .. } = seen.found;
    match encapsulation {
        Encapsulation::RoceV2 { .. } => if of_sender { from } else { to }.ip(),
        _ => None,
    }
}

/// An address in a GRH.
fn gid(seen: &Seen<'_>, address: Address) -> Option<u128> {
    match seen.found.encapsulation {
        Encapsulation::RoceV2 { .. } => None,
        _ => address.ip().map(bits),
    }
}

fn lrh(seen: &Seen<'_>) -> Option<(u16, u16, u8)> {
    match seen.found.encapsulation {
        Encapsulation::Infiniband { from_lid, to_lid, service_level } => Some((from_lid, to_lid, service_level)),
        _ => None,
    }
}
