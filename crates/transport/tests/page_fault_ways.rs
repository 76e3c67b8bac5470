//! Network page faults as on real adapters: RNR NAKs, responses without a new request, dropped responses, retries.

use std::time::Duration;
use weir_transport::testing::{Fate, PagingSetup, Pair, Setup, address, good, remote};
use weir_transport::*;
use weir_wire::{Aeth, Operation, Syndrome};

const MS: Duration = Duration::from_millis(1);
const REMOTE_OFFSET: usize = 100_000;
/// min_rnr_timer of 1.28 ms.
const RNR_TIMER: u8 = 14;
const RNR_NAK: ResponderFaults = ResponderFaults::RnrNak { read_after: Duration::ZERO };
const RNR_WAIT: Duration = Duration::from_micros(1280);

fn setup(resolve: Duration, requester: RequesterFaults, responder: ResponderFaults) -> Setup {
    Setup {
        paging: Some(PagingSetup { resolve, ..PagingSetup::default() }),
        profile: Profile {
            page_faults: PageFaults { requester, responder, ..Profile::ideal().page_faults },
            ..Profile::ideal()
        },
        min_rnr_timer: RNR_TIMER,
        ..Setup::default()
    }
}

/// The responder sends RNR NAKs; the requester's pages are all present.
fn rnr_nak(resolve: Duration) -> Setup {
    setup(resolve, RequesterFaults::Wait, RNR_NAK)
}

fn with_sender_warm(setup: &Setup) -> Pair {
    let mut pair = setup.pair();
    pair.paging(0).prefetch(address(0), 1 << 20, true);
    pair.run_until_idle();
    pair
}

/// The requester drops responses that meet a page fault; the responder's pages are all present.
fn discarding(resolve: Duration, retransmit: Duration) -> Pair {
    let mut pair =
        setup(resolve, RequesterFaults::Discard { retransmit: Delay::exactly(retransmit) }, ResponderFaults::Wait)
            .pair();
    pair.paging(1).prefetch(address(0), 1 << 20, true);
    pair.run_until_idle();
    pair
}

fn write() -> SendOp {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    SendOp::Write { remote_addr, rkey }
}

fn read() -> SendOp {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    SendOp::Read { remote_addr, rkey }
}

fn rnr_naks(pair: &Pair) -> usize {
    let is_nak = |byte| matches!(Syndrome::from_byte(byte), Syndrome::RnrNak(_));
    pair.wire.count(|sent| sent.headers.get::<Aeth>().is_some_and(|aeth| is_nak(aeth.syndrome())))
}

fn operations(pair: &Pair, operation: Operation) -> usize {
    pair.wire.count(|sent| sent.headers.bth.opcode.operation() == Some(operation))
}

/// Time until work request 1 is complete.
fn time(pair: &mut Pair) -> Duration {
    let start = pair.now;
    assert!(pair.run_until(|pair| !pair.outcomes(0, Queue::Send).is_empty()));
    pair.now - start
}

#[test]
fn a_request_that_faults_gets_an_rnr_nak_and_is_retransmitted() {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    let atomic = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
    for (op, len) in
        [(SendOp::Send, 5000), (write(), 5000), (atomic, 8), (SendOp::AtomicWrite { remote_addr, rkey }, 8)]
    {
        let mut pair = with_sender_warm(&rnr_nak(MS));
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        let before = pair.memory(1, REMOTE_OFFSET, 8);
        pair.post(1, op, 1000, len);
        assert!(pair.run_until(|pair| pair.nodes[1].qp.responder_state() == ResponderState::PageFault));
        assert_eq!(pair.held(1, Side::Responder), 0, "the caller does not hold it");
        let took = time(&mut pair);
        // The page is present when the request is retransmitted.
        assert!(took >= RNR_WAIT && took < 2 * RNR_WAIT * (len as u32).div_ceil(1024), "{op:?} {took:?}");
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]), "{op:?}");
        let most = if op == SendOp::Send { 6 } else { 1 };
        assert!((1..=most).contains(&rnr_naks(&pair)), "{op:?}");
        match op {
            SendOp::FetchAdd { .. } => {
                let number = |bytes: Vec<u8>| u64::from_ne_bytes(bytes.try_into().unwrap());
                assert!(pair.memory(0, 1000, 8) == before);
                assert_eq!(number(pair.memory(1, REMOTE_OFFSET, 8)), number(before).wrapping_add(1), "done once");
            }
            _ => assert!(pair.memory(1, REMOTE_OFFSET, len) == pair.memory(0, 1000, len)),
        }
    }
}

