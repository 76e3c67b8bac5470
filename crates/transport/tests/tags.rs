//! Tag matching: what a QP with a TM SRQ does with eager messages, rendezvous requests, and other messages.

use std::time::Duration;
use weir_transport::testing::{Faults, PagingSetup, Pair, Rng, Setup, address, good, remote, sge};
use weir_transport::*;
use weir_wire::{Aeth, Bth, Headers, ImmDt, Opcode, Operation, Packet, Reth, tag};

const APP_CTX: u32 = 0x0a0b_0c0d;
const MATCHED: WcFlags = WcFlags::TM_MATCH;
const VALID: WcFlags = WcFlags::TM_DATA_VALID;
const HEADER: usize = tag::TMH_LEN;

fn setup() -> Setup {
    Setup { srq: false, tags: true, ..Setup::default() }
}

fn headers(operation: u8, tag: u64, at: usize, len: usize, rkey: u32) -> [u8; 32] {
    let rvh = tag::Rvh { va: address(at), rkey, len: len as u32 };
    let mut bytes = tag::fin(&tag::Tmh { app_ctx: APP_CTX, tag }, &rvh);
    bytes[0] = operation;
    bytes
}

/// Sends `len` bytes from `at` on, of which the first become an eager header.
fn eager(pair: &mut Pair, wr_id: u64, tag: u64, at: usize, len: usize) {
    pair.fill(0, at, &headers(3, tag, 0, 0, 0)[..HEADER]);
    pair.post(wr_id, SendOp::Send, at, len);
}

/// Requests a rendezvous of `len` bytes at `from`. The request itself is built at `at`.
fn rendezvous(pair: &mut Pair, wr_id: u64, tag: u64, at: usize, from: usize, len: usize) {
    let (_, rkey) = remote(0);
    pair.fill(0, at, &headers(1, tag, from, len, rkey));
    pair.post(wr_id, SendOp::Send, at, 32);
}

/// Posts a receive of node 0, for the end of a rendezvous.
fn expect_fin(pair: &mut Pair, wr_id: u64, at: usize) {
    pair.nodes[0].qp.post_recv(&RecvWr { wr_id, sges: &[sge(at, 64)] }).expect("room in the receive queue");
}

/// `wr_id`, status, opcode, flags and tag of each completion of node 1.
fn received(pair: &Pair) -> Vec<(u64, Status, WcOpcode, WcFlags, u64)> {
    let of = |c: &Completion| (c.wr_id, c.status, c.opcode, c.flags, c.tag);
    pair.completions(1, Queue::Receive).iter().map(of).collect()
}

const OK: Status = Status::Success;

#[test]
fn an_eager_message_is_stored_without_its_header() {
    for (len, frames) in [(16, false), (17, false), (1024, false), (1024, true)] {
        let mut pair = Setup { frames, ..setup() }.pair();
        pair.post_tag(7, 70, 200_000, 2000);
        pair.post_tag(8, 80, 300_000, 2000);
        eager(&mut pair, 1, 8, 5000, len);
        pair.run_until_idle();
        assert_eq!(received(&pair), [(80, OK, WcOpcode::TagRecv, MATCHED | VALID, 8)], "{len}");
        let done = pair.completions(1, Queue::Receive)[0];
        assert_eq!((done.byte_len as usize, done.app_ctx), (len - HEADER, APP_CTX));
        assert_eq!(pair.memory(1, 300_000, len - HEADER), pair.memory(0, 5000 + HEADER, len - HEADER));
        assert!(pair.canaries_live());
    }
}

#[test]
fn a_long_eager_message_reports_its_match_first() {
    for frames in [false, true] {
        let mut pair = Setup { frames, ..setup() }.pair();
        pair.post_tag(8, 80, 300_000, 9984);
        eager(&mut pair, 1, 8, 5000, 10_000);
        pair.run_until_idle();
        let expected = [(80, OK, WcOpcode::TagRecv, MATCHED, 8), (80, OK, WcOpcode::TagRecv, VALID, 0)];
        assert_eq!(received(&pair), expected);
        assert_eq!(pair.completions(1, Queue::Receive)[1].byte_len, 9984);
        assert_eq!(pair.memory(1, 300_000, 9984), pair.memory(0, 5016, 9984));
    }
}

