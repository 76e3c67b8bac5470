//! End-to-end credits, which hardware adapters advertise and Weir's responder does not.

use weir_transport::testing::{Fate, Node, Pair, Setup, remote, write};
use weir_transport::*;
use weir_wire::{Aeth, Bth, Headers, Opcode, Operation, Packet, Syndrome};

const FIRST: u32 = 0x10_0000;

/// A pair that drops the packets of node 1: the tests craft its ACKs.
fn pair() -> Pair {
    let mut pair = Setup { timeout: 0, ..Setup::default() }.pair();
    pair.wire.rule = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Pass }));
    pair
}

/// Acknowledges up to packet `psn`, with the number of messages finished and a credit code.
fn acknowledge(pair: &mut Pair, psn: u32, msn: u32, code: u8) {
    let bth = Bth::new(Opcode::new(Service::Rc, Operation::Acknowledge), 0x11, Psn::new(FIRST + psn));
    let mut headers = Headers::new(bth);
    headers.put(Aeth::new(Syndrome::Ack(code).to_byte(), msn));
    let Node { qp, host, .. } = &mut pair.nodes[0];
    qp.handle_packet(pair.now, &Packet { headers, payload: &[], icrc: 0, placement: None }, host);
}

/// Node 0 sends; returns the numbers of its packets, and whether each requests an ACK.
fn sent(pair: &mut Pair) -> Vec<(u32, bool)> {
    let before = pair.wire.log.len();
    pair.transmit();
    let new = pair.wire.log[before..].iter().filter(|sent| sent.from == 0);
    new.map(|sent| (sent.headers.bth.psn.get() - FIRST, sent.headers.bth.ack_req)).collect()
}

/// A pair after one WRITE that was acknowledged with a credit code.
fn limited(code: u8) -> Pair {
    let mut pair = pair();
    pair.post(0, write(0), 0, 10);
    assert_eq!(sent(&mut pair), [(0, true)]);
    acknowledge(&mut pair, 0, 1, code);
    pair
}

#[test]
fn without_credit_one_packet_goes_at_a_time() {
    let mut pair = limited(1);
    // Credit for one message: only one packet without credit leaves.
    pair.post(1, SendOp::Send, 0, 3000);
    pair.post(2, SendOp::SendImm { imm: 1 }, 0, 10);
    pair.post(3, SendOp::Send, 0, 3000);
    assert_eq!(sent(&mut pair), [(1, false), (2, false), (3, true), (4, true)]);
    assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::WaitCredit);
    assert_eq!(sent(&mut pair), []);
    acknowledge(&mut pair, 3, 2, 0);
    assert_eq!(sent(&mut pair), [], "the packet without credit is still in flight");
    acknowledge(&mut pair, 4, 3, 0);
    assert_eq!(sent(&mut pair), [(5, true)]);
    acknowledge(&mut pair, 5, 3, 0);
    assert_eq!(sent(&mut pair), [(6, true)]);
    acknowledge(&mut pair, 6, 3, 2);
    assert_eq!(sent(&mut pair), [(7, true)]);
    pair.post(4, SendOp::Send, 0, 10);
    assert_eq!(sent(&mut pair), [(8, true)]);
    acknowledge(&mut pair, 8, 5, 2);
    assert_eq!(pair.outcomes(0, Queue::Send), [0, 1, 2, 3, 4].map(|wr_id| (wr_id, Status::Success)));
}

#[test]
fn a_request_without_a_receive_needs_no_credit() {
    let mut pair = limited(0);
    let (remote_addr, rkey) = remote(0);
    pair.post(1, write(0), 0, 3000);
    pair.post(2, SendOp::Read { remote_addr, rkey }, 0, 3000);
    pair.post(3, SendOp::WriteImm { remote_addr, rkey, imm: 5 }, 0, 3000);
    pair.post(4, SendOp::WriteImm { remote_addr, rkey, imm: 6 }, 0, 3000);
    let psns: Vec<u32> = sent(&mut pair).into_iter().map(|(psn, _)| psn).collect();
    // The last packet of the second WRITE with immediate data waits: a packet without credit is in flight.
    assert_eq!(psns, [1, 2, 3, 4, 7, 8, 9, 10, 11]);
    assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::WaitCredit);
}