#[test]
fn an_unresolved_page_exhausts_the_rnr_retries() {
    // The last NAK of a WRITE leaves with the page, and finds a QP that has failed.
    for (operation, naks) in [(read(), 4), (write(), 5)] {
        let mut pair = with_sender_warm(&Setup { rnr_retry: 3, ..rnr_nak(1000 * MS) });
        pair.post(1, operation, 0, 5000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RnrRetryExceeded)], "{operation:?}");
        assert_eq!(rnr_naks(&pair), naks);
    }
    // A page that cannot be resolved is an error when its fault fails.
    let mut pair = with_sender_warm(&rnr_nak(MS));
    pair.paging(1).unmap(address(REMOTE_OFFSET), 5000);
    pair.post(1, write(), 0, 5000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RemoteOperation)]);
    assert_eq!(rnr_naks(&pair), 1);
}

#[test]
fn a_read_is_answered_without_a_new_request() {
    for (discards, len) in [(false, 3000), (true, 3000), (false, 8), (true, 8)] {
        let resolve = Duration::from_micros(500);
        let mut setup = rnr_nak(resolve);
        setup.profile.rnr_wait.discards = discards;
        let mut pair = with_sender_warm(&setup);
        pair.post(1, read(), 0, len);
        let took = time(&mut pair);
        assert_eq!(rnr_naks(&pair), 1);
        if discards {
            // The response came during the RNR wait: only the response to the retransmission counts.
            assert!(took >= RNR_WAIT && took < RNR_WAIT + resolve, "{took:?}");
            assert_eq!(operations(&pair, Operation::ReadRequest), 2);
        } else {
            assert!(took < resolve + Duration::from_micros(50), "{took:?}");
            assert_eq!(operations(&pair, Operation::ReadRequest), 1);
        }
        let responses =
            operations(&pair, Operation::ReadResponseFirst) + operations(&pair, Operation::ReadResponseOnly);
        assert_eq!(responses, 1 + usize::from(discards));
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
        assert!(pair.memory(0, 0, len) == pair.memory(1, REMOTE_OFFSET, len));
    }
}

#[test]
fn a_read_retransmitted_before_its_page_gets_another_nak() {
    let mut pair = with_sender_warm(&Setup { min_rnr_timer: 1, ..rnr_nak(2 * MS) });
    pair.post(1, read(), 0, 3000);
    pair.run_until_idle();
    assert!(rnr_naks(&pair) > 5);
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert!(pair.memory(0, 0, 3000) == pair.memory(1, REMOTE_OFFSET, 3000));
}

#[test]
fn requests_after_a_read_with_a_fault_are_retransmitted() {
    for discards in [false, true] {
        let mut setup = rnr_nak(Duration::from_micros(500));
        setup.profile.rnr_wait.discards = discards;
        let mut pair = with_sender_warm(&setup);
        pair.paging(1).prefetch(address(0), 50_000, true);
        pair.run_until_idle();
        let (remote_addr, rkey) = remote(0);
        let start = pair.now;
        let before = pair.memory(1, 20_000, 8);
        pair.post(1, SendOp::Write { remote_addr, rkey }, 0, 2000);
        pair.post(2, read(), 60_000, 3000);
        pair.post(3, SendOp::Write { remote_addr: remote_addr + 10_000, rkey }, 0, 2000);
        pair.post(4, SendOp::FetchAdd { remote_addr: remote_addr + 20_000, rkey, add: 1 }, 70_000, 8);
        assert!(pair.run_until(|pair| rnr_naks(pair) > 0));
        pair.post(5, SendOp::Read { remote_addr, rkey }, 80_000, 2000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good(1..=5));
        assert!(pair.memory(0, 60_000, 3000) == pair.memory(1, REMOTE_OFFSET, 3000));
        assert!(pair.memory(1, 10_000, 2000) == pair.memory(0, 0, 2000));
        assert!(pair.memory(0, 70_000, 8) == before, "done once");
        assert!(pair.memory(0, 80_000, 2000) == pair.memory(1, 0, 2000));
        assert!(pair.now - start < 3 * MS, "waited for a timeout");
        assert_eq!(rnr_naks(&pair), 1);
    }
}

