//! Messages over several links, where packets within a WRITE or a READ's response overtake each other: they are placed as
//! they come, and all guarantees hold.

use std::time::Duration;
use weir_transport::testing::{Entry, Faults, Pair, Rng, Setup, remote};
use weir_transport::*;
use weir_wire::{Bth, Destination, Headers, Opcode, Operation, Packet, Placement, Reth};

/// Bytes for the buffer of each work request. Every other WRITE goes where the message before has gone.
const SLOT: usize = 16 << 10;
const WORKS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    kind: Kind,
    len: usize,
    /// Its slot at the peer.
    place: usize,
}

fn works(rng: &mut Rng) -> Vec<Work> {
    let mut works: Vec<Work> = vec![];
    for k in 0..WORKS {
        let kind = [Kind::Send, Kind::Write, Kind::WriteImm, Kind::Read][rng.below(4) as usize];
        let len = [rng.below(20), rng.below(SLOT as u64), SLOT as u64][rng.below(3) as usize] as usize;
        // A READ that goes again may bring what a later WRITE has written.
        let shares = k % 2 == 1 && kind == Kind::Write && works[k - 1].kind != Kind::Read;
        works.push(Work { kind, len, place: if shares { k - 1 } else { k } });
    }
    works
}

fn setup(rng: &mut Rng, loss: f64) -> Setup {
    Setup {
        mtu: Mtu::from_number(1 + rng.below(3) as u32).unwrap(),
        burst: 1 + rng.below(40) as usize,
        tuning: Tuning {
            read_chunk: [1000, 4096, 131_072][rng.below(3) as usize],
            ack_every: 1 + rng.below(20) as u32,
            ..Tuning::default()
        },
        faults: Faults { loss, duplication: loss, ..Faults::default() },
        seed: rng.below(u64::MAX),
        psn: [0xff_fff0, rng.below(1 << 24) as u32],
        frames: true,
        most_held: 4096,
        region: WORKS * SLOT,
        latency: Duration::from_micros(1 + rng.below(50)),
        ..Setup::default()
    }
}

/// Runs random work requests. Returns the pair, and how many packets were placed before one with a lower address.
fn run(seed: u64, loss: f64) -> (Pair, usize) {
    let mut rng = Rng(seed);
    let works = works(&mut rng);
    let mut pair = setup(&mut rng, loss).pair();
    pair.wire.over_links = true;
    let mut expected = [0, 1].map(|node| pair.memory(node, 0, WORKS * SLOT));
    for (k, work) in works.iter().enumerate() {
        let ((remote_addr, rkey), imm) = (remote(work.place * SLOT), k as u32);
        let op = match work.kind {
            Kind::Send => SendOp::Send,
            Kind::Write => SendOp::Write { remote_addr, rkey },
            Kind::WriteImm => SendOp::WriteImm { remote_addr, rkey, imm },
            Kind::Read => SendOp::Read { remote_addr, rkey },
        };
        if matches!(work.kind, Kind::Send | Kind::WriteImm) {
            pair.post_recv(k as u64, k * SLOT, if work.kind == Kind::Send { SLOT } else { 0 });
        }
        pair.post_as(0, k as u64, op, k * SLOT, work.len, SendFlags::SIGNALED);
    }
    pair.run_until_idle();
    let all_done: Vec<_> = (0..WORKS as u64).map(|k| (k, Status::Success)).collect();
    assert_eq!(pair.outcomes(0, Queue::Send), all_done, "seed {seed}");
    for (k, work) in works.iter().enumerate() {
        let (here, there) = (k * SLOT..k * SLOT + work.len, work.place * SLOT..work.place * SLOT + work.len);
        let ((from, from_range), (to, to_range)) =
            if work.kind == Kind::Read { ((1, there), (0, here)) } else { ((0, here), (1, there)) };
        let bytes = expected[from][from_range].to_vec();
        expected[to][to_range].copy_from_slice(&bytes);
    }
    for (node, expected) in expected.iter().enumerate() {
        assert!(pair.memory(node, 0, WORKS * SLOT) == *expected, "seed {seed}: bytes of node {node}");
    }
    assert!(pair.canaries_live(), "seed {seed}");
    let early = (0..2).map(|node| check_journal(&pair, node, &works, seed, loss == 0.0)).sum();
    (pair, early)
}

/// The last packet of each message is written after its others, messages follow each other, and no completion comes before
/// its data. If nothing is lost, each byte of a message is written once.
fn check_journal(pair: &Pair, node: usize, works: &[Work], seed: u64, once: bool) -> usize {
    let (base, _) = remote(0);
    let comes_here = |work: &Work| (work.kind == Kind::Read) == (node == 0) && work.len > 0;
    let mut messages = (0..works.len()).filter(|k| comes_here(&works[*k])).peekable();
    let (mut early, mut written, mut highest) = (0, 0, 0);
    for entry in &pair.nodes[node].host.journal {
        match *entry {
            Entry::Write { addr, len } if once => {
                let k = *messages.peek().expect("a message");
                let place = if node == 0 { k } else { works[k].place };
                let at = (addr - base) as usize - place * SLOT;
                assert!(at + len <= works[k].len, "seed {seed}: {k} of node {node} is written at its turn");
                early += usize::from(at < highest);
                (written, highest) = (written + len, highest.max(at));
                if at + len == works[k].len {
                    assert_eq!(written, works[k].len, "seed {seed}: the end of {k} is written last");
                    messages.next();
                    (written, highest) = (0, 0);
                }
            }
            Entry::Complete { completion, .. }
                if once && (node == 1 || works[completion.wr_id as usize].kind == Kind::Read) =>
            {
                let next = messages.peek().copied().unwrap_or(works.len());
                assert!(
                    next > completion.wr_id as usize,
                    "seed {seed}: {} is complete before its data",
                    completion.wr_id
                );
            }
            _ => {}
        }
    }
    if once {
        assert_eq!(messages.next(), None, "seed {seed}: all messages have come");
    }
    early
}