#[test]
fn other_messages_take_ordinary_receives_with_their_headers() {
    let mut pair = setup().pair();
    pair.post_tag(8, 80, 300_000, 2000);
    for k in 0..5 {
        pair.post_srq_recv(0, 10 + k, 400_000 + k as usize * 5000, 5000);
    }
    eager(&mut pair, 1, 9, 5000, 3000);
    pair.fill(0, 10_000, &headers(0, 8, 0, 0, 0));
    pair.post(2, SendOp::Send, 10_000, 100);
    pair.fill(0, 11_000, &headers(2, 8, 0, 0, 0));
    pair.post(3, SendOp::SendImm { imm: 5 }, 11_000, 32);
    // An eager header that is not complete, and no bytes at all.
    pair.fill(0, 12_000, &headers(3, 8, 0, 0, 0));
    pair.post(4, SendOp::Send, 12_000, 15);
    pair.post(5, SendOp::Send, 0, 0);
    pair.run_until_idle();
    let none = WcFlags::empty();
    let expected = [
        (10, OK, WcOpcode::TagRecv, none, 0),
        (11, OK, WcOpcode::NoTag, none, 0),
        (12, OK, WcOpcode::NoTag, WcFlags::WITH_IMM, 0),
        (13, OK, WcOpcode::NoTag, none, 0),
        (14, OK, WcOpcode::NoTag, none, 0),
    ];
    assert_eq!(received(&pair), expected);
    for (to, from, len) in [(400_000, 5000, 3000), (405_000, 10_000, 100), (415_000, 12_000, 15)] {
        assert_eq!(pair.memory(1, to, len), pair.memory(0, from, len));
    }
    assert_eq!(pair.nodes[1].host.tags.len(), 1, "the tag is still there");
}

#[test]
fn a_write_with_immediate_data_takes_an_ordinary_receive() {
    let mut pair = setup().pair();
    pair.post_srq_recv(0, 10, 400_000, 100);
    let (remote_addr, rkey) = remote(500_000);
    pair.post(1, SendOp::WriteImm { remote_addr, rkey, imm: 5 }, 0, 3000);
    pair.run_until_idle();
    assert_eq!(received(&pair), [(10, OK, WcOpcode::RecvRdmaWithImm, WcFlags::WITH_IMM, 0)]);
}

#[test]
fn a_rendezvous_fetches_its_data_and_tells_the_peer() {
    for (len, frames) in [(0, false), (1, false), (70_000, false), (70_000, true)] {
        let mut pair = Setup { frames, ..setup() }.pair();
        pair.nodes[1].host.tags.push((8, 80, vec![sge(300_000, 10_000), sge(400_000, 70_000), sge(500_000, 9)]));
        expect_fin(&mut pair, 5, 900_000);
        rendezvous(&mut pair, 1, 8, 5000, 100_000, len);
        pair.run_until_idle();
        let expected = [(80, OK, WcOpcode::TagRecv, MATCHED, 8), (80, OK, WcOpcode::TagRecv, VALID, 0)];
        assert_eq!(received(&pair), expected, "{len}");
        assert_eq!(pair.completions(1, Queue::Receive)[1].byte_len as usize, len);
        assert!(pair.completions(1, Queue::Send).is_empty(), "the program posted nothing");
        let first = len.min(10_000);
        let stored = [pair.memory(1, 300_000, first), pair.memory(1, 400_000, len - first)].concat();
        assert!(stored == pair.memory(0, 100_000, len));
        assert_eq!(pair.outcomes(0, Queue::Receive), [(5, OK)]);
        assert_eq!(pair.memory(0, 900_000, 32), headers(2, 8, 100_000, len, remote(0).1));
        // The SEND leaves when all responses have arrived.
        let operations = pair.wire.log.iter().map(|sent| (sent.from, sent.headers.bth.opcode.operation()));
        let responses: Vec<usize> = operations
            .clone()
            .enumerate()
            .filter_map(|(at, (from, operation))| {
                let is_response = matches!(
                    operation,
                    Some(Operation::ReadResponseOnly | Operation::ReadResponseLast | Operation::ReadResponseMiddle)
                );
                (from == 0 && is_response).then_some(at)
            })
            .collect();
        let fin = operations.clone().position(|sent| sent == (1, Some(Operation::SendOnly))).expect("sent");
        assert!(!responses.is_empty() && responses.iter().all(|at| *at < fin));
        assert!(pair.canaries_live());
    }
}

