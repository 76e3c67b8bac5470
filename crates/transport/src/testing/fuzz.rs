//! The bodies of the fuzz targets; tests on stable Rust call them too.
//!
//! The input bytes choose a setup, then packets that are almost valid: most bugs are close to valid input.

use super::host::{Entry, Staging};
use super::paging::PagingSetup;
use super::pair::{NETWORK_HEADER, Node, Pair, QKEY, SRQ, Setup};
use super::requests::{remote, sge};
use super::rng::Rng;
use crate::{
    Access, Adaptive, AttrMask, Bind, Data, Delay, Flood, Handled, Limits, Mtu, Profile, QpAttr, QpState, Queue,
    RecvWr, RequesterFaults, ResponderFaults, RnrWait, SendFlags, SendOp, SendWr, Side, Spread,
};
use std::time::Duration;
use weir_trials::Input;
use weir_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Destination, Deth, Headers, Ieth, ImmDt, Opcode, Packet, Placement, Psn, Reth,
    Service, XrcEth, frame,
};

const REGION: usize = 12 << 10;

/// Feeds any sequence of packets to a responder that has receives. It must not panic or write outside of its region,
/// and every receive completes at most once.
pub fn responder(data: &[u8]) {
    let mut input = Input(data);
    let setup = setup(&mut input);
    let mut pair = setup.pair();
    let receives = input.byte() % 16;
    for wr_id in 0..u64::from(receives) {
        let sges = [sge(wr_id as usize * 64, 700), sge(8192, 1500)];
        if let Some(srq) = shared(&setup) {
            pair.nodes[1].host.srqs.borrow_mut().entry(srq).or_default().push_back((wr_id, sges.to_vec()));
        } else {
            pair.nodes[1].qp.post_recv(&RecvWr { wr_id, sges: &sges }).expect("room in the receive queue");
        }
    }
    drive(&mut input, &mut pair, &setup, 1);
    check(&pair, 1, Queue::Receive);
}

/// Feeds any sequence of packets to a requester with outstanding work, with the same checks.
pub fn requester(data: &[u8]) {
    let mut input = Input(data);
    let setup = setup(&mut input);
    let mut pair = setup.pair();
    let (remote_addr, rkey) = remote(64);
    let mut wr_id = 0;
    for _ in 0..input.byte() % 16 {
        let len = length(&mut input, setup.mtu.bytes());
        let (op, len) = match input.byte() % 11 {
            0 => (SendOp::Send, len),
            1 => (SendOp::SendImm { imm: 7 }, len),
            2 => (SendOp::Write { remote_addr, rkey }, len * 3),
            3 => (SendOp::WriteImm { remote_addr, rkey, imm: 9 }, len),
            4 => (SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 }, 8),
            5 => (SendOp::FetchAdd { remote_addr, rkey, add: 3 }, 8),
            7 => (SendOp::SendInvalidate { rkey: 77 }, len),
            8 => (SendOp::AtomicWrite { remote_addr, rkey }, 8),
            9 => (SendOp::LocalInvalidate { key: 78 }, 0),
            10 => {
                let access = Access::REMOTE_WRITE;
                let bind = Bind { window_rkey: 78, new_rkey: 78, mr_lkey: rkey, addr: remote_addr, len: 64, access };
                (SendOp::BindWindow(bind), 0)
            }
            _ => (SendOp::Read { remote_addr, rkey }, len * 3),
        };
        let flags = SendFlags::from_bits_truncate(u32::from(input.byte()) & 7) | SendFlags::SIGNALED;
        let wr = SendWr { wr_id, op, flags, data: Data::Gather(&[sge(wr_id as usize * 16, len)]) };
        let to = pair.target(0);
        let posted = pair.nodes[0].qp.post_send_to(&wr, to);
        let has_all = matches!(setup.service, Service::Rc | Service::Xrc);
        assert!(posted.is_ok() || !has_all, "no room in the send queue");
        wr_id += u64::from(posted.is_ok());
    }
    drive(&mut input, &mut pair, &setup, 0);
    check(&pair, 0, Queue::Send);
}

/// The shared receive queue of the setup, if it has one.
fn shared(setup: &Setup) -> Option<u32> {
    if setup.service == Service::Xrc { Some(SRQ) } else { setup.srq.then_some(0) }
}

