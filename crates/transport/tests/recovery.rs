//! Lost packets and duplicates: sequence NAKs, implied NAKs, repeated responses.

use std::time::Duration;
use weir_transport::testing::{Entry, Fate, Faults, Pair, Setup, Staging, good, read, remote, write};
use weir_transport::*;
use weir_wire::{NakCode, Reth, Syndrome};

/// Drops the packets of a node with the given numbers (from 1).
fn drop_nth(pair: &mut Pair, node: usize, which: &'static [usize]) {
    let mut count = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        count += usize::from(from == node);
        if from == node && which.contains(&count) { Fate::Drop } else { Fate::Pass }
    }));
}

fn no_time_passed(pair: &Pair, start: Instant) {
    let took = pair.now - start;
    assert!(took < Duration::from_millis(4), "waited for a timeout: {took:?}");
}

#[test]
fn one_sequence_nak_for_a_gap_then_silence() {
    let mut pair = Setup::default().pair();
    let start = pair.now;
    drop_nth(&mut pair, 0, &[3]);
    pair.post(1, write(0), 0, 10_000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.memory(1, 0, 10_000), pair.memory(0, 0, 10_000));
    assert_eq!(pair.wire.naks(), [Syndrome::Nak(NakCode::PsnSequence)]);
    no_time_passed(&pair, start);
}

#[test]
fn each_gap_gets_its_nak() {
    let mut pair = Setup::default().pair();
    let start = pair.now;
    // The third of ten packets; then the fourth of the eight retransmitted packets.
    drop_nth(&mut pair, 0, &[3, 14]);
    pair.post(1, write(0), 0, 10_000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.wire.naks(), [Syndrome::Nak(NakCode::PsnSequence); 2]);
    no_time_passed(&pair, start);
}

#[test]
fn a_duplicate_does_not_cancel_an_owed_nak() {
    let mut pair = Setup::default().pair();
    let start = pair.now;
    // The first of three arrives once more, right after the gap was detected.
    let mut count = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        count += usize::from(from == 0);
        match (from, count) {
            (0, 1) => Fate::Twice,
            (0, 2) => Fate::Drop,
            (0, 3) => Fate::Delay(Duration::from_micros(1)),
            _ => Fate::Pass,
        }
    }));
    for wr_id in 1..=3 {
        pair.post(wr_id, write(0), 0, 10);
    }
    pair.transmit();
    pair.now = pair.now + 2 * pair.wire.latency;
    while let Some((from, bytes)) = pair.wire.receive(pair.now) {
        pair.deliver(1 - from, &bytes);
    }
    pair.run_until_idle();
    assert_eq!(pair.wire.naks(), [Syndrome::Nak(NakCode::PsnSequence)]);
    no_time_passed(&pair, start);
}

#[test]
fn a_lost_last_packet_waits_for_the_timeout() {
    let mut pair = Setup::default().pair();
    let start = pair.now;
    drop_nth(&mut pair, 0, &[10]);
    pair.post(1, write(0), 0, 10_000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.wire.naks(), []);
    assert!(pair.now - start >= Duration::from_micros(4194));
}

#[test]
fn a_lost_read_response_is_requested_again() {
    for lost in [&[1][..], &[2], &[3], &[1, 2], &[2, 3]] {
        let mut pair = Setup::default().pair();
        let lost: &'static [usize] = lost.to_vec().leak();
        let start = pair.now;
        drop_nth(&mut pair, 1, lost);
        pair.post(1, read(0), 100_000, 4096);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
        assert_eq!(pair.memory(0, 100_000, 4096), pair.memory(1, 0, 4096));
        no_time_passed(&pair, start);
        // Two requests; the second starts at the first missing packet.
        let requests: Vec<_> = pair.wire.log.iter().filter(|s| s.from == 0).collect();
        assert_eq!(requests.len(), 2, "lost {lost:?}");
        let skip = lost[0] as u32 - 1;
        assert_eq!(requests[1].headers.bth.psn, requests[0].headers.bth.psn.plus(skip));
        assert_eq!(requests[1].headers.get::<Reth>().unwrap().dma_len.get(), 4096 - 1024 * skip);
        assert_eq!(requests[1].headers.get::<Reth>().unwrap().va.get(), remote(1024 * skip as usize).0);
    }
}