/// All kinds of messages and requests of both programs, in any order of loss, repetition and page faults.
#[test]
fn every_tag_completes_once_over_a_bad_wire() {
    let faults = Faults { loss: 0.04, duplication: 0.05, reordering: 0.05, corruption: 0.02 };
    let resolve = Duration::from_micros(200);
    for seed in 0..40 {
        let paging = (seed % 2 == 1).then(|| PagingSetup { resolve, ..PagingSetup::default() });
        let mut profile = Profile::ideal();
        if seed % 4 == 3 {
            let after = Duration::from_micros(10);
            profile.page_faults.responder = ResponderFaults::RnrNak { other_after: after, read_after: after };
        }
        let setup =
            Setup { faults, seed, paging, profile, frames: seed % 3 == 0, mtu: Mtu::M512, min_rnr_timer: 1, ..setup() };
        let mut pair = setup.pair();
        for k in 0..8u64 {
            let at = k as usize * 12_000;
            pair.post_tag(k, 100 + k, 200_000 + at, 10_000);
            pair.post_tag(50 + k, 200 + k, 400_000 + at, 10_000);
            pair.post_srq_recv(0, 300 + k, 600_000 + at, 10_000);
            expect_fin(&mut pair, k, 900_000 + k as usize * 64);
        }
        for k in 0..8u64 {
            let at = k as usize * 12_000;
            eager(&mut pair, 4 * k, 7 - k, at, 16 + k as usize * 700);
            rendezvous(&mut pair, 4 * k + 1, 57 - k, 120_000 + at, 121_000 + at, 9000);
            eager(&mut pair, 4 * k + 2, 99, 240_000 + at, 1500);
            let (remote_addr, rkey) = remote(800_000 + k as usize * 3000);
            pair.post(4 * k + 3, SendOp::Write { remote_addr, rkey }, at, 3000);
            let write = SendOp::Write { remote_addr: address(950_000 + k as usize * 100), rkey };
            pair.post_as(1, k, write, 1000, 100, SendFlags::SIGNALED);
        }
        pair.run_until_idle();
        let sent = pair.outcomes(0, Queue::Send);
        assert!(sent.len() == 32 && sent.iter().all(|(_, status)| *status == OK), "seed {seed}: {sent:?}");
        assert_eq!(pair.outcomes(1, Queue::Send), good(0..8), "seed {seed}");
        let retired: Vec<u32> = pair.completions(1, Queue::Send).iter().map(|c| c.retired).collect();
        assert_eq!(retired, (1..=8).collect::<Vec<u32>>(), "only the program's own requests count");
        assert_eq!(pair.outcomes(0, Queue::Receive), good(0..8));
        let all = received(&pair);
        assert!(all.iter().all(|(_, status, ..)| *status == OK), "seed {seed}: {all:?}");
        for k in 0..8u64 {
            let flags = |wr_id| -> Vec<WcFlags> { all.iter().filter(|c| c.0 == wr_id).map(|c| c.3).collect() };
            let long = 16 + (7 - k) as usize * 700 > 512;
            let eager = if long { vec![MATCHED, VALID] } else { vec![MATCHED | VALID] };
            assert_eq!(flags(100 + k), eager, "seed {seed}");
            assert_eq!(flags(200 + k), [MATCHED, VALID], "seed {seed}");
            assert_eq!(flags(300 + k), [WcFlags::empty()], "seed {seed}");
            let from = (7 - k) as usize * 12_000;
            let (len, to) = ((7 - k) as usize * 700, 200_000 + k as usize * 12_000);
            assert!(pair.memory(1, to, len) == pair.memory(0, from + HEADER, len), "seed {seed}");
            assert!(pair.memory(1, to + 200_000, 9000) == pair.memory(0, 121_000 + from, 9000), "seed {seed}");
        }
        assert!(pair.canaries_live());
    }
}

