//! Every operation, over a wire without losses.

use weir_transport::testing::{Entry, Node, Pair, Setup, Staging, read, remote, sge, write};
use weir_transport::*;
use weir_wire::{Aeth, Operation};

const MTUS: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

#[test]
fn every_operation_at_every_mtu_and_length() {
    for mtu in MTUS {
        let m = mtu.bytes();
        for len in [0, 1, 7, m - 1, m, m + 1, 3 * m, 3 * m + 5, 40 * m + 3] {
            let mut pair = Setup { mtu, ..Setup::default() }.pair();
            let imm = 0x1122_3344u32.to_be();
            let (remote_addr, rkey) = remote(200_000);
            pair.post_recv(10, 400_000, len + 9);
            pair.post_recv(11, 600_000, len + 9);
            pair.post_recv(12, 0, 0);
            pair.post(1, write(0), 1000, len);
            pair.post(2, SendOp::WriteImm { remote_addr, rkey, imm }, 2000, len);
            pair.post(3, SendOp::Send, 3000, len);
            pair.post(4, read(300_000), 500_000, len);
            // The receive without a buffer comes last.
            pair.post(5, SendOp::SendImm { imm }, 4000, 0);
            pair.run_until_idle();
            let good = |ids: &[u64]| ids.iter().map(|&id| (id, Status::Success)).collect::<Vec<_>>();
            assert_eq!(pair.outcomes(0, Queue::Send), good(&[1, 2, 3, 4, 5]), "{mtu:?} {len}");
            assert_eq!(pair.outcomes(1, Queue::Receive), good(&[10, 11, 12]));
            assert_eq!(pair.memory(1, 0, len), pair.memory(0, 1000, len));
            assert_eq!(pair.memory(1, 200_000, len), pair.memory(0, 2000, len));
            assert_eq!(pair.memory(1, 600_000, len), pair.memory(0, 3000, len));
            assert_eq!(pair.memory(0, 500_000, len), pair.memory(1, 300_000, len));
            let received = pair.completions(1, Queue::Receive);
            let reported = |c: &Completion| (c.opcode, c.byte_len as usize, c.flags, c.imm, c.src_qp, c.retired);
            assert_eq!(reported(&received[0]), (WcOpcode::RecvRdmaWithImm, len, WcFlags::WITH_IMM, imm, 0x11, 1));
            assert_eq!(reported(&received[1]), (WcOpcode::Recv, len, WcFlags::empty(), 0, 0x11, 2));
            assert_eq!(reported(&received[2]), (WcOpcode::Recv, 0, WcFlags::WITH_IMM, imm, 0x11, 3));
            let sent = pair.completions(0, Queue::Send);
            assert_eq!(sent.iter().map(|c| c.retired).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
            assert_eq!((sent[3].opcode, sent[3].byte_len as usize), (WcOpcode::RdmaRead, len));
            assert!(pair.canaries_live());
            assert_eq!(pair.nodes[0].qp.in_flight(), InFlight::default());
        }
    }
}

#[test]
fn atomics_return_the_previous_value() {
    let mut pair = Setup::default().pair();
    let (remote_addr, rkey) = remote(64);
    pair.fill(1, 64, &5u64.to_ne_bytes());
    pair.post(1, SendOp::FetchAdd { remote_addr, rkey, add: 3 }, 0, 8);
    pair.post(2, SendOp::CompareSwap { remote_addr, rkey, compare: 8, swap: 100 }, 8, 8);
    pair.post(3, SendOp::CompareSwap { remote_addr, rkey, compare: 8, swap: 200 }, 16, 8);
    pair.run_until_idle();
    let values: Vec<u64> = pair.memory(0, 0, 24).chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
    assert_eq!(values, [5, 8, 100]);
    assert_eq!(pair.memory(1, 64, 8), 100u64.to_ne_bytes());
    let sent = pair.completions(0, Queue::Send);
    assert_eq!(
        sent.iter().map(|c| c.opcode).collect::<Vec<_>>(),
        [WcOpcode::FetchAdd, WcOpcode::CompSwap, WcOpcode::CompSwap]
    );
    assert!(sent.iter().all(|c| c.status == Status::Success && c.byte_len == 8));
}

#[test]
fn gather_and_scatter_lists_of_32() {
    let caps = QpCaps { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 32, max_recv_sge: 32, max_inline_data: 0 };
    let mut pair = Setup { mtu: Mtu::M256, caps, ..Setup::default() }.pair();
    let from: Vec<Sge> = (0..32).map(|i| sge(i * 1000, 31 * i % 200)).collect();
    let to: Vec<Sge> = (0..32).map(|i| sge(100_000 + i * 1000, 7 + 31 * (31 - i) % 200)).collect();
    let length: usize = from.iter().map(|sge| sge.length as usize).sum();
    pair.nodes[1].qp.post_recv(&RecvWr { wr_id: 9, sges: &to }).unwrap();
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, data: Data::Gather(&from) };
    pair.nodes[0].qp.post_send(&wr).unwrap();
    pair.run_until_idle();
    assert_eq!(pair.outcomes(1, Queue::Receive), [(9, Status::Success)]);
    let collect = |pair: &Pair, node: usize, sges: &[Sge]| -> Vec<u8> {
        let memory = pair.nodes[node].host.memory.borrow();
        sges.iter().flat_map(|s| memory.bytes(s.addr, s.length as usize).to_vec()).collect()
    };
    assert_eq!(collect(&pair, 1, &to)[..length], collect(&pair, 0, &from)[..]);
    let too_many = [sge(0, 1); 33];
    let wr = SendWr { data: Data::Gather(&too_many), ..wr };
    assert_eq!(pair.nodes[0].qp.post_send(&wr), Err(PostError::TooManySges));
    assert_eq!(pair.nodes[1].qp.post_recv(&RecvWr { wr_id: 0, sges: &too_many }), Err(PostError::TooManySges));
}

