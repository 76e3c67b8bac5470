//! Network page faults where both sides wait for them, as on the ideal adapter.

mod page_fault_setup;

use page_fault_setup::*;
use std::time::Duration;
use weir_transport::testing::{Entry, Fate, PagingSetup, Pair, SRQ, Setup, address, good, remote};
use weir_transport::*;
use weir_wire::{Aeth, Operation};

fn operations(pair: &Pair, node: usize, operation: Operation) -> usize {
    pair.wire.count(|sent| sent.from == node && sent.headers.bth.opcode.operation() == Some(operation))
}

#[test]
fn every_operation_waits_on_both_sides() {
    for service in [Service::Rc, Service::Xrc] {
        for (op, len) in every_operation() {
            let mut pair = Setup { service, ..setup(MS) }.pair();
            let before = [pair.memory(0, 1000, len), pair.memory(1, REMOTE_OFFSET, len)];
            if service == Service::Xrc {
                pair.post_srq_recv(SRQ, 10, REMOTE_OFFSET, 5000);
            } else {
                pair.post_recv(10, REMOTE_OFFSET, 5000);
            }
            pair.post(1, op, 1000, len);
            let mut waited = [false; 2];
            while pair.step() {
                waited[0] |= pair.nodes[0].qp.requester_state() == RequesterState::PageFault;
                waited[1] |= pair.nodes[1].qp.responder_state() == ResponderState::PageFault;
            }
            assert_eq!(waited, [true; 2], "{op:?}");
            assert_eq!(pair.outcomes(0, Queue::Send), good([1]), "{op:?}");
            match op {
                SendOp::Read { .. } => assert!(pair.memory(0, 1000, len) == before[1]),
                SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. } => {
                    assert!(pair.memory(0, 1000, len) == before[1]);
                    let atomics = pair.nodes[1].host.journal.iter().filter(|e| matches!(e, Entry::Atomic { .. }));
                    assert_eq!(atomics.count(), 1);
                }
                _ => assert!(pair.memory(1, REMOTE_OFFSET, len) == before[0], "{op:?}"),
            }
            // The wire shows no NAK and no retransmission, and the rest of a message was resolved with its first page.
            assert_eq!(naks(&pair), 0, "{op:?}");
            let requests = if matches!(op, SendOp::Read { .. }) { 1 } else { len.div_ceil(1024) };
            assert_eq!(pair.wire.count(|sent| sent.from == 0), requests, "{op:?}");
            let counts = pair.paging(1).counts;
            assert!(counts.begun <= if matches!(op, SendOp::Send | SendOp::SendImm { .. }) { 6 } else { 1 }, "{op:?}");
            assert!(pair.canaries_live());
        }
    }
}

#[test]
fn warm_pages_cost_nothing() {
    let mut pair = pair(MS);
    warm(&mut pair, 0);
    warm(&mut pair, 1);
    let start = pair.now;
    pair.post_recv(10, REMOTE_OFFSET, 5000);
    pair.post_recv(11, REMOTE_OFFSET, 5000);
    pair.post_recv(12, REMOTE_OFFSET, 5000);
    for (k, (op, len)) in every_operation().into_iter().enumerate() {
        pair.post(k as u64, op, 1000, len);
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(0..8));
    assert!(pair.now - start < MS);
    assert_eq!([pair.paging(0).counts.met, pair.paging(1).counts.met], [0, 0]);
}

