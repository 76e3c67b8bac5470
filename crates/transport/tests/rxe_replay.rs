//! Weir's responder compared with Linux's Soft-RoCE: for a capture's requests it must send the same replies.
//!
//! In the capture a program drives every RC operation, an RNR wait and several errors from 10.77.0.3, the requester,
//! to 10.77.0.2, the responder. Where rxe differs from IBTA, Weir deliberately follows IBTA; these differences are
//! listed in [`DIFFERENCES`], and each must occur.

use std::collections::BTreeMap;
use std::sync::Arc;
use weir_transport::testing::{Memory, Region, Staging, TestHost};
use weir_transport::*;
use weir_wire::{Aeth, AtomicAckEth, NakCode, Operation, Packet, Reth, RnrTimer, Syndrome};

/// A reply in which rxe differs from Weir.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// A SEND of several packets meets an empty receive queue. IBTA 9.7.5.2.8: an RNR NAK, and the other packets of
    /// the message are dropped. rxe treats the second packet as out of sequence and sends a sequence NAK as well, in
    /// each round, for the PSN of its RNR NAK.
    SequenceNakAfterRnrNak,
    /// A SEND is longer than its receive. IBTA 9.7.4.1.6 and 9.7.5.2.4 (table 58): an invalid request. rxe detects it
    /// during the copy, where every error is a remote operational error.
    TooLongIsOperational,
}

/// The number of occurrences in the capture: 19 RNR rounds; one message that is too long.
const DIFFERENCES: [(Difference, usize); 2] =
    [(Difference::SequenceNakAfterRnrNak, 19), (Difference::TooLongIsOperational, 1)];

/// The fields of a reply that must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reply {
    operation: Operation,
    psn: u32,
    syndrome: Option<Syndrome>,
    msn: Option<u32>,
    original: Option<u64>,
    pad: u8,
    payload: Vec<u8>,
}

impl Reply {
    fn of(packet: &Packet<'_>) -> Option<Reply> {
        let headers = &packet.headers;
        Some(Reply {
            operation: headers.bth.opcode.operation()?,
            psn: headers.bth.psn.get(),
            syndrome: headers.get::<Aeth>().map(|aeth| Syndrome::from_byte(aeth.syndrome())),
            msn: headers.get::<Aeth>().map(|aeth| aeth.msn()),
            original: headers.get::<AtomicAckEth>().map(|ack| ack.original.get()),
            pad: headers.bth.pad,
            payload: packet.payload.to_vec(),
        })
    }
}

/// Size of the program's buffer, and the offset in it for received messages.
const BUFFER: usize = 1 << 20;
const RECEIVE_AT: u64 = 131_072;
/// The program's MTU and its code of min_rnr_timer.
const MTU: Mtu = Mtu::M1024;
const RNR_TIMER: u8 = 20;

#[test]
fn weir_sends_the_same_replies_as_rxe() {
    let datagrams = datagrams(include_bytes!("../../../tests/fixtures/captures/rxe-verbs-1024.pcap"));
    let packets: Vec<(Instant, u8, Packet<'_>)> = datagrams
        .iter()
        .map(|d| (d.at, d.from, Packet::parse(d.payload).expect("rxe's packets parse")))
        .filter(|(_, _, packet)| packet.headers.bth.opcode.service() == Service::Rc)
        .collect();
    let mut differences = BTreeMap::new();
    let mut compared = 0;
    let connections = connections(&packets);
    assert_eq!(connections.len(), 5);
    for (qpn, (requests, theirs)) in &connections {
        let (ours, theirs) = (replay(*qpn, &packets, requests, theirs), without_differences(theirs, &mut differences));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "QP {qpn:#x}");
        }
        assert_eq!(ours.len(), theirs.len(), "QP {qpn:#x}");
        compared += ours.len();
    }
    assert_eq!(differences.into_iter().collect::<Vec<_>>(), DIFFERENCES);
    // All 190 replies of the capture, without the sequence NAKs and the reply to the SEND with invalidate.
    assert_eq!(compared, 190 - 19 - 1);
}