#[test]
fn a_gap_in_responses_causes_one_new_request() {
    let mut pair = Setup::default().pair();
    let mut responses = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        responses += from;
        match (from, responses) {
            (1, 2) => Fate::Drop,
            // One after the other, so that the requester could send a new request for each.
            (1, n) => Fate::Delay(Duration::from_nanos(100) * n as u32),
            _ => Fate::Pass,
        }
    }));
    pair.post(1, read(0), 100_000, 40 * 1024);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.memory(0, 100_000, 40 * 1024), pair.memory(1, 0, 40 * 1024));
    assert_eq!(pair.wire.count(|s| s.from == 0), 2);
}

/// An acknowledge packet for node 0.
fn acknowledge(psn: u32, syndrome: Syndrome) -> weir_wire::Headers {
    let opcode = weir_wire::Opcode::new(Service::Rc, weir_wire::Operation::Acknowledge);
    let mut headers = weir_wire::Headers::new(weir_wire::Bth::new(opcode, 0x11, Psn::new(psn)));
    headers.put(weir_wire::Aeth::new(syndrome.to_byte(), 0));
    headers
}

fn deliver(pair: &mut Pair, headers: weir_wire::Headers) {
    let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[0];
    qp.handle_packet(pair.now, &weir_wire::Packet { headers, payload: &[], icrc: 0, placement: None }, host);
}

#[test]
fn repeated_sequence_naks_count_once() {
    let mut pair = Setup { retry_cnt: 1, ..Setup::default() }.pair();
    pair.post(1, write(0), 0, 5000);
    pair.transmit();
    for _ in 0..5 {
        deliver(&mut pair, acknowledge(0x10_0000, Syndrome::Nak(NakCode::PsnSequence)));
    }
    assert_eq!(pair.nodes[0].qp.completer_state(), CompleterState::Retransmitting);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
}

#[test]
fn sequence_naks_without_progress_are_retries() {
    let mut pair = Setup { retry_cnt: 3, timeout: 0, ..Setup::default() }.pair();
    pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, write(0), 0, 5000);
    for round in 0..4 {
        assert_eq!(pair.outcomes(0, Queue::Send), [], "round {round}");
        pair.transmit();
        deliver(&mut pair, acknowledge(0x10_0000, Syndrome::Nak(NakCode::PsnSequence)));
    }
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RetryExceeded)]);
}

#[test]
fn a_sequence_nak_does_not_end_the_wait_for_a_receiver() {
    // Soft-RoCE sends them like this, one after the other.
    let mut pair = Setup { retry_cnt: 0, ..Setup::default() }.pair();
    pair.post(1, SendOp::Send, 0, 5000);
    pair.transmit();
    deliver(&mut pair, acknowledge(0x10_0000, Syndrome::RnrNak(weir_wire::RnrTimer::new(20))));
    deliver(&mut pair, acknowledge(0x10_0000, Syndrome::Nak(NakCode::PsnSequence)));
    assert_eq!(pair.nodes[0].qp.state(), QpState::Rts);
    assert!(!pair.nodes[0].qp.has_to_send());
    assert_eq!(pair.nodes[0].qp.poll_timeout(), Some(pair.now + Duration::from_micros(10_240)));
}

#[test]
fn after_going_back_a_shrunken_window_does_not_block() {
    let mut pair = Setup { timeout: 0, ..Setup::default() }.pair();
    pair.post(1, write(0), 0, 20_000);
    let poll = |pair: &mut Pair, room: usize, request_bytes: usize| {
        let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[0];
        let mut staging = Staging::new(host.memory.clone(), room);
        qp.poll_transmit(pair.now, Limits { request_bytes, read_bytes: 0 }, host, &mut staging);
        let asked = |bytes: &Vec<u8>| weir_wire::Packet::parse(bytes).unwrap().headers.bth.ack_req;
        staging.packets.iter().map(asked).collect::<Vec<bool>>()
    };
    // The last packet of the first round requests an ACK, but is lost with the others.
    assert_eq!(poll(&mut pair, 100, 5000), [false, false, true]);
    deliver(&mut pair, acknowledge(0x10_0000, Syndrome::Nak(NakCode::PsnSequence)));
    assert_eq!(poll(&mut pair, 1, 100_000), [false]);
    assert_eq!(poll(&mut pair, 100, 0), [true]);
}