#[test]
fn nothing_after_a_waiting_request_is_executed_or_acknowledged() {
    // Longer than the ACK timeout: the requester retransmits, and gets ACKs for the executed requests.
    let mut pair = pair(15 * MS);
    warm(&mut pair, 0);
    pair.paging(1).prefetch(address(0), 50_000, true);
    pair.run_until_idle();
    let (remote_addr, rkey) = remote(0);
    let first_psn = Psn::new(Setup::default().psn[0]);
    pair.post(1, SendOp::Write { remote_addr, rkey }, 0, 3000);
    pair.post(2, write(), 0, 1000);
    pair.post(3, SendOp::Write { remote_addr: remote_addr + 10_000, rkey }, 0, 1000);
    pair.post(4, SendOp::FetchAdd { remote_addr: remote_addr + 20_000, rkey, add: 1 }, 40_000, 8);
    // The ACK of the first WRITE is lost once, so that its last packet is retransmitted.
    let mut acks = 0;
    pair.wire.rule = Some(Box::new(move |from, packet| {
        acks += usize::from(from == 1 && packet.headers.get::<Aeth>().is_some());
        if from == 1 && acks == 1 { Fate::Drop } else { Fate::Pass }
    }));
    assert!(pair.run_until(|pair| pair.held(1, Side::Responder) > 0));
    let last = pair.now + MS;
    while pair.nodes[1].qp.responder_state() == ResponderState::PageFault {
        assert_eq!(writes(&pair, 1), 3, "the first WRITE's packets, and no others");
        assert!(pair.outcomes(0, Queue::Send).len() <= 1);
        for sent in pair.wire.log.iter().filter(|sent| sent.from == 1) {
            assert!(sent.headers.bth.psn.since(first_psn) <= 2, "acknowledged beyond the page fault");
        }
        assert!(pair.step());
    }
    assert!(pair.now > last + 3 * MS, "the fault outlasted the ACK timeout");
    assert!(pair.wire.count(|sent| sent.from == 1) >= 2, "the duplicate was acknowledged again");
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=4));
    assert!(pair.memory(1, REMOTE_OFFSET, 1000) == pair.memory(0, 0, 1000));
    assert_eq!(pair.held(1, Side::Responder), 0);
}

#[test]
fn a_waiting_response_holds_back_all_later_replies() {
    waiting_response_holds_back(pair(2 * MS), 0);
    waiting_response_holds_back(late_pair(2 * MS), 1);
}

/// `early`: WRITEs behind the READ that are executed before its data is read out.
fn waiting_response_holds_back(mut pair: Pair, early: usize) {
    warm(&mut pair, 0);
    pair.paging(1).prefetch(address(0), 50_000, true);
    pair.run_until_idle();
    let (remote_addr, rkey) = remote(0);
    let first_psn = Psn::new(Setup::default().psn[0]);
    let before = pair.memory(1, REMOTE_OFFSET, 3000);
    pair.post(1, SendOp::Read { remote_addr, rkey }, 50_000, 2000);
    pair.post(2, read(), 60_000, 3000);
    // It arrives with the READs, before the page fault; another WRITE arrives later.
    pair.post(3, SendOp::Write { remote_addr, rkey }, 0, 1000);
    assert!(pair.run_until(|pair| pair.nodes[1].qp.responder_state() == ResponderState::PageFault));
    assert!(!pair.nodes[1].qp.has_to_send(), "the responder waits");
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    pair.post(4, SendOp::Write { remote_addr, rkey }, 0, 3000);
    let entered = pair.paging(1).counts.entered;
    while pair.paging(1).counts.entered == entered {
        assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::PageFault);
        assert_eq!(writes(&pair, 1), early);
        for sent in pair.wire.log.iter().filter(|sent| sent.from == 1) {
            assert!(sent.headers.bth.psn.since(first_psn) < 2, "answered beyond the page fault");
        }
        assert!(pair.step());
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=4));
    assert!(pair.memory(0, 60_000, 3000) == before, "the data from before the later WRITE");
    assert!(pair.memory(1, REMOTE_OFFSET, 3000) == pair.memory(0, 0, 3000));
    assert_eq!(naks(&pair), 0);
}