#[test]
fn credits_may_come_with_an_ack_that_acknowledges_nothing_new() {
    for code in [6, 31] {
        let mut pair = limited(0);
        for wr_id in 1..4 {
            pair.post(wr_id, SendOp::Send, 0, 10);
        }
        assert_eq!(sent(&mut pair), [(1, true)]);
        acknowledge(&mut pair, 0, 1, code);
        assert_eq!(sent(&mut pair), [(2, true), (3, true)], "credit code {code}");
    }
}

#[test]
fn an_older_ack_brings_no_credits() {
    let mut pair = limited(31);
    pair.post(1, SendOp::Send, 0, 10);
    assert_eq!(sent(&mut pair), [(1, true)]);
    acknowledge(&mut pair, 1, 2, 0);
    acknowledge(&mut pair, 0, 1, 31);
    pair.post(2, SendOp::Send, 0, 10);
    pair.post(3, SendOp::Send, 0, 10);
    assert_eq!(sent(&mut pair), [(2, true)]);
}

#[test]
fn a_lost_packet_without_credit_is_retransmitted() {
    let mut pair = Setup::default().pair();
    let mut left = 1;
    pair.post(0, write(0), 0, 10);
    pair.run_until_idle();
    // The ACK arrives once more, now without credit.
    acknowledge(&mut pair, 0, 1, 0);
    pair.wire.rule = Some(Box::new(move |from, _| {
        left -= i32::from(from == 0);
        if from == 0 && left >= 0 { Fate::Drop } else { Fate::Pass }
    }));
    pair.post_recv(10, 0, 5000);
    pair.post(1, SendOp::Send, 0, 3000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(pair.nodes[0].qp.retransmissions().ack_timeouts, 1);
}

#[test]
fn an_arbitrary_msn_does_not_stop_the_sender() {
    for msn in [0, 5, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
        let mut pair = pair();
        pair.post(0, write(0), 0, 10);
        sent(&mut pair);
        acknowledge(&mut pair, 0, msn, 3);
        for wr_id in 1..6 {
            pair.post(wr_id, SendOp::Send, 0, 10);
        }
        for _ in 1..6 {
            let Some(&(last, asks)) = sent(&mut pair).last() else { break };
            assert!(asks);
            acknowledge(&mut pair, last, msn, 3);
        }
        assert_eq!(pair.outcomes(0, Queue::Send).len(), 6, "MSN {msn:#x}");
    }
}

#[test]
fn read_requests_count_as_messages_and_local_work_does_not() {
    let mut pair =
        Setup { tuning: Tuning { read_chunk: 2048, ..Tuning::default() }, timeout: 0, ..Setup::default() }.pair();
    let (remote_addr, rkey) = remote(0);
    // Three READ requests, a window bind and its invalidation.
    pair.post(0, SendOp::Read { remote_addr, rkey }, 0, 5000);
    let bind = Bind { window_rkey: 9, new_rkey: 9, mr_lkey: rkey, addr: remote_addr, len: 8, access: Access::empty() };
    pair.post(1, SendOp::BindWindow(bind), 0, 0);
    pair.post(2, SendOp::LocalInvalidate { key: 9 }, 0, 0);
    pair.run_until_idle();
    pair.wire.rule = Some(Box::new(|from, _| if from == 1 { Fate::Drop } else { Fate::Pass }));
    pair.post(3, write(0), 0, 10);
    assert_eq!(sent(&mut pair), [(5, true)]);
    // The responder has counted four messages: there is credit for two more.
    acknowledge(&mut pair, 5, 4, 2);
    for wr_id in 4..8 {
        pair.post(wr_id, SendOp::Send, 0, 2000);
    }
    assert_eq!(sent(&mut pair), [(6, false), (7, true), (8, false), (9, true), (10, true)]);
}