#[test]
fn an_ack_beyond_a_read_implies_a_lost_response() {
    let mut pair = Setup::default().pair();
    let start = pair.now;
    drop_nth(&mut pair, 1, &[1]);
    pair.post(1, read(0), 100_000, 100);
    pair.post(2, write(200_000), 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.memory(0, 100_000, 100), pair.memory(1, 0, 100));
    no_time_passed(&pair, start);
}

#[test]
fn pipelined_reads_survive_a_lost_response() {
    for lost in 1..=20 {
        let mut pair = Setup { max_rd_atomic: 3, max_dest_rd_atomic: 3, ..Setup::default() }.pair();
        let lost: &'static [usize] = vec![lost].leak();
        drop_nth(&mut pair, 1, lost);
        for wr_id in 0..5 {
            pair.post(wr_id, read(wr_id as usize * 4096), 100_000 + wr_id as usize * 4096, 4096);
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), (0..5).map(|id| (id, Status::Success)).collect::<Vec<_>>());
        assert_eq!(pair.memory(0, 100_000, 5 * 4096), pair.memory(1, 0, 5 * 4096));
    }
}

#[test]
fn an_atomic_is_executed_once_despite_duplicates() {
    let mut pair = Setup::default().pair();
    // Its responses are lost, and each of its requests arrives twice.
    let mut responses = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        responses += from;
        if from == 0 {
            Fate::Twice
        } else if responses <= 3 {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    pair.fill(1, 64, &7u64.to_ne_bytes());
    let (remote_addr, rkey) = remote(64);
    pair.post(1, SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 0, 8);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.memory(0, 0, 8), 7u64.to_ne_bytes());
    assert_eq!(pair.memory(1, 64, 8), 8u64.to_ne_bytes());
    let executed = pair.nodes[1].host.journal.iter().filter(|e| matches!(e, Entry::Atomic { .. })).count();
    assert_eq!(executed, 1);
}

#[test]
fn a_duplicate_read_too_old_for_the_resources_is_dropped() {
    let mut pair = Setup { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Setup::default() }.pair();
    let mut first = None;
    pair.post(1, read(0), 100_000, 10);
    pair.post(2, read(0), 100_000, 10);
    pair.wire.rule = Some(Box::new(move |from, packet| {
        // The first request arrives once more.
        if from == 0 && first.is_none() {
            first = Some(packet.headers.bth.psn);
            return Fate::Twice;
        }
        Fate::Pass
    }));
    pair.wire.latency = Duration::from_micros(50);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 2);
    let before = pair.wire.log.len();
    // Passes the duplicate in directly, when it is certainly out of the ring.
    let sent = pair.wire.log[0];
    let packet = weir_wire::Packet { headers: sent.headers, payload: &[], icrc: 0, placement: None };
    let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &packet, host);
    assert!(!qp.has_to_send());
    pair.run_until_idle();
    assert_eq!(pair.wire.log.len(), before);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
}

#[test]
fn a_duplicate_read_must_match_the_original() {
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 100_000, 4096);
    pair.run_until_idle();
    let sent = pair.wire.log[0];
    let mut answered = |va: u64, rkey: u32, len: u32, psn: u32| {
        let mut headers = sent.headers;
        headers.bth.psn = headers.bth.psn.plus(psn);
        headers.put(weir_wire::Reth { va: va.into(), rkey: rkey.into(), dma_len: len.into() });
        let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[1];
        qp.handle_packet(pair.now, &weir_wire::Packet { headers, payload: &[], icrc: 0, placement: None }, host);
        let answered = qp.has_to_send();
        pair.run_until_idle();
        answered
    };
    let (va, rkey) = remote(0);
    assert!(answered(va, rkey, 4096, 0));
    assert!(answered(va + 1024, rkey, 3072, 1));
    assert!(answered(va + 1024, rkey, 1024, 1));
    assert!(!answered(va + 1024, rkey, 3073, 1));
    assert!(!answered(va, rkey, 1024, 1));
    assert!(!answered(va, rkey + 1, 4096, 0));
    assert!(!answered(va - 1024, rkey, 4096, 0));
}