#[test]
fn acks_held_back_by_a_response_are_sent_after_it() {
    let mut pair = late_pair(2 * MS);
    warm(&mut pair, 0);
    pair.paging(1).prefetch(address(0), 50_000, true);
    pair.run_until_idle();
    let (remote_addr, rkey) = remote(0);
    pair.post(1, read(), 60_000, 1000);
    pair.post(2, SendOp::Write { remote_addr, rkey }, 0, 1000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
    assert_eq!(pair.wire.count(|sent| sent.from == 0), 2, "no request was sent twice");
}

#[test]
fn an_earlier_duplicate_read_is_answered_while_a_later_one_waits() {
    let mut pair = pair(30 * MS);
    warm(&mut pair, 0);
    pair.paging(1).prefetch(address(0), 50_000, true);
    pair.run_until_idle();
    // The response to the first READ is lost.
    let mut lost = false;
    pair.wire.rule = Some(Box::new(move |from, _| {
        let first = from == 1 && !std::mem::replace(&mut lost, true);
        if first { Fate::Drop } else { Fate::Pass }
    }));
    let (remote_addr, rkey) = remote(0);
    pair.post(1, SendOp::Read { remote_addr, rkey }, 50_000, 1000);
    pair.post(2, read(), 60_000, 3000);
    assert!(pair.run_until(|pair| !pair.outcomes(0, Queue::Send).is_empty()));
    assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::PageFault, "the other still waits");
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
    assert!(pair.memory(0, 60_000, 3000) == pair.memory(1, REMOTE_OFFSET, 3000));
}

#[test]
fn the_ack_timeout_stops_while_the_requester_waits() {
    for page in [0, 3] {
        // 3 packets may have left when the page is found missing; none of them requested an ACK.
        let mut pair = Setup { retry_cnt: 0, ..setup(60 * MS) }.pair();
        warm(&mut pair, 1);
        pair.paging(0).prefetch(address(0), 1024 * page + 1, true);
        pair.run_until_idle();
        pair.post(1, write(), 0, 10_000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
        assert_eq!(operations(&pair, 0, Operation::WriteFirst), 1, "no retransmission");
        assert!(pair.memory(1, REMOTE_OFFSET, 10_000) == pair.memory(0, 0, 10_000));
    }
}

#[test]
fn a_partial_ack_does_not_start_the_ack_timeout() {
    // Of three packets that have left, two are acknowledged and the third did not request an ACK.
    let setup = Setup { retry_cnt: 0, ..setup(60 * MS) };
    let mut pair = Setup { tuning: Tuning { ack_every: 2, ..Tuning::default() }, ..setup }.pair();
    warm(&mut pair, 1);
    pair.paging(0).prefetch(address(0), 3000, true);
    pair.run_until_idle();
    let mut count = 0;
    // The third packet arrives after the others are acknowledged.
    pair.wire.rule = Some(Box::new(move |from, _| {
        count += usize::from(from == 0);
        if from == 0 && count == 3 { Fate::Delay(MS) } else { Fate::Pass }
    }));
    pair.post(1, write(), 0, 10_000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
}

#[test]
fn the_patience_restarts_after_a_page() {
    let mut pair = Setup { retry_cnt: 0, ..setup(60 * MS) }.pair();
    warm(&mut pair, 1);
    pair.paging(0).prefetch(address(0), 3000, true);
    pair.run_until_idle();
    pair.nodes[0].qp.set_patience(100 * MS);
    // The peer never responds.
    pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, write(), 0, 10_000);
    pair.transmit();
    assert!(pair.run_until(|pair| pair.nodes[0].qp.requester_state() != RequesterState::PageFault));
    let start = pair.now;
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RetryExceeded)]);
    assert!(pair.now - start >= 100 * MS, "{:?}", pair.now - start);
}

#[test]
fn the_pages_of_a_response_buffer_may_be_removed() {
    for (op, len) in [every_operation()[4], every_operation()[5]] {
        let mut pair = Setup { retry_cnt: 0, ..setup(60 * MS) }.pair();
        warm(&mut pair, 1);
        let before = pair.memory(1, REMOTE_OFFSET, len);
        pair.post(1, op, 1000, len);
        pair.post(2, read(), 20_000, 1000);
        assert!(pair.run_until(|pair| pair.wire.count(|sent| sent.from == 0) > 0));
        // Its buffer was prepared, and its pages are removed before the response arrives.
        pair.paging(0).invalidate(address(0), 10_000, Duration::ZERO);
        assert!(pair.run_until(|pair| pair.held(0, Side::Requester) > 0));
        assert_eq!(pair.nodes[0].qp.completer_state(), CompleterState::PageFault);
        assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::PageFault);
        assert!(!pair.nodes[0].qp.has_to_send());
        assert_eq!(pair.outcomes(0, Queue::Send), []);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
        assert!(pair.memory(0, 1000, len) == before);
        assert_eq!(pair.wire.count(|sent| sent.from == 0), 2, "no request was sent twice");
        assert_eq!(pair.nodes[0].qp.completer_state(), CompleterState::InOrder);
    }
}