/// More requests than the send queue has room for wait, and none is lost.
#[test]
fn many_rendezvous_at_once_wait_for_room() {
    let mut pair = Setup { min_rnr_timer: 1, latency: Duration::from_micros(500), ..setup() }.pair();
    let mut next = 0;
    while next < 200 {
        for k in next..next + 40 {
            pair.post_tag(k, k, 200_000 + k as usize * 100, 100);
            if pair.nodes[0].qp.post_recv(&RecvWr { wr_id: k, sges: &[sge(900_000, 64)] }).is_err() {
                pair.run_until_idle();
                expect_fin(&mut pair, k, 900_000);
            }
            rendezvous(&mut pair, k, k, k as usize * 64, 50_000 + k as usize * 100, 100);
        }
        next += 40;
        let posted = next as usize;
        pair.run_until(|pair| pair.completions(0, Queue::Send).len() == posted);
    }
    pair.run_until_idle();
    let valid: Vec<u64> = received(&pair).iter().filter(|c| c.3 == VALID).map(|c| c.0).collect();
    assert_eq!(valid, (0..200).collect::<Vec<u64>>());
    assert_eq!(pair.memory(1, 200_000, 20_000), pair.memory(0, 50_000, 20_000));
}

#[test]
fn a_buffer_shorter_than_a_rendezvous_gets_its_headers() {
    for (room, status) in
        [(99, Status::RendezvousIncomplete), (32, Status::RendezvousIncomplete), (31, Status::LocalLength)]
    {
        let mut pair = setup().pair();
        pair.post_tag(8, 80, 300_000, room);
        pair.post_tag(9, 90, 310_000, 100);
        let before = pair.memory(1, 300_000, 100);
        rendezvous(&mut pair, 1, 8, 5000, 100_000, 100);
        eager(&mut pair, 2, 9, 6000, 100);
        pair.run_until_idle();
        let expected =
            [(80, status, WcOpcode::TagRecv, MATCHED | VALID, 8), (90, OK, WcOpcode::TagRecv, MATCHED | VALID, 9)];
        assert_eq!(received(&pair), expected, "the connection goes on");
        let stored = if room < 32 { 0 } else { 32 };
        assert_eq!(pair.memory(1, 300_000, stored), pair.memory(0, 5000, stored));
        assert_eq!(pair.memory(1, 300_000 + stored, 100 - stored), before[stored..]);
        assert_eq!(pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::ReadRequest)), 0);
    }
}

#[test]
fn an_eager_message_longer_than_its_buffer_is_a_length_error() {
    for (room, len) in [(83, 100), (1000, 5000), (4983, 5000)] {
        let mut pair = setup().pair();
        pair.post_tag(8, 80, 300_000, room);
        eager(&mut pair, 1, 8, 5000, len);
        pair.run_until_idle();
        let last = *received(&pair).last().expect("a completion");
        assert_eq!((last.0, last.1, last.2), (80, Status::LocalLength, WcOpcode::TagRecv), "{room} {len}");
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteInvalidRequest)]);
        assert!(pair.canaries_live());
    }
}

#[test]
fn a_rendezvous_request_without_complete_headers_ends_the_connection_only() {
    for len in [16, 31, 65, 1024, 3000] {
        let mut pair = setup().pair();
        pair.post_tag(8, 80, 300_000, 4000);
        pair.post_srq_recv(0, 10, 400_000, 4000);
        pair.fill(0, 5000, &headers(1, 8, 100_000, 100, remote(0).1));
        pair.post(1, SendOp::Send, 5000, len);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteInvalidRequest)], "{len}");
        assert!(received(&pair).is_empty());
        assert_eq!((pair.nodes[1].host.tags.len(), pair.nodes[1].host.srqs.borrow()[&0].len()), (1, 1));
    }
}

