//! Tag matching: what a QP with a TM SRQ does with eager messages, rendezvous requests, and other messages.

mod tags_setup;

use std::time::Duration;
use tags_setup::*;
use weir_transport::testing::{Entry, Faults, PagingSetup, Pair, Setup, address, good, remote, sge};
use weir_transport::*;
use weir_wire::{Operation, Syndrome};

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
            profile.page_faults.responder = ResponderFaults::RnrNak { read_after: after };
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

/// Two QPs with TM SRQs.
fn both(setup: &Setup) -> Pair {
    let mut pair = setup.unconnected();
    pair.nodes[0].qp.match_tags(4).expect("memory for the rings");
    (0..2).for_each(|node| pair.connect(node, setup));
    pair
}

/// Both sides send more requests than they have room for. Neither may wait for the other: what makes room on one side is
/// behind its own requests, which the other would have to take first.
#[test]
fn rendezvous_without_room_are_left_to_the_program() {
    const COUNT: u64 = 150;
    let caps = QpCaps { max_send_wr: COUNT as u32, ..Setup::default().caps };
    let mut pair = both(&Setup { caps, rnr_retry: 1, min_rnr_timer: 1, ..setup() });
    for node in 0..2 {
        for k in 0..COUNT {
            let at = 200_000 + k as usize * 100;
            pair.nodes[node].host.tags.push((k, k, vec![sge(at, 100)]));
            let mut srqs = pair.nodes[node].host.srqs.borrow_mut();
            srqs.entry(0).or_default().push_back((1000 + k, vec![sge(900_000, 64)]));
        }
        for k in 0..COUNT {
            let (at, from) = (k as usize * 64, 50_000 + k as usize * 100);
            pair.fill(node, at, &headers(1, k, from, 100, remote(0).1));
            pair.post_as(node, k, SendOp::Send, at, 32, SendFlags::SIGNALED);
        }
    }
    pair.run_until_idle();
    for node in 0..2 {
        assert_eq!(pair.outcomes(node, Queue::Send), good(0..COUNT));
        let all = pair.completions(node, Queue::Receive);
        let of = |k| all.iter().filter(move |c| c.wr_id == k && c.flags != MATCHED);
        let (mut done, mut left) = (0, 0);
        for k in 0..COUNT {
            let ends: Vec<&Completion> = of(k).collect();
            let [end] = ends[..] else { panic!("tag {k}: {ends:?}") };
            let at = k as usize * 100;
            if end.status == OK {
                done += 1;
                assert_eq!(pair.memory(node, 200_000 + at, 100), pair.memory(1 - node, 50_000 + at, 100));
            } else {
                left += 1;
                assert_eq!((end.status, end.flags), (Status::RendezvousIncomplete, MATCHED | VALID));
                assert_eq!(pair.memory(node, 200_000 + at, 32), headers(1, k, 50_000 + at, 100, remote(0).1));
            }
        }
        assert!(done >= 64 && left > 0, "{done} {left}");
        assert_eq!(pair.nodes[node].qp.state(), QpState::Rts);
    }
}

/// Of a tag's buffer below 32 bytes the program could not read the headers, so such a request waits.
#[test]
fn a_rendezvous_without_room_for_its_headers_waits() {
    let caps = QpCaps { max_recv_wr: 128, ..Setup::default().caps };
    let mut pair = Setup { caps, min_rnr_timer: 1, latency: Duration::from_micros(500), ..setup() }.pair();
    (0..67).for_each(|k| expect_fin(&mut pair, k, 900_000));
    for k in 0..64 {
        pair.post_tag(k, k, 200_000 + k as usize * 100, 100);
        rendezvous(&mut pair, k, k, k as usize * 64, 50_000, 100);
    }
    pair.run_until(|pair| pair.completions(0, Queue::Send).len() == 64);
    // All 64 are under way. What matches no tag, or is too long for its buffer, needs no room.
    pair.post_tag(100, 100, 300_000, 31);
    pair.post_tag(101, 101, 310_000, 99);
    pair.post_srq_recv(0, 102, 320_000, 64);
    for (k, len) in [(101, 100), (102, 100), (100, 31)] {
        rendezvous(&mut pair, k, k, 10_000 + k as usize * 64, 50_000, len);
    }
    pair.run_until_idle();
    let ends: Vec<_> = received(&pair).into_iter().filter(|c| c.0 >= 100).collect();
    let (recv, none) = (WcOpcode::TagRecv, WcFlags::empty());
    let expected = [
        (101, Status::RendezvousIncomplete, recv, MATCHED | VALID, 101),
        (102, OK, recv, none, 0),
        (100, OK, recv, MATCHED, 100),
        (100, OK, recv, VALID, 0),
    ];
    assert_eq!(ends, expected);
    assert_eq!(pair.memory(1, 300_000, 31), pair.memory(0, 50_000, 31));
    assert!(pair.wire.naks().iter().any(|nak| matches!(nak, Syndrome::RnrNak(_))), "it waited");
}

#[test]
fn a_buffer_shorter_than_a_rendezvous_gets_its_headers() {
    for room in [99, 32] {
        let mut pair = setup().pair();
        pair.post_tag(8, 80, 300_000, room);
        pair.post_tag(9, 90, 310_000, 100);
        let before = pair.memory(1, 300_000, 100);
        rendezvous(&mut pair, 1, 8, 5000, 100_000, 100);
        eager(&mut pair, 2, 9, 6000, 100);
        pair.run_until_idle();
        let incomplete = (80, Status::RendezvousIncomplete, WcOpcode::TagRecv, MATCHED | VALID, 8);
        let expected = [incomplete, (90, OK, WcOpcode::TagRecv, MATCHED | VALID, 9)];
        assert_eq!(received(&pair), expected, "the connection goes on");
        assert_eq!(pair.memory(1, 300_000, 32), pair.memory(0, 5000, 32));
        assert_eq!(pair.memory(1, 300_032, 68), before[32..]);
        let solicited = pair.nodes[1].host.journal.iter().find_map(|entry| match entry {
            Entry::Complete { solicited, .. } => Some(*solicited),
            _ => None,
        });
        assert_eq!(solicited, Some(true), "an error raises an event");
        assert_eq!(pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(Operation::ReadRequest)), 0);
    }
}

#[test]
fn a_buffer_shorter_than_the_headers_of_a_rendezvous_is_a_length_error() {
    for room in [0, 31] {
        let mut pair = setup().pair();
        pair.post_tag(8, 80, 300_000, room);
        let before = pair.memory(1, 300_000, 100);
        rendezvous(&mut pair, 1, 8, 5000, 100_000, 100);
        pair.run_until_idle();
        let ends: Vec<_> = received(&pair).iter().map(|c| (c.0, c.1, c.2)).collect();
        assert_eq!(ends, [(80, Status::LocalLength, WcOpcode::TagRecv)]);
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteInvalidRequest)]);
        assert_eq!(pair.memory(1, 300_000, 100), before);
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
