//! ACKs that wait for the application's reply, and leave after its last packet.

use std::time::Duration;
use weir_transport::testing::{Pair, Setup, write};
use weir_transport::*;
use weir_wire::Operation;

/// The number of replies in a row from which on ACKs wait.
const REPLIES_BEFORE_DELAY: u64 = 8;
/// Two and a half packets, each of 1024 bytes.
const LONG: usize = 2500;

/// Sends, and delivers the packets in flight; time advances by the wire's latency only.
fn exchange(pair: &mut Pair) {
    pair.transmit();
    pair.now = pair.now + pair.wire.latency;
    while let Some((from, bytes)) = pair.wire.receive(pair.now) {
        pair.deliver(1 - from, &bytes);
    }
}

fn post(pair: &mut Pair, node: usize, len: usize) {
    pair.post_as(node, 1, write(0), 0, len, SendFlags::SIGNALED);
}

/// Exchanges until a node has sent everything, and its peer has received it.
fn deliver_all(pair: &mut Pair, node: usize) {
    while pair.nodes[node].qp.has_to_send() {
        exchange(pair);
    }
}

/// A ping-pong with long messages, in which node 1 has replied so often that its ACKs wait.
fn replying(setup: Setup) -> Pair {
    let mut pair = setup.pair();
    for _ in 0..REPLIES_BEFORE_DELAY {
        for node in 0..2 {
            post(&mut pair, node, LONG);
            exchange(&mut pair);
        }
    }
    pair.run_until_idle();
    pair.wire.log.clear();
    pair
}

/// Positions of a node's ACKs among its packets, and the number of these packets.
fn acks_of(pair: &Pair, node: usize) -> (Vec<usize>, usize) {
    let sent: Vec<_> = pair.wire.log.iter().filter(|sent| sent.from == node).collect();
    let is_ack = |at: &usize| sent[*at].headers.bth.opcode.operation() == Some(Operation::Acknowledge);
    ((0..sent.len()).filter(is_ack).collect(), sent.len())
}

#[test]
fn the_ack_of_a_long_message_leaves_after_the_last_packet_of_its_reply() {
    // The egress takes the reply in one poll, or in several; or the window lets one packet leave per round trip.
    for (burst, window) in [(100, 1 << 20), (3, 1 << 20), (1, 1 << 20), (100, 1536)] {
        let tuning = Tuning { ack_every: 1, ..Tuning::default() };
        let mut pair = replying(Setup { burst, tuning, ..Setup::default() });
        post(&mut pair, 0, LONG);
        deliver_all(&mut pair, 0);
        assert!(pair.nodes[1].qp.has_waiting_ack(), "{burst} {window}");
        exchange(&mut pair);
        pair.wire.log.clear();
        pair.set_window(1, Limits { request_bytes: window, read_bytes: 0 });
        post(&mut pair, 1, 10 * 1024);
        while pair.nodes[1].qp.has_waiting_ack() {
            // Empty polls of the program do not end the wait while the reply leaves.
            exchange(&mut pair);
            pair.nodes[1].qp.program_polled(pair.now);
        }
        exchange(&mut pair);
        assert_eq!(acks_of(&pair, 1), (vec![10], 11), "{burst} {window}");
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send).len(), REPLIES_BEFORE_DELAY as usize + 1);
        assert_eq!(pair.outcomes(1, Queue::Send).len(), REPLIES_BEFORE_DELAY as usize + 1);
    }
}

#[test]
fn a_program_that_waits_for_events_sees_its_send_complete_before_the_reply() {
    // A long message, and a short one with a long reply in one burst or several.
    for (message, burst) in [(LONG, 100), (64, 100), (64, 3)] {
        let mut pair = replying(Setup { burst, ..Setup::default() });
        pair.nodes[1].qp.set_program_polls(false);
        post(&mut pair, 0, message);
        deliver_all(&mut pair, 0);
        assert_eq!(pair.nodes[1].qp.has_waiting_ack(), message != LONG);
        post(&mut pair, 1, LONG);
        pair.run_until_idle();
        let (acks, packets) = acks_of(&pair, 1);
        assert!(
            acks.iter().any(|at| at + 1 < packets),
            "{message} {burst}: the ACK is not last: {acks:?} of {packets}"
        );
    }
}

