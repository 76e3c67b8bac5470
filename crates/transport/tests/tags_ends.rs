//! Tag matching: failures, QPs that end while a message or a rendezvous is under way, and hostile peers.

mod tags_setup;

use std::time::Duration;
use tags_setup::*;
use weir_transport::testing::{Node, PagingSetup, Rng, Setup, remote};
use weir_transport::*;
use weir_wire::{Aeth, Bth, Headers, ImmDt, Opcode, Packet, Reth};

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
    let mut under_way = 0;
    for stop in [Some(QpState::Error), Some(QpState::Reset), None] {
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
            match stop {
                Some(state) => pair.modify_from(1, state, QpAttr::default()),
                None => {
                    let Node { qp, host, .. } = &mut pair.nodes[1];
                    qp.end_tags(host);
                    qp.abandon();
                }
            }
            pair.transmit();
            let all = received(&pair);
            for (tag, wr_id) in [(8, 80), (9, 90)] {
                let own: Vec<_> = all.iter().filter(|c| c.0 == wr_id).collect();
                let ended = own.iter().filter(|c| c.1 != OK || c.3 == VALID).count();
                let begun = own.iter().filter(|c| c.3 == MATCHED).count();
                let taken = pair.nodes[1].host.tags.iter().all(|entry| entry.0 != tag);
                assert!(ended == usize::from(taken) && begun <= ended, "{stop:?}, step {steps}: {all:?}");
                under_way += usize::from(own.iter().any(|c| c.1 == Status::WrFlushed));
            }
            assert!(pair.completions(1, Queue::Send).is_empty());
        }
    }
    assert!(under_way > 6, "{under_way}");
}

/// The program's own requests are discarded without completions, wherever they are in the queue.
#[test]
fn a_reset_completes_no_request_of_the_program() {
    let mut pair = setup().pair();
    pair.post_as(1, 1, SendOp::Send, 0, 100, SendFlags::SIGNALED);
    pair.post_tag(8, 80, 300_000, 100);
    rendezvous(&mut pair, 1, 8, 5000, 100_000, 100);
    pair.run_until(|pair| !pair.completions(1, Queue::Receive).is_empty());
    pair.post_as(1, 2, SendOp::Send, 0, 100, SendFlags::SIGNALED);
    pair.modify_from(1, QpState::Reset, QpAttr::default());
    let ends: Vec<_> = received(&pair).iter().map(|c| (c.0, c.1)).collect();
    assert_eq!(ends, [(80, OK), (80, Status::WrFlushed)]);
    assert!(pair.completions(1, Queue::Send).is_empty());
}

/// An unexpected message counts for the program when it completes. One that never does is not counted, or the list would
/// wait for a report for ever.
#[test]
fn an_unexpected_message_that_fails_is_not_counted() {
    for end in 0..6 {
        let window = Limits { request_bytes: 2048, ..Setup::default().window };
        let mut pair = Setup { window, ..setup() }.pair();
        let len = if end == 0 { 2000 } else { 9000 };
        pair.post_srq_recv(0, 10, 400_000, len);
        pair.fill(0, 5000, &headers(3, 9, 0, 0, 0));
        let op = if end == 1 { SendOp::SendInvalidate { rkey: 0xbad } } else { SendOp::Send };
        pair.post(1, op, 5000, 9000);
        if end > 1 {
            let counted = pair.run_until(|pair| pair.nodes[1].host.unexpected == 1);
            assert!(counted && received(&pair).is_empty(), "{end}");
        }
        match end {
            0 | 1 => pair.run_until_idle(),
            2 => pair.modify_from(1, QpState::Error, QpAttr::default()),
            3 => pair.modify_from(1, QpState::Reset, QpAttr::default()),
            _ => {
                let Node { qp, host, .. } = &mut pair.nodes[1];
                if end == 4 { qp.end_tags(host) } else { qp.flush_queues(host) }
            }
        }
        assert_eq!(pair.nodes[1].host.unexpected, 0, "{end}");
        let all = received(&pair);
        assert!(all.len() == 1 && all[0].0 == 10 && all[0].1 != OK, "{end}: {all:?}");
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
            profile.page_faults.responder = ResponderFaults::RnrNak { read_after: after };
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
        let seen = all.iter().filter(|c| c.1 == OK && c.2 == WcOpcode::TagRecv && !c.3.intersects(MATCHED | VALID));
        let seen = seen.count();
        assert_eq!(pair.nodes[1].host.unexpected, seen as i32, "seed {seed}: {all:?}");
        assert!(pair.completions(1, Queue::Send).is_empty());
        assert!(pair.canaries_live());
    }
    assert!(ends > 1000, "{ends}");
}