#[test]
fn a_page_removed_before_the_retry_faults_again() {
    for node in 0..2 {
        let notice = Duration::from_micros(100);
        let paging = Some(PagingSetup { resolve: MS, notice, ..PagingSetup::default() });
        let mut pair = Setup { paging, ..Setup::default() }.pair();
        pair.post(1, write(), 0, 3000);
        for _ in 0..3 {
            let entered = pair.paging(node).counts.entered;
            assert!(pair.run_until(|pair| pair.paging(node).counts.entered > entered));
            // The page is in the table, but the QP is not notified yet.
            pair.paging(node).invalidate(address(0), 1 << 20, Duration::ZERO);
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
        assert!(pair.paging(node).counts.begun >= 4);
        assert!(pair.memory(1, REMOTE_OFFSET, 3000) == pair.memory(0, 0, 3000));
        assert_eq!(naks(&pair), 0);
    }
}

#[test]
fn a_fault_does_not_end_while_its_pages_are_being_invalidated() {
    let mut pair = pair(MS);
    warm(&mut pair, 0);
    pair.paging(1).invalidate(address(REMOTE_OFFSET), 5000, 2 * MS);
    let begun = pair.now;
    pair.post(1, write(), 0, 5000);
    pair.run_until_idle();
    assert_eq!(pair.paging(1).counts.raced, 1);
    assert!(pair.now - begun >= 2 * MS);
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert!(pair.memory(1, REMOTE_OFFSET, 5000) == pair.memory(0, 0, 5000));
}

#[test]
fn a_fault_joins_a_pending_prefetch() {
    let mut pair = pair(MS);
    warm(&mut pair, 0);
    pair.paging(1).prefetch(address(REMOTE_OFFSET), 5000, true);
    pair.post(1, write(), 0, 5000);
    pair.run_until_idle();
    let counts = pair.paging(1).counts;
    assert_eq!((counts.met, counts.begun), (1, 1));
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    // A prefetch for reading does not allow writing.
    pair.paging(1).prefetch(address(200_000), 5000, false);
    let (remote_addr, rkey) = remote(200_000);
    pair.post(2, SendOp::Write { remote_addr, rkey }, 0, 5000);
    pair.run_until_idle();
    let counts = pair.paging(1).counts;
    assert_eq!((counts.met, counts.begun), (2, 3));
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
}

#[test]
fn the_peer_retransmits_packets_that_are_not_held() {
    for held in 0..3 {
        let paging = Some(PagingSetup { resolve: MS, held, ..PagingSetup::default() });
        let mut pair = Setup { paging, ..Setup::default() }.pair();
        let before = pair.memory(1, 200_000, 5000);
        pair.post_recv(10, 300_000, 5000);
        let (remote_addr, rkey) = remote(200_000);
        pair.post(1, SendOp::Send, 0, 5000);
        pair.post(2, write(), 10_000, 5000);
        pair.post(3, SendOp::Read { remote_addr, rkey }, 20_000, 5000);
        // The pages of the READ's buffer are removed after the READ was sent.
        let asked = |pair: &Pair| operations(pair, 0, Operation::ReadRequest) > 0;
        assert!(pair.run_until(asked));
        pair.paging(0).invalidate(address(20_000), 5000, MS);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(1..=3), "{held}");
        assert!(pair.memory(1, 300_000, 5000) == pair.memory(0, 0, 5000));
        assert!(pair.memory(1, REMOTE_OFFSET, 5000) == pair.memory(0, 10_000, 5000));
        assert!(pair.memory(0, 20_000, 5000) == before);
    }
}