#[test]
fn a_failed_read_completes_the_tag_once() {
    let mut pair = setup().pair();
    pair.post_tag(8, 80, 300_000, 4000);
    pair.post_tag(9, 90, 310_000, 4000);
    pair.fill(0, 5000, &headers(1, 8, 100_000, 100, 0xbad));
    pair.post(1, SendOp::Send, 5000, 32);
    rendezvous(&mut pair, 2, 9, 6000, 100_000, 100);
    pair.run_until_idle();
    let mut all = received(&pair);
    all.sort_by_key(|c| (c.0, c.1 != OK));
    let ends: Vec<_> = all.iter().filter(|c| c.1 != OK).map(|c| (c.0, c.1, c.2)).collect();
    assert_eq!(ends[0], (80, Status::RemoteAccess, WcOpcode::TagRecv));
    // The other one may have been refused with the connection, before it matched.
    assert!(ends[1..].iter().all(|end| *end == (90, Status::WrFlushed, WcOpcode::TagRecv)) && ends.len() <= 2);
    assert!(pair.completions(1, Queue::Send).is_empty());
    assert_eq!(pair.nodes[1].qp.state(), QpState::Error);
}

#[test]
fn a_tag_under_way_is_flushed_once() {
    for stop in [QpState::Error, QpState::Reset] {
        for steps in 1..12 {
            let mut pair = setup().pair();
            pair.post_tag(8, 80, 300_000, 20_000);
            pair.post_tag(9, 90, 400_000, 20_000);
            expect_fin(&mut pair, 5, 900_000);
            rendezvous(&mut pair, 1, 8, 5000, 100_000, 20_000);
            eager(&mut pair, 2, 9, 150_000, 20_000);
            for _ in 0..steps {
                pair.step();
            }
            pair.modify_from(1, stop, QpAttr::default());
            pair.transmit();
            let all = received(&pair);
            for wr_id in [80, 90] {
                let own: Vec<_> = all.iter().filter(|c| c.0 == wr_id).collect();
                let ended = own.iter().filter(|c| c.1 != OK || c.3 == VALID).count();
                let begun = own.iter().filter(|c| c.3 == MATCHED).count();
                if stop == QpState::Error {
                    assert!(ended <= 1 && begun <= ended, "step {steps}: {all:?}");
                } else {
                    assert!(own.iter().all(|c| c.1 == OK), "a reset discards: {all:?}");
                }
            }
            assert!(pair.completions(1, Queue::Send).is_empty());
        }
    }
}

/// A program that connects late: the request arrives in RTR, and its data is fetched in RTS.
#[test]
fn a_rendezvous_in_rtr_begins_in_rts() {
    let setup = setup();
    let mut pair = setup.unconnected();
    pair.connect(0, &setup);
    for state in [QpState::Init, QpState::Rtr] {
        pair.modify_from(1, state, setup.attr(1));
    }
    pair.post_tag(8, 80, 300_000, 100);
    expect_fin(&mut pair, 5, 900_000);
    rendezvous(&mut pair, 1, 8, 5000, 100_000, 100);
    pair.run_until_idle();
    assert_eq!(received(&pair), [(80, OK, WcOpcode::TagRecv, MATCHED, 8)]);
    pair.modify_from(1, QpState::Rts, setup.attr(1));
    pair.run_until_idle();
    assert_eq!(received(&pair)[1], (80, OK, WcOpcode::TagRecv, VALID, 0));
    assert_eq!(pair.outcomes(0, Queue::Receive), [(5, OK)]);
}

#[test]
fn the_requests_of_the_adapter_take_no_room_of_the_program() {
    let mut pair = Setup { caps: QpCaps { max_send_wr: 2, ..Setup::default().caps }, ..setup() }.pair();
    pair.post_tag(8, 80, 300_000, 100);
    expect_fin(&mut pair, 5, 900_000);
    rendezvous(&mut pair, 1, 8, 5000, 100_000, 100);
    pair.run_until(|pair| !pair.completions(1, Queue::Receive).is_empty());
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: Data::Gather(&[]) };
    let posted = [(); 3].map(|()| pair.nodes[1].qp.post_send(&wr));
    assert_eq!(posted, [Ok(()), Ok(()), Err(PostError::QueueFull)]);
    for k in 6..8 {
        expect_fin(&mut pair, k, 910_000);
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Receive), [(5, OK), (6, OK), (7, OK)]);
    assert_eq!(pair.outcomes(1, Queue::Send), [(1, OK), (1, OK)]);
}