fn setup(input: &mut Input<'_>) -> Setup {
    let first = input.byte();
    let mtu = Mtu::from_number(u32::from(first) % 5 + 1).unwrap_or_default();
    let service = [Service::Rc, Service::Rc, Service::Uc, Service::Ud][usize::from(first / 64)];
    let mut setup = Setup { service, mtu, region: REGION, psn: [0xff_fff0, 0xff_fffc], ..Setup::default() };
    let second = input.byte();
    setup.tuning.read_chunk = 1 << (8 + second % 6);
    match second / 64 {
        2 => setup.srq = true,
        3 => setup.service = Service::Xrc,
        _ => {}
    }
    let third = input.byte();
    setup.max_dest_rd_atomic = third % 5;
    let byte = input.byte();
    setup.max_rd_atomic = byte % 5;
    if byte & 0x80 != 0 {
        let resolve = Duration::from_micros(100);
        setup.paging = Some(PagingSetup { page: 1000, resolve, notice: Duration::ZERO, held: 8 });
        let retransmit = Delay::exactly(Duration::from_micros(500));
        let faults = &mut setup.profile.page_faults;
        faults.requester =
            if byte & 0x40 == 0 { RequesterFaults::Wait } else { RequesterFaults::Discard { retransmit } };
        faults.responder = if byte & 0x20 == 0 {
            ResponderFaults::Wait
        } else {
            let after = if third & 0x10 == 0 { Duration::ZERO } else { Duration::from_micros(140) };
            ResponderFaults::RnrNak { read_after: after }
        };
    }
    flaws(third, &mut setup.profile);
    let byte = input.byte();
    setup.frames = byte & 0x80 != 0;
    setup.retry_cnt = byte % 8;
    setup.rnr_retry = input.byte() % 8;
    setup.region = REGION;
    setup
}

/// The flaws of an adapter, one bit each.
fn flaws(bits: u8, profile: &mut Profile) {
    let micros = Duration::from_micros;
    profile.damming = bits & 0x80 != 0;
    profile.late_reads = bits & 0x08 != 0;
    profile.flood = (bits & 0x40 != 0).then_some(Flood { stale: micros(100), waiting: 4 });
    if bits & 0x10 != 0 {
        profile.repeated_read = Delay { low: micros(60), high: micros(100) };
        profile.rnr_wait = RnrWait { factor: Spread { low: 1.0, high: 4.0 }, powers_of_two: true, discards: true };
        profile.ack_timeout.factor = Spread { low: 1.0, high: 4.0 };
        profile.ack_timeout.adaptive = Adaptive { steps: [120, 80, 160].map(micros).into(), retries: 2 };
    }
}

/// Feeds packets, polls and timeouts to a node, as chosen by the input.
fn drive(input: &mut Input<'_>, pair: &mut Pair, setup: &Setup, node: usize) {
    let mut held = Vec::new();
    let mut garbage = Rng(7);
    let payload: Vec<u8> = (0..5000).map(|_| garbage.draw() as u8).collect();
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0 => transmit(&mut pair.nodes[node], pair.now, usize::from(input.byte() % 20)),
            1 => {
                pair.now = pair.now + Duration::from_micros(u64::from(input.byte()) * 64);
                let Node { qp, host, .. } = &mut pair.nodes[node];
                qp.handle_timeout(pair.now, host);
                resolve_pages(pair, setup, node, &mut held);
            }
            4 if setup.paging.is_some() => page(input, pair, setup, node, &mut held),
            3 => {
                let to = [QpState::Sqd, QpState::Rts, QpState::Error, QpState::Reset][usize::from(input.byte()) % 4];
                let attr = QpAttr { qp_state: to, ..QpAttr::default() };
                let Node { qp, host, .. } = &mut pair.nodes[node];
                // Returns an error if there is no such transition.
                let _ = qp.modify(pair.now, &attr, AttrMask::STATE, host);
                if to == QpState::Reset {
                    return;
                }
            }
            2 => {
                // Raw bytes.
                let bytes: Vec<u8> = (0..24 + input.byte() % 32).map(|_| input.byte()).collect();
                if let Ok(packet) = frame::parse_any(&bytes) {
                    take(pair, setup, node, &packet, &mut held);
                }
            }
            _ => {
                let (headers, len) = packet(input, setup, node, pair.nodes[node].qp.attr());
                let framed = setup.frames && frame::is_framed(headers.bth.opcode);
                let placement = framed.then(|| placement(input, setup, &headers));
                let packet = Packet { headers, payload: &payload[..len], icrc: 0, placement };
                take(pair, setup, node, &packet, &mut held);
            }
        }
    }
    transmit(&mut pair.nodes[node], pair.now, 1000);
}

/// Packets that wait for pages.
type Held = Vec<(Headers, Option<Placement>, Vec<u8>)>;