#[test]
fn requests_after_a_retransmitted_read_are_executed_at_once() {
    // The page is in the table when the READ is retransmitted, but the QP is not notified yet.
    let paging = Some(PagingSetup { resolve: MS / 10, notice: 10 * MS, ..PagingSetup::default() });
    let mut pair = with_sender_warm(&Setup { paging, ..rnr_nak(MS) });
    pair.paging(1).prefetch(address(0), 50_000, true);
    pair.run_until_idle();
    let (remote_addr, rkey) = remote(0);
    let start = pair.now;
    pair.post(1, read(), 60_000, 1000);
    pair.post(2, SendOp::Write { remote_addr, rkey }, 0, 1000);
    assert!(pair.run_until(|pair| rnr_naks(pair) > 0));
    pair.post(3, SendOp::Write { remote_addr, rkey }, 0, 2000);
    assert!(pair.run_until(|pair| pair.outcomes(0, Queue::Send).len() == 3));
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=3));
    assert!(pair.now - start < 2 * MS, "waited for a timeout");
}

#[test]
fn a_gap_after_a_read_with_a_fault_gets_its_nak() {
    let mut pair = with_sender_warm(&rnr_nak(MS / 2));
    pair.paging(1).prefetch(address(0), 50_000, true);
    pair.run_until_idle();
    // The WRITE's first packet is lost twice: before the RNR NAK, and after the READ's retransmission.
    let mut losses = 0;
    pair.wire.rule = Some(Box::new(move |_, packet| {
        let hit = packet.headers.bth.opcode.operation() == Some(Operation::WriteFirst) && losses < 2;
        losses += usize::from(hit);
        if hit { Fate::Drop } else { Fate::Pass }
    }));
    let (remote_addr, rkey) = remote(0);
    let start = pair.now;
    pair.post(1, read(), 60_000, 1000);
    pair.post(2, SendOp::Write { remote_addr, rkey }, 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good(1..=2));
    assert!(pair.now - start < 3 * MS, "waited for a timeout");
}

