//! Datagrams of hostile peers that are almost packets of a QP.

use super::hellos::sender;
use super::hostile::{QKEY, far_qp};
use super::world::World;
use crate::engine::multicast::MULTICAST_QPN;
use std::net::{IpAddr, SocketAddr};
use weir_trials::Input;
use weir_wire::ip::Envelope;
use weir_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Destination, Deth, Feth, Headers, Ieth, ImmDt, Opcode, Placement, Psn,
    ROCE_PORT, Reth, Service, XrcEth, frame, icrc, mad,
};

/// The most bytes of a payload.
const LONGEST: usize = 1200;

/// Any bytes arrive.
pub fn raw(world: &mut World, input: &mut Input<'_>) {
    let from = sender(world, input);
    let (to, port) = receiver(world, input);
    let len = usize::from(input.byte());
    let datagram = input.bytes(len).to_vec();
    if !datagram.is_empty() {
        world.arrive(from, to, port, &[datagram]);
    }
}

/// What the honest peer has sent comes again: a network may do that.
pub fn again(world: &mut World, input: &mut Input<'_>) {
    let Some(last) = world.carried.len().checked_sub(1) else { return };
    let datagram = world.carried[last - input.below(world.carried.len())].clone();
    let (a, b) = (&world.rigs[0], &world.rigs[1]);
    let (from, to, port) = ((b.address, b.port).into(), a.address, a.port);
    world.arrive(from, to, port, &[datagram]);
}

/// Some packets of one buffer: all but the last have the length of the first.
pub fn packets(world: &mut World, input: &mut Input<'_>) {
    let from = sender(world, input);
    let (to, port) = receiver(world, input);
    let mut buffer: Vec<Vec<u8>> = vec![];
    for position in 0..1 + input.below(4) {
        let datagram = packet(world, input, (from, to, port), position as u16);
        let first = buffer.first().map_or(usize::MAX, Vec::len);
        if datagram.len() > first {
            break;
        }
        let is_last = datagram.len() < first && position > 0;
        buffer.push(datagram);
        if is_last {
            break;
        }
    }
    world.arrive(from, to, port, &buffer);
}

fn receiver(world: &World, input: &mut Input<'_>) -> (IpAddr, u16) {
    let (what, rig) = (input.byte(), &world.rigs[0]);
    let to = match what & 15 {
        0 => [224, 0, 0, 5].into(),
        1 => world.rigs[1].address,
        _ => rig.address,
    };
    (to, if what & 0x30 == 0 { ROCE_PORT } else { rig.port })
}

/// A packet with a PSN near the expected one.
fn packet(world: &World, input: &mut Input<'_>, (from, to, port): (SocketAddr, IpAddr, u16), position: u16) -> Vec<u8> {
    let what = input.byte();
    let n = usize::from(what >> 4);
    let (dest, attr, service) = match world.hostile.get(n) {
        Some(qp) => (qp.num, qp.lock().attr(), qp.service),
        None => {
            let honest = &world.honest[0];
            let dest = match n {
                12 => mad::GSI_QPN,
                13 => MULTICAST_QPN,
                14 => input.word() & 0xff_ffff,
                _ => honest.num,
            };
            (dest, honest.lock().attr(), if n == 12 { Service::Ud } else { Service::Rc })
        }
    };
    let number = input.byte();
    let opcode = match service {
        _ if what & 15 == 0 => Opcode(number),
        Service::Uc => Opcode((number % 0x0c) | 0x20),
        Service::Ud => Opcode((number & 1) | 0x64),
        _ => Opcode(number & 0x1f),
    };
    let base = if opcode.is_response() { attr.sq_psn } else { attr.rq_psn };
    let shift = match input.byte() {
        far @ 0..=31 => u32::from(far).wrapping_sub(16),
        32 => input.word(),
        near @ 33..=48 if opcode.is_response() => u32::from(near - 32).wrapping_neg(),
        _ => 0,
    };
    let bits = input.byte();
    let mut bth = Bth::new(opcode, dest, base.plus(shift & Psn::new(u32::MAX).get()));
    bth.ack_req = bits & 1 != 0;
    bth.solicited = bits & 2 != 0;
    if bits & 0xc == 0xc {
        bth.pkey = 0x8001;
    }
    let len = match input.byte() {
        _ if !opcode.has_payload() => 0,
        byte @ 0..=0x7f => usize::from(byte),
        byte => 1024.min(usize::from(byte & 0x7f) * 32),
    };
    bth.pad = (len.wrapping_neg() & 3) as u8;
    let rkey = match bits >> 4 & 3 {
        0 => input.word(),
        _ => world.open.lkey,
    };
    // Nothing tells a hostile peer these keys.
    let rkey = if world.secret_keys.contains(&rkey) { 0 } else { rkey };
    let va = world.open.addr.wrapping_add(u64::from(input.byte()) << 6).wrapping_sub(64);
    let total = if bits & 0x40 == 0 { len as u32 } else { u32::from(input.byte()) << 8 };
    let mut headers = Headers::new(bth);
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: total.into() });
    headers.put(AtomicEth { va: va.into(), rkey: rkey.into(), swap_or_add: 5.into(), compare: 1.into() });
    headers.put(Aeth::new(if opcode.has_aeth() && bits & 0x80 != 0 { input.byte() } else { 31 }, 1));
    headers.put(AtomicAckEth { original: 5.into() });
    headers.put(XrcEth { srq: 7.into() });
    headers.put(ImmDt { imm: 5.into() });
    headers.put(Deth { qkey: if bits & 0x80 == 0 { QKEY } else { input.word() }.into(), src_qp: far_qp(n).into() });
    headers.put(Feth { flags: u32::from(bits).into() });
    headers.put(Ieth { rkey: rkey.into() });
    let framed = what & 8 != 0 && frame::is_framed(opcode);
    let mut bytes = vec![0; if framed { frame::HEADER_LEN } else { headers.len() }];
    if framed {
        let placed = (0x06..0x0c).contains(&(opcode.0 & 0x1f));
        let number = u32::from(input.byte() & 3);
        let destination =
            if placed { Destination::Memory { address: va, rkey } } else { Destination::Message { number } };
        frame::emit(&headers, &Placement { destination, offset: 0, length: total }, &mut bytes);
    } else {
        headers.emit(&mut bytes);
    }
    bytes.resize(bytes.len() + len.min(LONGEST).div_ceil(4) * 4, 0x77);
    let end = match what & 7 {
        1 => input.word(),
        // Its peer knows the tag of a QP.
        2 | 3 if n < world.hostile.len() => tag(world, n),
        id => {
            let ip_id = if id == 4 { 0xabcd } else { position };
            let (src, src_port) = (from.ip(), from.port());
            let envelope = Envelope { src, dst: to, src_port, dst_port: port, ip_id, dont_fragment: id != 5 };
            icrc::compute(&envelope, &bytes)
        }
    };
    bytes.extend(end.to_le_bytes());
    bytes
}

fn tag(world: &World, n: usize) -> u32 {
    world.rigs[0].entry(&world.hostile[n]).connection.tag
}