#[test]
fn packets_are_placed_as_they_come_and_nothing_goes_again() {
    let mut early = 0;
    for seed in 0..300 {
        let (pair, its) = run(seed, 0.0);
        early += its;
        assert_eq!(pair.wire.naks(), [], "seed {seed}");
        let retransmissions = pair.nodes[0].qp.retransmissions();
        assert_eq!(retransmissions, Retransmissions::default(), "seed {seed}");
    }
    assert!(early > 5000, "{early} packets were placed before others of their message");
}

#[test]
fn all_guarantees_hold_if_packets_are_lost() {
    (1000..1200).for_each(|seed| _ = run(seed, 0.03));
}

/// A peer that lies: only frames within the message that has begun are placed before their turn.
#[test]
fn a_frame_that_does_not_belong_is_not_placed() {
    const MTU: usize = 256;
    const LEN: usize = 4 * MTU + 5;
    let (address, rkey) = remote(0);
    let psn = Psn::new(0xff_fffe);
    let setup = Setup { mtu: Mtu::M256, psn: [psn.get(), 1], frames: true, ..Setup::default() };
    let payload = [7; MTU];
    let frame = |operation: Operation, n: u32, change: &dyn Fn(&mut Packet<'_>)| {
        let mut headers = Headers::new(Bth::new(Opcode::new(Service::Rc, operation), 0x12, psn.plus(n)));
        headers.put(Reth { va: address.into(), rkey: rkey.into(), dma_len: (LEN as u32).into() });
        let offset = n * MTU as u32;
        let destination = Destination::Memory { address: address + u64::from(offset), rkey };
        let placement = Some(Placement { destination, offset, length: LEN as u32 });
        let mut packet = Packet { headers, payload: &payload, icrc: 0, placement };
        change(&mut packet);
        let (headers, placement, payload) = (packet.headers, packet.placement, packet.payload.len());
        (headers, placement, payload)
    };
    let placed = |begun: bool, (headers, placement, len): (Headers, Option<Placement>, usize)| {
        let mut pair = setup.pair();
        let (now, node) = (pair.now, &mut pair.nodes[1]);
        if begun {
            let (headers, placement, _) = frame(Operation::WriteFirst, 0, &|_| ());
            let packet = Packet { headers, payload: &payload, icrc: 0, placement };
            assert!(!node.qp.place_early(now, &packet, &mut node.host), "it is not within a message");
            assert_eq!(node.qp.handle_packet(now, &packet, &mut node.host), Handled::Done);
        }
        let before = node.host.journal.len();
        let packet = Packet { headers, payload: &payload[..len], icrc: 0, placement };
        let placed = node.qp.place_early(now, &packet, &mut node.host);
        assert_eq!(node.host.journal.len() > before, placed);
        placed
    };
    let middle = |n: u32, change: &dyn Fn(&mut Packet<'_>)| placed(true, frame(Operation::WriteMiddle, n, change));
    let place = |change: &'static dyn Fn(&mut Placement)| {
        middle(2, &|packet: &mut Packet<'_>| change(packet.placement.as_mut().expect("a placement")))
    };
    assert!(middle(2, &|_| ()) && middle(3, &|_| ()), "the middle packets but the expected one");
    assert!(!placed(false, frame(Operation::WriteMiddle, 2, &|_| ())), "no message has begun");
    assert!(!middle(1, &|_| ()), "the expected packet");
    assert!(!middle(0, &|_| ()), "a duplicate");
    assert!(!middle(4, &|_| ()) && !middle(5, &|_| ()) && !middle(5000, &|_| ()), "the last packet, and beyond it");
    assert!(!middle(2, &|packet| packet.placement = None), "a RoCE packet");
    assert!(!middle(2, &|packet| packet.payload = &packet.payload[1..]), "a short packet");
    assert!(
        !placed(true, frame(Operation::SendMiddle, 2, &|_| ()))
            && !placed(true, frame(Operation::WriteLast, 2, &|_| ()))
    );
    assert!(!place(&|placement| placement.offset += 256) && !place(&|placement| placement.length += 1));
    for destination in [(address, rkey), (address + 512, rkey + 1), (address + 513, rkey)] {
        let (address, rkey) = destination;
        let change = |packet: &mut Packet<'_>| {
            packet.placement.as_mut().expect("a placement").destination = Destination::Memory { address, rkey };
        };
        assert!(!middle(2, &change), "{destination:?}");
    }
    assert!(!place(&|placement| placement.destination = Destination::Message { number: 0 }));
}