fn take(pair: &mut Pair, setup: &Setup, node: usize, packet: &Packet<'_>, held: &mut Held) {
    if setup.paging.is_some() {
        pair.paging(node).side = side(&packet.headers);
    }
    let Node { qp, host, .. } = &mut pair.nodes[node];
    let before = (qp.attr(), host.journal.len());
    let handled = match setup.service {
        Service::Ud => qp.handle_datagram(pair.now, packet, &NETWORK_HEADER, host),
        _ => qp.handle_packet(pair.now, packet, host),
    };
    if handled != Handled::Done {
        // A dammed packet is lost, not held, but it too must change nothing.
        match handled {
            Handled::Held => assert!(setup.paging.is_some(), "the packet is held, but no page is missing"),
            Handled::Dammed => assert!(setup.profile.damming, "an adapter without damming dams"),
            Handled::Done | Handled::AfterReads => {}
        }
        // The network header of a datagram may be written already.
        let changes =
            |entry: &Entry| !matches!(entry, Entry::Complete { queue: Queue::Send, .. } | Entry::Write { .. });
        assert!(
            !host.journal[before.1..].iter().any(changes),
            "a held packet has an effect other than completing sends"
        );
        // A UC message may begin with any PSN.
        assert!(qp.attr() == before.0 || setup.service == Service::Uc, "a held packet changed a PSN");
        if handled == Handled::Dammed {
            return;
        }
        if setup.paging.is_some_and(|paging| held.len() < paging.held) {
            held.push((packet.headers, packet.placement, packet.payload.to_vec()));
        } else if handled == Handled::AfterReads {
            after_reads(pair, packet, node);
        }
    }
}

/// A request waits for READs: some of their response packets leave, then it is passed in again, or the peer is asked to
/// repeat it.
#[cold]
fn after_reads(pair: &mut Pair, packet: &Packet<'_>, node: usize) {
    let Node { qp, host, .. } = &mut pair.nodes[node];
    let mut staging = Staging::new(host.memory.clone(), 3);
    qp.poll_responses(pair.now, host, &mut staging);
    if qp.handle_packet(pair.now, packet, host) == Handled::AfterReads {
        assert!(qp.awaits_reads(), "a request waits, but no READ is left");
        qp.refuse_waiting();
    }
}

fn side(headers: &Headers) -> Side {
    if headers.bth.opcode.is_response() { Side::Requester } else { Side::Responder }
}

/// Resolves the pages that are due, and passes the packets that waited for them in again.
fn resolve_pages(pair: &mut Pair, setup: &Setup, node: usize, held: &mut Held) {
    if setup.paging.is_none() {
        return;
    }
    let sides = pair.paging(node).advance(pair.now);
    for each in sides {
        pair.nodes[node].qp.page_resolved(pair.now, each);
        let (again, rest) = std::mem::take(held).into_iter().partition(|(headers, ..)| side(headers) == each);
        *held = rest;
        let again: Held = again;
        for (headers, placement, payload) in again {
            take(pair, setup, node, &Packet { headers, payload: &payload, icrc: 0, placement }, held);
        }
    }
}

/// Performs an operation on pages.
fn page(input: &mut Input<'_>, pair: &mut Pair, setup: &Setup, node: usize, held: &mut Held) {
    let (va, _) = remote(usize::from(input.byte()) * REGION / 256);
    let len = u64::from(input.byte()) * 16;
    match input.byte() % 8 {
        0 => pair.paging(node).invalidate(va, len, Duration::from_micros(50)),
        1 => pair.paging(node).unmap(va, len.min(1000)),
        2 => held.clear(),
        // No side waits for a page.
        3 => pair.nodes[node].qp.page_resolved(pair.now, Side::Requester),
        4 => pair.nodes[node].qp.page_resolved(pair.now, Side::Responder),
        write => {
            pair.paging(node).prefetch(va, len, write != 5);
            pair.now = pair.now + Duration::from_micros(u64::from(input.byte()));
            resolve_pages(pair, setup, node, held);
        }
    }
}