#[test]
fn inline_data_is_copied_at_posting() {
    let mut pair = Setup { mtu: Mtu::M256, ..Setup::default() }.pair();
    let mut bytes: Vec<u8> = (0..=255).collect();
    fn wr(data: Data<'_>) -> SendWr<'_> {
        SendWr { wr_id: 1, op: write(0), flags: SendFlags::SIGNALED, data }
    }
    pair.nodes[0].qp.post_send(&wr(Data::Inline(&bytes))).unwrap();
    bytes.push(0);
    assert_eq!(pair.nodes[0].qp.post_send(&wr(Data::Inline(&bytes))), Err(PostError::Inline));
    let inline_read = SendWr { op: read(0), ..wr(Data::Inline(&bytes[..8])) };
    assert_eq!(pair.nodes[0].qp.post_send(&inline_read), Err(PostError::Inline));
    bytes.fill(0);
    pair.run_until_idle();
    assert_eq!(pair.memory(1, 0, 256), (0..=255).collect::<Vec<u8>>());
}

#[test]
fn only_signalled_work_requests_complete_and_all_are_counted() {
    let mut pair = Setup::default().pair();
    for wr_id in 1..=5 {
        let flags = if wr_id == 4 { SendFlags::SIGNALED } else { SendFlags::empty() };
        pair.post_as(0, wr_id, write(0), 0, 10, flags);
    }
    pair.run_until_idle();
    let sent = pair.completions(0, Queue::Send);
    assert_eq!(sent.iter().map(|c| (c.wr_id, c.retired)).collect::<Vec<_>>(), [(4, 4)]);

    let mut pair = Setup { sq_sig_all: true, ..Setup::default() }.pair();
    pair.post_as(0, 1, write(0), 0, 10, SendFlags::empty());
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
}

#[test]
fn the_queues_hold_as_many_as_they_were_created_for() {
    let caps = QpCaps { max_send_wr: 3, max_recv_wr: 5, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut pair = Setup { caps, ..Setup::default() }.pair();
    let wr = SendWr { wr_id: 1, op: write(0), flags: SendFlags::empty(), data: Data::Gather(&[]) };
    for _ in 0..3 {
        pair.nodes[0].qp.post_send(&wr).unwrap();
    }
    assert_eq!(pair.nodes[0].qp.post_send(&wr), Err(PostError::QueueFull));
    for _ in 0..5 {
        pair.nodes[0].qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
    }
    assert_eq!(pair.nodes[0].qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }), Err(PostError::QueueFull));
    pair.run_until_idle();
    pair.nodes[0].qp.post_send(&wr).unwrap();
}