#[test]
fn acks_inside_a_long_message_leave_at_once() {
    let tuning = Tuning { ack_every: 2, ..Tuning::default() };
    let mut pair = replying(Setup { tuning, ..Setup::default() });
    let before = pair.nodes[1].qp.attr().rq_psn;
    post(&mut pair, 0, 5 * 1024);
    exchange(&mut pair);
    assert!(pair.nodes[1].qp.has_waiting_ack() && pair.nodes[1].qp.has_to_send());
    exchange(&mut pair);
    assert!(pair.nodes[1].qp.has_waiting_ack() && !pair.nodes[1].qp.has_to_send());
    let acks: Vec<_> = pair.wire.log.iter().filter(|sent| sent.from == 1).collect();
    // One ACK covers the packets before the last one. The ACK of the last one waits.
    assert_eq!(acks.iter().map(|sent| sent.headers.bth.psn.since(before)).collect::<Vec<_>>(), [3]);
    let msn = acks[0].headers.get::<weir_wire::Aeth>().unwrap().msn();
    assert_eq!(u64::from(msn), REPLIES_BEFORE_DELAY);
    assert_eq!(pair.nodes[0].qp.in_flight().request_bytes, 1024 + PACKET_COST);
}

#[test]
fn a_reply_that_leaves_for_long_holds_no_ack() {
    let mut pair = replying(Setup::default());
    post(&mut pair, 0, LONG);
    exchange(&mut pair);
    // A part of the reply leaves every 150 µs.
    let delay = Tuning::default().ack_delay;
    let (executed, step) = (pair.now, delay * 3 / 4);
    post(&mut pair, 1, 100 * 1024);
    for part in 1.. {
        pair.set_window(1, Limits { request_bytes: part * 2048, read_bytes: 0 });
        let node = &mut pair.nodes[1];
        let mut staging = weir_transport::testing::Staging::new(node.host.memory.clone(), 2);
        node.qp.poll_transmit(pair.now, Limits { request_bytes: 2048, read_bytes: 0 }, &mut node.host, &mut staging);
        if !node.qp.has_waiting_ack() {
            break;
        }
        assert!(pair.now <= executed + 8 * delay, "it waits for 1.6 ms at most");
        pair.now = pair.now + step;
    }
    assert!(pair.now > executed + 7 * delay, "it waits as long as the reply leaves");
}

#[test]
fn the_ack_waits_beyond_polls_while_the_peer_s_ack_is_expected() {
    for (unacknowledged, later) in [(true, 49), (true, 50), (false, 0)] {
        let mut pair = replying(Setup::default());
        if unacknowledged {
            // The peer's ACK of this request has not arrived.
            post(&mut pair, 1, 64);
            pair.transmit();
        }
        post(&mut pair, 0, LONG);
        exchange(&mut pair);
        assert!(pair.nodes[1].qp.has_waiting_ack());
        pair.now = pair.now + Duration::from_micros(later);
        pair.nodes[1].qp.program_polled(pair.now);
        assert_eq!(pair.nodes[1].qp.has_waiting_ack(), later == 49, "{unacknowledged} {later}");
    }
}