/// A packet with any opcode and a PSN near the expected one.
fn packet(input: &mut Input<'_>, setup: &Setup, node: usize, attr: QpAttr) -> (Headers, usize) {
    let number = input.byte();
    let opcode = match setup.service {
        // Mostly opcodes of the service.
        Service::Uc => Opcode((number % 0x0c) | 0x20),
        Service::Ud => Opcode((number & 1) | 0x64),
        Service::Xrc => Opcode((number & 0x1f) | 0xa0),
        _ => Opcode(number & 0x1f),
    };
    let base = if opcode.is_response() { Psn::new(setup.psn[node]) } else { attr.rq_psn };
    let shift = match input.byte() {
        far @ 0..=31 => u32::from(far).wrapping_sub(16),
        32 => input.word(),
        near @ 33..=127 if opcode.is_response() => u32::from(near - 33),
        _ => 0,
    };
    let mut bth = Bth::new(opcode, 0x11 + node as u32, base.plus(shift));
    bth.ack_req = input.byte() & 1 != 0;
    let len = if opcode.has_payload() { length(input, setup.mtu.bytes()) } else { 0 };
    let (va, rkey) = remote(0);
    let va = va.wrapping_add(offset(input) as u64);
    let rkey = if input.byte() & 15 == 0 { rkey ^ 1 } else { rkey };
    let total = match input.byte() % 4 {
        0 => len as u32,
        1 => input.word(),
        _ => setup.mtu.bytes() as u32 * u32::from(input.byte() % 4) + u32::from(input.byte() % 3),
    };
    let mut headers = Headers::new(bth);
    headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: total.into() });
    headers.put(AtomicEth { va: va.into(), rkey: rkey.into(), swap_or_add: 5.into(), compare: 1.into() });
    // Mostly ACKs, so that the QP stays in RTS.
    let syndrome = if opcode.has_aeth() && input.byte() & 3 == 0 { input.byte() } else { 31 };
    headers.put(Aeth::new(syndrome, 1));
    headers.put(AtomicAckEth { original: 5.into() });
    let srq = if opcode.has_xrceth() && input.byte() & 15 == 0 { SRQ ^ 1 } else { SRQ };
    headers.put(XrcEth { srq: srq.into() });
    headers.put(ImmDt { imm: 5.into() });
    let qkey = if opcode.has_deth() && input.byte() & 15 == 0 { QKEY ^ 1 } else { QKEY };
    headers.put(Deth { qkey: qkey.into(), src_qp: 0x99.into() });
    headers.put(Ieth { rkey: rkey.into() });
    (headers, len)
}

/// A placement that is mostly near a right one.
fn placement(input: &mut Input<'_>, setup: &Setup, headers: &Headers) -> Placement {
    let mtu = setup.mtu.bytes() as u32;
    let (byte, reth) = (input.byte(), headers.get::<Reth>());
    let offset = if headers.bth.opcode.starts_message() { 0 } else { mtu * u32::from(byte & 3) };
    let destination = if (0x06..0x0c).contains(&(headers.bth.opcode.0 & 0x1f)) {
        let (address, rkey) = remote(offset as usize);
        reth.map_or(Destination::Memory { address, rkey }, |reth| Destination::Memory {
            address: reth.va.get(),
            rkey: reth.rkey.get(),
        })
    } else {
        Destination::Message { number: u32::from(byte >> 4 & 7) }
    };
    let length = match reth {
        Some(reth) if byte & 0x80 == 0 => reth.dma_len.get(),
        _ => mtu * u32::from(byte >> 2 & 3) + u32::from(input.byte()),
    };
    Placement { destination, offset, length }
}

fn transmit(node: &mut Node, now: crate::Instant, room: usize) {
    let mut staging = Staging::new(node.host.memory.clone(), room);
    let limits = Limits { request_bytes: 1 << 16, read_bytes: 1 << 16 };
    let Node { qp, host, .. } = node;
    qp.poll_transmit(now, limits, host, &mut staging);
}

fn check(pair: &Pair, node: usize, queue: Queue) {
    assert!(pair.canaries_live(), "a byte outside of the region has changed");
    let completions = pair.completions(node, queue);
    for (i, completion) in completions.iter().enumerate() {
        assert_eq!(completion.wr_id, i as u64, "completions come once and in order");
        assert_eq!(completion.retired, i as u32 + 1);
    }
}

/// A length, mostly equal to the MTU or next to it.
pub(super) fn length(input: &mut Input<'_>, mtu: usize) -> usize {
    match input.byte() % 8 {
        0 => 0,
        1 => 1,
        2 => mtu - 1,
        3 => mtu + 1,
        4 => usize::from(input.byte()),
        _ => mtu,
    }
}

/// An offset into the region, at its ends or beyond it.
fn offset(input: &mut Input<'_>) -> usize {
    match input.byte() % 8 {
        0 => REGION - 8,
        1 => REGION,
        2 => REGION + 8,
        3 => usize::from(input.byte()),
        4 => usize::MAX / 2,
        _ => usize::from(input.byte()) * 8,
    }
}