#[test]
fn invalid_lengths_are_refused_at_posting() {
    let mut pair = Setup::default().pair();
    let half = Sge { addr: 0, length: 1 << 30, lkey: 0 };
    let (remote_addr, rkey) = remote(0);
    let mut post = |op, sges: &[Sge]| {
        let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), data: Data::Gather(sges) };
        pair.nodes[0].qp.post_send(&wr)
    };
    assert_eq!(post(SendOp::Send, &[half, half, sge(0, 1)]), Err(PostError::Length));
    assert_eq!(post(SendOp::FetchAdd { remote_addr, rkey, add: 1 }, &[sge(0, 7)]), Err(PostError::Length));
    assert_eq!(post(SendOp::FetchAdd { remote_addr, rkey, add: 1 }, &[]), Err(PostError::Length));
    assert_eq!(post(SendOp::Send, &[half, half]), Ok(()));
}

#[test]
fn the_solicited_bit_is_on_the_last_packet_and_reaches_the_receiver() {
    for (op, answers) in [
        (SendOp::Send, true),
        (SendOp::SendImm { imm: 1 }, true),
        (SendOp::WriteImm { remote_addr: remote(0).0, rkey: remote(0).1, imm: 1 }, true),
        (write(0), false),
    ] {
        let mut pair = Setup::default().pair();
        pair.post_recv(1, 0, 4000);
        pair.post_as(0, 1, op, 0, 3000, SendFlags::SOLICITED);
        pair.run_until_idle();
        let bits: Vec<bool> = pair.wire.log.iter().filter(|s| s.from == 0).map(|s| s.headers.bth.solicited).collect();
        assert_eq!(bits, [false, false, answers], "{op:?}");
        let raised = pair.nodes[1].host.journal.iter().any(|e| matches!(e, Entry::Complete { solicited: true, .. }));
        assert_eq!(raised, answers);
    }
}

#[test]
fn a_fenced_work_request_waits_for_reads_and_atomics() {
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 10_000, 5000);
    pair.post_as(0, 2, write(100_000), 10_000, 5000, SendFlags::FENCE);
    pair.transmit();
    assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::WaitFence);
    assert_eq!(pair.wire.count(|s| s.from == 0), 1);
    pair.run_until_idle();
    // The fenced WRITE sent the data that the READ fetched.
    assert_eq!(pair.memory(1, 100_000, 5000), pair.memory(1, 0, 5000));
}

#[test]
fn reads_beyond_max_rd_atomic_wait() {
    let mut pair = Setup { max_rd_atomic: 2, max_dest_rd_atomic: 2, ..Setup::default() }.pair();
    for wr_id in 0..7 {
        pair.post(wr_id, read(wr_id as usize * 3000), 500_000 + wr_id as usize * 3000, 3000);
    }
    pair.transmit();
    assert_eq!(pair.wire.count(|s| s.from == 0), 2);
    assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::WaitReads);
    assert_eq!(pair.nodes[0].qp.in_flight().read_bytes, 6000);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send).len(), 7);
    assert_eq!(pair.memory(0, 500_000, 21_000), pair.memory(1, 0, 21_000));
}

#[test]
fn a_long_read_is_requested_in_chunks() {
    let mut setup = Setup { mtu: Mtu::M256, ..Setup::default() };
    setup.tuning.read_chunk = 1000;
    setup.window.read_bytes = 2000;
    let mut pair = setup.pair();
    pair.post(1, read(7), 400_000, 5001);
    pair.transmit();
    assert_eq!(pair.nodes[0].qp.in_flight().read_bytes, 2 * 768);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success)]);
    assert_eq!(pair.memory(0, 400_000, 5001), pair.memory(1, 7, 5001));
    assert_eq!(pair.wire.count(|s| s.from == 0), 7);

    // A chunk larger than the limit of bytes in flight is sent alone.
    setup.window.read_bytes = 10;
    let mut pair = setup.pair();
    pair.post(1, read(7), 400_000, 5001);
    pair.run_until_idle();
    assert_eq!(pair.memory(0, 400_000, 5001), pair.memory(1, 7, 5001));
}