/// By the responder's QP: indices of requests, and replies with their index in the capture.
type Connections = BTreeMap<u32, (Vec<usize>, Vec<(usize, Reply)>)>;

/// Groups the packets by connection. The TCP side channel that exchanged the numbers is not captured, but the
/// connections followed one another: a reply belongs to the QP of the last request.
fn connections(packets: &[(Instant, u8, Packet<'_>)]) -> Connections {
    let mut connections = Connections::new();
    let mut current = 0;
    for (i, (_, from, packet)) in packets.iter().enumerate() {
        if *from == 3 {
            current = packet.headers.bth.dest_qp;
            connections.entry(current).or_default().0.push(i);
        } else {
            let reply = Reply::of(packet).expect("rxe answers with operations");
            connections.get_mut(&current).expect("asked before answered").1.push((i, reply));
        }
    }
    // SEND with invalidate needs memory windows; the connection is not compared from there on.
    for (requests, replies) in connections.values_mut() {
        let is_inv = |i: &usize| packets[*i].2.headers.bth.opcode.operation() == Some(Operation::SendOnlyInv);
        if let Some(end) = requests.iter().position(is_inv) {
            let end = requests.split_off(end)[0];
            replies.retain(|(i, _)| *i < end);
        }
    }
    connections
}

/// Removes or corrects the replies in which rxe differs; counts these differences.
fn without_differences(theirs: &[(usize, Reply)], count: &mut BTreeMap<Difference, usize>) -> Vec<Reply> {
    let mut mended: Vec<Reply> = Vec::new();
    for (_, reply) in theirs {
        let mut reply = reply.clone();
        let after_rnr = mended
            .last()
            .is_some_and(|last| last.psn == reply.psn && matches!(last.syndrome, Some(Syndrome::RnrNak(_))));
        if after_rnr && reply.syndrome == Some(Syndrome::Nak(NakCode::PsnSequence)) {
            *count.entry(Difference::SequenceNakAfterRnrNak).or_default() += 1;
            continue;
        }
        if reply.syndrome == Some(Syndrome::Nak(NakCode::RemoteOperational)) {
            *count.entry(Difference::TooLongIsOperational).or_default() += 1;
            reply.syndrome = Some(Syndrome::Nak(NakCode::InvalidRequest));
        }
        mended.push(reply);
    }
    mended
}

/// Feeds a responder the requests and collects its replies.
fn replay(
    qpn: u32,
    packets: &[(Instant, u8, Packet<'_>)],
    requests: &[usize],
    theirs: &[(usize, Reply)],
) -> Vec<Reply> {
    let too_long = theirs.iter().any(|(_, a)| a.syndrome == Some(Syndrome::Nak(NakCode::RemoteOperational)));
    let receive = if too_long { 16 } else { 65_536 };
    let (base, memory) = memory(packets);
    let mut host = TestHost::new(memory);
    let mut qp = responder(qpn, packets[requests[0]].2.headers.bth.psn);
    let mut receives = 0u32;
    let mut ours = Vec::new();
    for &i in requests {
        let (now, _, packet) = &packets[i];
        // The program posted a receive before each message except one, which rxe's next reply shows: an RNR NAK.
        let next = theirs.iter().find(|(answered, _)| *answered > i).map(|(_, reply)| reply);
        let not_ready = matches!(next, Some(Reply { syndrome: Some(Syndrome::RnrNak(_)), .. }));
        let used = host.completions(Queue::Receive).len() as u32;
        if uses_receive(packet) && receives == used && !not_ready {
            let sges = [Sge { addr: base + RECEIVE_AT, length: receive, lkey: keys(packets)[0] }];
            qp.post_recv(&RecvWr { wr_id: 1, sges: &sges }).expect("room for a receive");
            receives += 1;
        }
        qp.handle_packet(*now, packet, &mut host);
        qp.end_ack_delay();
        let mut staging = Staging::new(host.memory.clone(), usize::MAX);
        qp.poll_transmit(*now, Limits { request_bytes: 0, read_bytes: 0 }, &mut host, &mut staging);
        for bytes in &staging.packets {
            ours.extend(Reply::of(&Packet::parse(bytes).expect("Weir's packets parse")));
        }
    }
    ours
}

/// Whether a packet uses a receive.
fn uses_receive(packet: &Packet<'_>) -> bool {
    use Operation::*;
    let operation = packet.headers.bth.opcode.operation();
    matches!(operation, Some(SendFirst | SendOnly | SendOnlyImm | WriteLastImm | WriteOnlyImm))
}

/// A responder with the program's attributes.
fn responder(qp_num: u32, rq_psn: Psn) -> Qp {
    let caps = QpCaps { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { qp_num, service: Service::Rc, caps, sq_sig_all: false };
    let mut qp = Qp::new(init, Arc::new(Profile::ideal()), Tuning::default());
    let mut host = TestHost::new(Memory::new(0, 0));
    let attr = QpAttr {
        path_mtu: MTU,
        rq_psn,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(RNR_TIMER),
        access_flags: Access::all(),
        ..QpAttr::default()
    };
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let rtr = AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    for (qp_state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr)] {
        let attr = QpAttr { qp_state, ..attr };
        qp.modify(Instant(0), &attr, mask | AttrMask::STATE, &mut host).expect("a transition towards RTR");
    }
    qp
}

/// The server's buffer: byte i was 7 i + 1; the first WRITE was to offset 4096.
fn memory(packets: &[(Instant, u8, Packet<'_>)]) -> (u64, Memory) {
    let reth = packets.iter().find_map(|(_, _, packet)| packet.headers.get::<Reth>()).expect("a WRITE");
    let base = reth.va.get() - 4096;
    let [key, window] = keys(packets);
    let mut memory = Memory::new(base, BUFFER);
    let whole = Region { key, addr: base, len: BUFFER as u64, access: Access::all(), mapped: true };
    memory.register(whole, |i| (i * 7 + 1) as u8);
    // A memory window over the buffer's beginning.
    memory.regions().push(Region { key: window, len: 65_536, ..whole });
    (base, memory)
}

/// The keys of buffer and window: the keys in the capture that rxe accepted.
fn keys(packets: &[(Instant, u8, Packet<'_>)]) -> [u32; 2] {
    const BAD: u32 = 0x7777_7777;
    let mut keys: Vec<u32> = Vec::new();
    for reth in packets.iter().filter_map(|(_, _, packet)| packet.headers.get::<Reth>()) {
        let key = reth.rkey.get();
        if key != BAD && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.try_into().expect("two keys")
}

/// A UDP payload in the capture.
struct Datagram<'a> {
    at: Instant,
    /// Last byte of the source address.
    from: u8,
    payload: &'a [u8],
}

/// Reads a classic little-endian pcap of Ethernet, IPv4, UDP.
fn datagrams(capture: &[u8]) -> Vec<Datagram<'_>> {
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1), "a pcap of Ethernet frames, microseconds");
    let mut found = Vec::new();
    let mut at = 24;
    while at < capture.len() {
        let (seconds, micros, len) = (u64::from(word(at)), u64::from(word(at + 4)), word(at + 8) as usize);
        let frame = &capture[at + 16..at + 16 + len];
        at += 16 + len;
        let is_roce = frame[12..14] == [8, 0] && frame[14] == 0x45 && frame[23] == 17 && frame[36..38] == [0x12, 0xb7];
        if is_roce {
            let udp_len = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
            let payload = &frame[42..34 + udp_len];
            found.push(Datagram { at: Instant(seconds * 1_000_000_000 + micros * 1000), from: frame[29], payload });
        }
    }
    found
}