#[test]
fn a_fault_in_the_middle_of_a_response_is_nakked_at_its_psn() {
    let mut pair = with_sender_warm(&rnr_nak(MS));
    pair.paging(1).prefetch(address(REMOTE_OFFSET), 2000, false);
    pair.run_until_idle();
    let mut lost = false;
    // The response without a new request is lost.
    pair.wire.rule = Some(Box::new(move |from, packet| {
        let hit = from == 1 && packet.headers.bth.opcode.operation() == Some(Operation::ReadResponseLast);
        if hit && !std::mem::replace(&mut lost, true) { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, read(), 0, 5000);
    pair.run_until_idle();
    let first = Psn::new(Setup::default().psn[0]);
    let nak = pair.wire.log.iter().find(|sent| sent.headers.get::<Aeth>().is_some_and(|a| a.syndrome() >> 5 == 1));
    let nak = nak.expect("an RNR NAK").headers.bth.psn.since(first);
    assert!((1..5).contains(&nak), "{nak}");
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert!(pair.memory(0, 0, 5000) == pair.memory(1, REMOTE_OFFSET, 5000));
}

#[test]
fn responses_are_discarded_and_requested_at_a_fixed_interval() {
    let (remote_addr, rkey) = remote(REMOTE_OFFSET);
    let atomic = SendOp::FetchAdd { remote_addr, rkey, add: 1 };
    for (op, len) in [(read(), 5000), (atomic, 8)] {
        // The page becomes present long before the interval ends, or after several intervals.
        for (resolve, interval) in [(Duration::from_micros(100), MS), (3 * MS, MS / 2)] {
            let mut pair = discarding(resolve, interval);
            let before = pair.memory(1, REMOTE_OFFSET, len);
            pair.post(1, op, 0, len);
            assert!(pair.run_until(|pair| pair.nodes[0].qp.requester_state() == RequesterState::PageFault));
            assert_eq!(pair.held(0, Side::Requester), 0, "the caller does not hold them");
            pair.run_until_idle();
            assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
            assert!(pair.memory(0, 0, len) == before);
            let requests: Vec<Instant> = pair.wire.log.iter().filter(|sent| sent.from == 0).map(|s| s.at).collect();
            assert!(requests.len() >= 2, "{op:?}");
            if resolve < interval {
                assert!(requests.len() <= len.div_ceil(1024) + 1, "{op:?}");
            }
            for pair in requests.windows(2) {
                let apart = pair[1] - pair[0];
                assert!(apart >= interval && apart < interval + Duration::from_micros(20), "{op:?} {apart:?}");
            }
        }
    }
}

#[test]
fn discarded_responses_do_not_exhaust_the_retries() {
    let setup = Setup {
        retry_cnt: 1,
        ..setup(40 * MS, RequesterFaults::Discard { retransmit: Delay::exactly(MS / 2) }, ResponderFaults::Wait)
    };
    let mut pair = setup.pair();
    pair.paging(1).prefetch(address(0), 1 << 20, true);
    pair.run_until_idle();
    pair.post(1, read(), 0, 1000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
    assert!(operations(&pair, Operation::ReadRequest) > 10);
}

#[test]
fn a_discarded_response_resets_the_retries() {
    let setup = Setup {
        retry_cnt: 1,
        ..setup(2 * MS, RequesterFaults::Discard { retransmit: Delay::exactly(MS) }, ResponderFaults::Wait)
    };
    let mut pair = setup.pair();
    pair.paging(1).prefetch(address(0), 1 << 20, true);
    pair.run_until_idle();
    // The first and the third response are lost, the second is discarded: no two losses in a row.
    let mut responses = 0;
    pair.wire.rule = Some(Box::new(move |from, _| {
        responses += usize::from(from == 1);
        if from == 1 && (responses == 1 || responses == 3) { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, read(), 0, 1000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
}

#[test]
fn outgoing_data_waits_even_if_responses_are_discarded() {
    for op in [SendOp::Send, write()] {
        let mut pair = discarding(MS, MS / 10);
        pair.post_recv(10, REMOTE_OFFSET, 5000);
        pair.post(1, op, 0, 5000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send), good([1]));
        assert_eq!(pair.wire.count(|sent| sent.from == 0), 5, "each packet once");
        assert!(pair.memory(1, REMOTE_OFFSET, 5000) == pair.memory(0, 0, 5000));
    }
}

#[test]
fn without_naks_only_the_faulting_message_is_lost() {
    for service in [Service::Uc, Service::Ud] {
        // The whole receive buffer is in one page.
        let paging = Some(PagingSetup { page: 4096, resolve: MS, ..PagingSetup::default() });
        let mut pair = with_sender_warm(&Setup { service, paging, ..rnr_nak(MS) });
        pair.post_recv(10, REMOTE_OFFSET, 1040);
        pair.post_recv(11, REMOTE_OFFSET + 4000, 1040);
        pair.post(1, SendOp::SendImm { imm: 1 }, 0, 1000);
        pair.run_until_idle();
        assert_eq!(pair.outcomes(1, Queue::Receive), [], "{service:?}");
        assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::Ready);
        pair.post(2, SendOp::SendImm { imm: 2 }, 0, 1000);
        pair.run_until_idle();
        let received = pair.completions(1, Queue::Receive);
        assert_eq!(received.iter().map(|c| (c.wr_id, c.imm)).collect::<Vec<_>>(), [(10, 2)], "{service:?}");
    }
}