#[test]
fn both_directions_at_once_share_the_egress() {
    let window = Limits { request_bytes: 12_000, read_bytes: 256 << 10 };
    let mut pair = Setup { burst: 4, window, ..Setup::default() }.pair();
    for node in 0..2 {
        for wr_id in 0..8 {
            let at = 100_000 * node + wr_id as usize * 10_000;
            let op = if wr_id % 2 == 0 { read(at) } else { write(at) };
            pair.post_as(node, wr_id, op, 400_000 + at, 9999, SendFlags::SIGNALED);
        }
    }
    pair.run_until_idle();
    for node in 0..2 {
        assert_eq!(pair.outcomes(node, Queue::Send), (0..8).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    }
    // Requests of a node do not wait for all of its responses: both kinds alternate.
    let kinds: Vec<bool> =
        pair.wire.log.iter().filter(|s| s.from == 0).map(|s| s.headers.bth.opcode.is_response()).collect();
    let turns = kinds.windows(2).filter(|w| w[0] != w[1]).count();
    assert!(turns > 4, "{turns} turns");
}

#[test]
fn neither_responses_nor_requests_starve_the_other() {
    let mut pair = Setup::default().pair();
    pair.post(1, read(0), 0, 100_000);
    pair.run_until(|pair| pair.nodes[1].qp.has_to_send());
    pair.post_as(1, 2, write(0), 0, 100_000, SendFlags::SIGNALED);
    let Node { qp, host, .. } = &mut pair.nodes[1];
    let limits = Limits { request_bytes: 1 << 20, read_bytes: 1 << 20 };
    for round in 0..8 {
        let mut staging = Staging::new(host.memory.clone(), 4);
        assert_eq!(qp.poll_transmit(pair.now, limits, host, &mut staging), Progress::Full);
        for bytes in &staging.packets {
            let opcode = weir_wire::Packet::parse(bytes).unwrap().headers.bth.opcode;
            assert_eq!(opcode.is_response(), round % 2 == 0, "round {round}");
        }
    }
}

#[test]
fn psns_wrap() {
    for op in [write(0), read(0), SendOp::Send] {
        let mut pair = Setup { mtu: Mtu::M256, psn: [0xff_fffd, 0xff_fffe], ..Setup::default() }.pair();
        for wr_id in 0..5 {
            pair.post_recv(wr_id, 0, 3000);
            pair.post(wr_id, op, 5000, 3000);
        }
        pair.run_until_idle();
        assert_eq!(pair.outcomes(0, Queue::Send).len(), 5);
        assert!(pair.outcomes(0, Queue::Send).iter().all(|o| o.1 == Status::Success));
        assert_eq!(pair.nodes[0].qp.attr().sq_psn, Psn::new(0xff_fffd).plus(60));
        assert_eq!(pair.nodes[1].qp.attr().rq_psn, Psn::new(0xff_fffd).plus(60));
        assert_eq!(pair.memory(0, 5000, 3000), pair.memory(1, 0, 3000));
    }
}

#[test]
fn data_is_written_before_the_completion_and_last_bytes_last() {
    let mut pair = Setup { mtu: Mtu::M256, ..Setup::default() }.pair();
    pair.post_recv(1, 100_000, 2000);
    pair.post(1, write(0), 0, 2000);
    pair.post(2, SendOp::Send, 0, 2000);
    pair.run_until_idle();
    let (base, _) = remote(0);
    let journal = &pair.nodes[1].host.journal;
    let writes: Vec<(u64, usize)> = journal
        .iter()
        .filter_map(|e| if let Entry::Write { addr, len } = *e { Some((addr - base, len)) } else { None })
        .collect();
    let expected = |start: u64| (0..8u64).map(move |i| (start + i * 256, if i == 7 { 208 } else { 256 }));
    assert_eq!(writes, expected(0).chain(expected(100_000)).collect::<Vec<_>>());
    assert!(matches!(journal.last(), Some(Entry::Complete { .. })));
}

#[test]
fn msn_counts_messages_and_responses_carry_it() {
    let mut pair = Setup::default().pair();
    pair.post(1, write(0), 0, 3000);
    pair.post(2, read(0), 0, 3000);
    pair.post(3, write(0), 0, 10);
    pair.run_until_idle();
    let aeths: Vec<(Operation, u32)> = pair
        .wire
        .log
        .iter()
        .filter_map(|s| Some((s.headers.bth.opcode.operation()?, s.headers.get::<Aeth>()?.msn())))
        .collect();
    // The READ's responses also acknowledge the earlier WRITE.
    assert_eq!(
        aeths,
        [(Operation::ReadResponseFirst, 2), (Operation::ReadResponseLast, 2), (Operation::Acknowledge, 3)]
    );
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut pair = Setup::default().pair();
    let headers = weir_wire::Headers::new(weir_wire::Bth::new(
        weir_wire::Opcode::new(Service::Uc, Operation::SendOnly),
        0x12,
        Psn::new(0x10_0000),
    ));
    pair.post_recv(1, 0, 100);
    let Node { qp, host, .. } = &mut pair.nodes[1];
    qp.handle_packet(pair.now, &weir_wire::Packet { headers, payload: &[], icrc: 0, placement: None }, host);
    assert!(host.journal.is_empty() && !qp.has_to_send());
}