/// Some programs poll until nothing is left before they look at what came, and reply. Others stop polling after such a
/// poll: their ACKs leave at it.
#[test]
fn the_ack_waits_beyond_polls_for_as_long_as_replies_usually_take() {
    // Microseconds from a message to its reply, and to a poll that finds nothing; whether the ACK waits then.
    for (takes, poll, waits) in [(3, 5, true), (3, 6, false), (9, 9, true), (9, 10, false)] {
        for polls in [true, false] {
            let mut pair = Setup::default().pair();
            for _ in 0..10 * REPLIES_BEFORE_DELAY {
                for node in 0..2 {
                    post(&mut pair, node, 64);
                    exchange(&mut pair);
                    if polls {
                        pair.nodes[1 - node].qp.program_polled(pair.now);
                    }
                    pair.now = pair.now + Duration::from_micros(takes);
                }
            }
            pair.run_until_idle();
            post(&mut pair, 0, 64);
            exchange(&mut pair);
            assert!(pair.nodes[1].qp.has_waiting_ack());
            pair.now = pair.now + Duration::from_micros(poll);
            pair.nodes[1].qp.program_polled(pair.now);
            assert_eq!(pair.nodes[1].qp.has_waiting_ack(), waits && polls, "{takes} {poll} {polls}");
        }
    }
}

/// A window of MPI: the target replies to the messages that lock and unlock it, and does not see the put between them.
#[test]
fn writes_without_a_reply_between_messages_with_one_keep_no_ack_of_these_from_waiting() {
    let mut pair = Setup::default().pair();
    let rounds = 10 * REPLIES_BEFORE_DELAY;
    for round in 0..rounds {
        for _ in 0..2 {
            pair.post_recv(1, 0, 64);
            pair.post_as(0, 1, SendOp::Send, 0, 64, SendFlags::SIGNALED);
            exchange(&mut pair);
            assert_eq!(pair.nodes[1].qp.has_waiting_ack(), 2 * round >= REPLIES_BEFORE_DELAY, "{round}");
            post(&mut pair, 1, 64);
            exchange(&mut pair);
        }
        post(&mut pair, 0, 64);
        exchange(&mut pair);
        assert!(!pair.nodes[1].qp.has_waiting_ack(), "{round}");
        pair.run_until_idle();
    }
    assert_eq!(pair.outcomes(0, Queue::Send).len() as u64, 3 * rounds);
}

#[test]
fn no_ack_waits_where_both_programs_send_streams() {
    let mut pair = replying(Setup::default());
    for _ in 0..5 {
        post(&mut pair, 1, 64);
    }
    pair.transmit();
    post(&mut pair, 0, LONG);
    exchange(&mut pair);
    assert!(!pair.nodes[1].qp.has_waiting_ack() && pair.nodes[1].qp.has_to_send());
}

#[test]
fn no_ack_waits_while_earlier_sends_have_not_left() {
    let mut pair = replying(Setup::default());
    pair.set_window(1, Limits { request_bytes: 1536, read_bytes: 0 });
    post(&mut pair, 1, LONG);
    pair.transmit();
    post(&mut pair, 0, LONG);
    exchange(&mut pair);
    assert!(!pair.nodes[1].qp.has_waiting_ack() && pair.nodes[1].qp.has_to_send());
}

#[test]
fn acks_of_programs_that_post_at_the_same_time_seldom_wait_in_vain() {
    let mut pair = Setup::default().pair();
    let (mut vain, rounds) = (0, 10_000);
    for _ in 0..rounds {
        post(&mut pair, 0, LONG);
        post(&mut pair, 1, LONG);
        exchange(&mut pair);
        for _ in 0..100 {
            if pair.nodes.iter().all(|node| node.qp.in_flight().request_bytes == 0) {
                break;
            }
            let now = pair.now;
            let waits = pair.nodes.iter_mut().all(|node| {
                node.qp.program_polled(now);
                node.qp.has_waiting_ack()
            });
            // Both programs poll for the completions of their sends.
            exchange(&mut pair);
            vain += u32::from(waits);
        }
    }
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), rounds);
    // Each wait lasts 50 µs: some 25 polls of 2 µs.
    assert!(vain < rounds as u32 / 100 * 25 * 2, "{vain}");
}