#[test]
fn a_gap_after_packets_that_were_not_held_gets_a_nak() {
    let paging = Some(PagingSetup { resolve: MS, held: 0, ..PagingSetup::default() });
    let mut pair = Setup { paging, ..Setup::default() }.pair();
    warm(&mut pair, 0);
    let start = pair.now;
    // The first packet is lost and NAKed; its retransmission meets a page fault.
    let mut lost = false;
    pair.wire.rule =
        Some(Box::new(
            move |from, _| {
                if from == 0 && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Pass }
            },
        ));
    pair.post(1, write(), 0, 5000);
    assert!(pair.run_until(|pair| pair.paging(1).counts.entered > 0));
    pair.post(2, write(), 0, 100);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
    assert_eq!(naks(&pair), 2);
    assert!(pair.now - start < 3 * MS, "waited for a timeout");
}

#[test]
fn the_peer_gets_acks_of_its_progress() {
    // Each packet needs its own page, no packet is held, and only the last packet requests an ACK.
    let paging = Some(PagingSetup { page: 256, resolve: MS / 10, held: 0, ..PagingSetup::default() });
    let mut pair = Setup { retry_cnt: 1, mtu: Mtu::M256, paging, ..Setup::default() }.pair();
    warm(&mut pair, 0);
    pair.post_recv(10, REMOTE_OFFSET, 3000);
    pair.post(1, SendOp::Send, 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert!(pair.memory(1, REMOTE_OFFSET, 3000) == pair.memory(0, 0, 3000));
}

#[test]
fn packets_of_uc_and_datagrams_wait_too() {
    for service in [Service::Uc, Service::Ud] {
        for srq in [false, true] {
            let mut pair = Setup { service, srq, ..setup(MS) }.pair();
            let len = if service == Service::Ud { 1000 } else { 5000 };
            for k in 0..4 {
                match srq {
                    true => pair.post_srq_recv(0, 10 + k, REMOTE_OFFSET + 6000 * k as usize, 6000),
                    false => pair.post_recv(10 + k, REMOTE_OFFSET + 6000 * k as usize, 6000),
                }
                pair.post(k, SendOp::SendImm { imm: k as u32 }, 6000 * k as usize, len);
            }
            let mut held = 0;
            while pair.step() {
                held = held.max(pair.held(1, Side::Responder));
            }
            assert!(held > 0);
            assert_eq!(pair.outcomes(0, Queue::Send), good(0..4));
            assert_eq!(pair.outcomes(1, Queue::Receive), good(10..14), "{service:?}");
            let header = if service == Service::Ud { 40 } else { 0 };
            for k in 0..4 {
                assert!(pair.memory(1, REMOTE_OFFSET + 6000 * k + header, len) == pair.memory(0, 6000 * k, len));
            }
            assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::Ready);
            assert!(pair.canaries_live());
        }
    }
}

#[test]
fn no_packet_overtakes_a_held_packet() {
    for service in [Service::Rc, Service::Uc, Service::Ud] {
        // The page is in the table long before the QP is notified.
        let paging = Some(PagingSetup { resolve: MS / 10, notice: MS, page: 4096, held: 10 });
        let mut pair = Setup { service, paging, ..Setup::default() }.pair();
        warm(&mut pair, 0);
        pair.post_recv(10, REMOTE_OFFSET, 500);
        pair.post_recv(11, REMOTE_OFFSET + 500, 500);
        pair.post(1, SendOp::SendImm { imm: 1 }, 0, 100);
        assert!(pair.run_until(|pair| pair.paging(1).counts.entered > 0));
        pair.post(2, SendOp::SendImm { imm: 2 }, 0, 100);
        pair.run_until_idle();
        let received = pair.completions(1, Queue::Receive);
        assert_eq!(received.iter().map(|c| c.imm).collect::<Vec<_>>(), [1, 2], "{service:?}");
    }
}

#[test]
fn messages_of_uc_whose_packets_are_not_held_are_lost_and_no_others() {
    let paging = Some(PagingSetup { resolve: MS, held: 3, ..PagingSetup::default() });
    let mut pair = Setup { service: Service::Uc, paging, ..Setup::default() }.pair();
    warm(&mut pair, 0);
    pair.post_recv(10, REMOTE_OFFSET, 5000);
    pair.post(1, SendOp::Send, 0, 5000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Receive), [], "two of five packets were not held");
    pair.post(2, SendOp::Send, 10_000, 2000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Receive), good([10]));
    assert!(pair.memory(1, REMOTE_OFFSET, 2000) == pair.memory(0, 10_000, 2000));
}