#[test]
fn responses_leave_in_psn_order_even_for_duplicates() {
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 100_000, 4096);
    pair.post(2, read(4096), 104_096, 4096);
    pair.transmit();
    let requests = [pair.wire.log[0].headers, pair.wire.log[1].headers];
    let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[1];
    let mut responses = |requests: &[weir_wire::Headers], room| {
        for &headers in requests {
            qp.handle_packet(pair.now, &weir_wire::Packet { headers, payload: &[], icrc: 0, placement: None }, host);
        }
        let mut staging = Staging::new(host.memory.clone(), room);
        qp.poll_transmit(pair.now, Limits { request_bytes: 0, read_bytes: 0 }, host, &mut staging);
        let bths = staging.packets.iter().map(|bytes| weir_wire::Packet::parse(bytes).unwrap().headers.bth);
        bths.map(|bth| bth.psn.since(Psn::new(0x10_0000))).collect::<Vec<_>>()
    };
    assert_eq!(responses(&requests, 6), [0, 1, 2, 3, 4, 5]);
    assert_eq!(responses(&requests[..1], 100), [0, 1, 2, 3, 6, 7]);
}

#[test]
fn a_new_read_replaces_the_response_to_a_duplicate() {
    let mut pair = Setup { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Setup::default() }.pair();
    pair.post(1, read(0), 100_000, 4096);
    pair.run_until_idle();
    let again = pair.wire.log[0].headers;
    let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &weir_wire::Packet { headers: again, payload: &[], icrc: 0, placement: None }, host);
    assert!(qp.has_to_send());
    let mut new = again;
    new.bth.psn = again.bth.psn.plus(4);
    qp.handle_packet(pair.now, &weir_wire::Packet { headers: new, payload: &[], icrc: 0, placement: None }, host);
    assert_eq!(qp.state(), QpState::Rts);
    let before = pair.wire.log.len();
    pair.transmit();
    let psns: Vec<i32> = pair.wire.log[before..].iter().map(|s| s.headers.bth.psn.since(again.bth.psn)).collect();
    assert_eq!(psns, [4, 5, 6, 7]);
}

#[test]
fn many_duplicates_are_acknowledged_together() {
    let mut pair = Setup::default().pair();
    for wr_id in 0..10 {
        pair.post(wr_id, write(0), 0, 10);
    }
    pair.run_until_idle();
    let requests: Vec<_> = pair.wire.log.iter().filter(|s| s.from == 0).copied().collect();
    let before = pair.wire.count(|s| s.from == 1);
    for sent in requests {
        let weir_transport::testing::Node { qp, host, .. } = &mut pair.nodes[1];
        qp.handle_packet(
            pair.now,
            &weir_wire::Packet { headers: sent.headers, payload: &[0; 10], icrc: 0, placement: None },
            host,
        );
    }
    pair.run_until_idle();
    assert_eq!(pair.wire.count(|s| s.from == 1), before + 1);
    assert_eq!(pair.wire.log.last().unwrap().headers.bth.psn, Psn::new(0x10_0009));
}

#[test]
fn an_adapter_carries_as_many_reads_as_a_profile_may_allow() {
    let ideal = Profile::ideal();
    let device = DeviceAttributes { max_qp_rd_atom: MAX_RD_ATOMIC, max_qp_init_rd_atom: MAX_RD_ATOMIC, ..ideal.device };
    let caps = QpCaps { max_send_wr: 256, ..Setup::default().caps };
    for loss in [0.0, 0.1] {
        let mut pair = Setup {
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            profile: Profile { device, ..ideal.clone() },
            caps,
            burst: 256,
            faults: Faults { loss, ..Faults::default() },
            ..Setup::default()
        }
        .pair();
        for wr_id in 0..200 {
            pair.post(wr_id, read(wr_id as usize * 1500), 500_000 + wr_id as usize * 1500, 1500);
        }
        pair.transmit();
        assert_eq!(pair.wire.count(|sent| sent.from == 0), usize::from(MAX_RD_ATOMIC));
        assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::WaitReads);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(0..200));
        assert_eq!(pair.memory(0, 500_000, 300_000), pair.memory(1, 0, 300_000));
    }
}