/// Any packets with almost valid headers, also other packets than before where one is repeated. No receive completes
/// twice, no byte outside of the region changes, and the program's send queue stays empty.
#[test]
fn a_hostile_peer_completes_no_tag_twice() {
    let mut ends = 0;
    for seed in 0..600 {
        let mut rng = Rng(seed);
        let mut profile = Profile::ideal();
        let paging = (seed % 3 > 0).then(PagingSetup::default);
        if seed % 3 == 1 {
            let after = Duration::ZERO;
            profile.page_faults.responder = ResponderFaults::RnrNak { other_after: after, read_after: after };
        }
        let mut pair = Setup { seed, paging, profile, mtu: Mtu::M256, ..setup() }.pair();
        for k in 0..40 {
            let (at, len) = (200_000 + k as usize * 3000, [16, 40, 500, 3000][k as usize % 4]);
            match k % 2 {
                0 => pair.post_tag(k / 2 % 3, k, at, len),
                _ => pair.post_srq_recv(0, k, at, len),
            }
        }
        for _ in 0..60 {
            let inside = pair.nodes[1].qp.responder_state() == ResponderState::InSend;
            // SENDs with and without immediate data and invalidation, WRITEs with immediate data, ACKs, READ responses:
            // mostly what can follow the packet before.
            let odd = rng.draw().is_multiple_of(12);
            let opcode = match rng.draw() % 16 {
                0 => 0x11,
                1 => 0x10,
                2 if !inside => 0x0b,
                3 if odd => 0x17,
                _ if odd => (rng.draw() % 6) as u8,
                _ if inside => 1 + (rng.draw() % 2) as u8,
                4..=6 => 0x00,
                _ => 0x04,
            };
            let len = match opcode {
                0 | 1 if !odd => 256,
                _ if odd => [0, 15, 31, 65, 256][rng.draw() as usize % 5],
                _ => [16, 32, 40, 64][rng.draw() as usize % 4],
            };
            let rkey = if rng.draw().is_multiple_of(4) { 0xbad } else { remote(0).1 };
            let operation = match rng.draw() % 8 {
                0 => 0,
                1..=3 if odd || opcode == 4 && len >= 32 => 1,
                4 => 2,
                _ => 3,
            };
            let data = [0, 16, 100, 500, 3000, 1 << 31, u32::MAX as usize][rng.draw() as usize % 7];
            let mut payload = headers(operation, rng.draw() % 4, 100_000, data, rkey).to_vec();
            payload.resize(len, 0x5a);
            let qp = &pair.nodes[1].qp;
            let response = opcode > 0x0b;
            let psn = if response { qp.attr().sq_psn.minus(1) } else { qp.attr().rq_psn };
            let mut bth = Bth::new(Opcode(opcode), qp.num(), psn);
            bth.ack_req = true;
            let mut headers = Headers::new(bth);
            let (va, _) = remote(700_000);
            headers.put(Reth { va: va.into(), rkey: rkey.into(), dma_len: (len as u32).into() });
            headers.put(Aeth::new(31, 1));
            headers.put(ImmDt { imm: 5.into() });
            let payload = if opcode == 0x11 { &[][..] } else { &payload[..] };
            let packet = Packet { headers, payload, icrc: 0, placement: None };
            let testing = &mut pair.nodes[1];
            testing.qp.handle_packet(pair.now, &packet, &mut testing.host);
            if rng.draw().is_multiple_of(3) {
                pair.now = pair.now + Duration::from_micros(60);
                let sides = if paging.is_some() { pair.paging(1).advance(pair.now) } else { Default::default() };
                sides.into_iter().for_each(|side| pair.nodes[1].qp.page_resolved(pair.now, side));
                pair.transmit();
            }
        }
        pair.modify_from(1, QpState::Error, QpAttr::default());
        let all = received(&pair);
        for k in 0..40 {
            let own = || all.iter().filter(|c| c.0 == k);
            let begun = own().filter(|c| c.1 == OK && c.3 == MATCHED).count();
            let ended = own().count() - begun;
            assert!(begun <= 1 && ended <= 1 && begun <= ended, "seed {seed}: {k} of {all:?}");
            ends += ended;
        }
        assert!(pair.completions(1, Queue::Send).is_empty());
        assert!(pair.canaries_live());
    }
    assert!(ends > 1000, "{ends}");
}
