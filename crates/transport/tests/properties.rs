//! The protocol's guarantees, over wires that lose, duplicate, reorder and corrupt packets.

use proptest::prelude::*;
use std::time::Duration;
use weir_transport::testing::{
    Entry, Faults, Pair, Rng, Setup, fuzz_frames, fuzz_requester, fuzz_responder, fuzz_tags, remote,
};
use weir_transport::*;
use weir_wire::{MAX_HEADERS, frame};

const REGION: usize = 256 << 10;
/// Bytes for the buffers of each work request; the buffers of two work requests do not overlap.
const SLOT: usize = 8192;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    kind: Kind,
    len: usize,
    signaled: bool,
    fence: bool,
}

fn work() -> impl Strategy<Value = Work> {
    use Kind::*;
    let kind = prop_oneof![
        Just(Send),
        Just(SendImm),
        Just(Write),
        Just(WriteImm),
        Just(Read),
        Just(FetchAdd),
        Just(CompareSwap)
    ];
    let len = prop_oneof![0usize..20, 200usize..600, 1000usize..SLOT];
    (kind, len, any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(kind, len, signaled, fence)| {
        let len = if matches!(kind, FetchAdd | CompareSwap) { 8 } else { len };
        Work { kind, len, signaled, fence }
    })
}

fn faults(most: f64) -> impl Strategy<Value = Faults> {
    let p = || prop_oneof![Just(0.0), 0.0..most];
    (p(), p(), p(), p()).prop_map(|(loss, duplication, reordering, corruption)| Faults {
        loss,
        duplication,
        reordering,
        corruption,
    })
}

fn setups() -> impl Strategy<Value = Setup> {
    let sizes =
        (1u32..=5, 1u8..=8, 0u8..=8, 1usize..40, prop_oneof![Just(256usize), Just(1000), Just(4096), Just(131_072)]);
    let windows = (600usize..100_000, 1usize..100_000);
    (sizes, windows, faults(0.2), any::<u64>(), any::<[u32; 2]>(), 1u32..20, any::<bool>()).prop_map(
        |((mtu, rd, rd_more, burst, read_chunk), (request_bytes, read_bytes), faults, seed, psn, ack_every, frames)| {
            Setup {
                mtu: Mtu::from_number(mtu).unwrap(),
                max_rd_atomic: rd,
                max_dest_rd_atomic: rd + rd_more,
                burst,
                tuning: Tuning { read_chunk, ack_every, ..Tuning::default() },
                window: Limits { request_bytes, read_bytes },
                faults,
                seed,
                psn,
                frames,
                region: REGION,
                latency: Duration::from_micros(1 + seed % 100),
                ..Setup::default()
            }
        },
    )
}

/// Posts the work requests and their receives. Returns the receives in order of use, as indices of work requests.
fn post_all(pair: &mut Pair, works: &[Work]) -> Vec<usize> {
    let mut receives = Vec::new();
    for (k, work) in works.iter().enumerate() {
        let at = k * SLOT;
        let (remote_addr, rkey) = remote(at);
        let imm = k as u32;
        let op = match work.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm => SendOp::SendImm { imm },
            Kind::Write => SendOp::Write { remote_addr, rkey },
            Kind::WriteImm => SendOp::WriteImm { remote_addr, rkey, imm },
            Kind::Read => SendOp::Read { remote_addr, rkey },
            Kind::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 77 },
            Kind::CompareSwap => SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
        };
        if matches!(work.kind, Kind::Send | Kind::SendImm | Kind::WriteImm) {
            pair.post_recv(k as u64, at, if matches!(work.kind, Kind::WriteImm) { 0 } else { SLOT });
            receives.push(k);
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, work.signaled);
        flags.set(SendFlags::FENCE, work.fence);
        pair.post_as(0, k as u64, op, at, work.len, flags);
    }
    receives
}

/// The expected memory of both ends in the slot of a work request when it is complete.
fn expected_slot(work: &Work, local: &[u8], remote: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut local_after, mut remote_after) = (local.to_vec(), remote.to_vec());
    match work.kind {
        Kind::Send | Kind::SendImm | Kind::Write | Kind::WriteImm => {
            remote_after[..work.len].copy_from_slice(&local[..work.len]);
        }
        Kind::Read => local_after[..work.len].copy_from_slice(&remote[..work.len]),
        Kind::FetchAdd => {
            let before = u64::from_ne_bytes(remote[..8].try_into().unwrap());
            remote_after[..8].copy_from_slice(&before.wrapping_add(77).to_ne_bytes());
            local_after[..8].copy_from_slice(&remote[..8]);
        }
        Kind::CompareSwap => {
            if remote[..8] == [0; 8] {
                remote_after[..8].copy_from_slice(&1u64.to_ne_bytes());
            }
            local_after[..8].copy_from_slice(&remote[..8]);
        }
    }
    (local_after, remote_after)
}

fn slots(pair: &Pair, node: usize) -> Vec<Vec<u8>> {
    pair.memory(node, 0, REGION).chunks(SLOT).map(<[u8]>::to_vec).collect()
}

/// Checks every guarantee for the completed work requests.
fn check(pair: &mut Pair, works: &[Work]) {
    let before = [slots(pair, 0), slots(pair, 1)];
    let receives = post_all(pair, works);
    pair.run_until_idle();
    assert!(pair.canaries_live(), "a byte outside of the region changed");
    let sent = pair.completions(0, Queue::Send);
    let received = pair.completions(1, Queue::Receive);
    let failed = sent.iter().position(|c| c.status != Status::Success);
    let done = failed.map_or(works.len(), |i| sent[i].wr_id as usize);
    // Each completes once and in order: the signalled ones up to the failure, then all.
    let order: Vec<u64> = (0..works.len()).filter(|&k| k >= done || works[k].signaled).map(|k| k as u64).collect();
    assert_eq!(sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), order);
    assert!(sent.iter().all(|c| c.retired as u64 == c.wr_id + 1));
    if let Some(i) = failed {
        assert_eq!(sent[i].status, Status::RetryExceeded, "the only error that the wire can cause");
        assert!(sent[i + 1..].iter().all(|c| c.status == Status::WrFlushed));
        assert!(pair.wire.faults.loss + pair.wire.faults.corruption > 0.0, "without loss nothing fails");
    }
    for (completion, &k) in received.iter().zip(&receives) {
        let len = works[k].len as u32;
        assert_eq!((completion.wr_id, completion.status, completion.byte_len), (k as u64, Status::Success, len));
        let imm =
            if matches!(works[k].kind, Kind::Send) { (0, WcFlags::empty()) } else { (k as u32, WcFlags::WITH_IMM) };
        assert_eq!((completion.imm, completion.flags), imm);
    }
    // A work request that is complete at the requester is complete at the responder.
    assert!(received.len() >= receives.iter().filter(|&&k| k < done).count());
    for (k, work) in works.iter().enumerate().take(done) {
        let (local, remote) = expected_slot(work, &before[0][k], &before[1][k]);
        assert!(pair.memory(0, k * SLOT, SLOT) == local, "local bytes of {k} {work:?}");
        assert!(pair.memory(1, k * SLOT, SLOT) == remote, "remote bytes of {k} {work:?}");
    }
    check_journal(pair, works);
}

/// No completion comes before its data; each message is written in order; each atomic is executed once.
fn check_journal(pair: &Pair, works: &[Work]) {
    let (base, _) = remote(0);
    for node in 0..2 {
        // The offset of the next byte to be written in each slot.
        let mut filled = vec![0; works.len()];
        let mut atomics = vec![0; works.len()];
        for entry in &pair.nodes[node].host.journal {
            match *entry {
                Entry::Write { addr, len } => {
                    let at = (addr - base) as usize;
                    assert_eq!(at % SLOT, filled[at / SLOT], "written in order, once");
                    filled[at / SLOT] += len;
                }
                Entry::Atomic { addr } => atomics[(addr - base) as usize / SLOT] += 1,
                Entry::Complete { completion, .. } if completion.status == Status::Success => {
                    let k = completion.wr_id as usize;
                    let comes_here =
                        node == 1 || matches!(works[k].kind, Kind::Read | Kind::FetchAdd | Kind::CompareSwap);
                    if comes_here {
                        assert_eq!(filled[k], works[k].len, "{k} completed before its data");
                    }
                }
                _ => {}
            }
        }
        assert!(atomics.iter().all(|&count| count <= 1));
    }
}

#[test]
fn the_fuzzed_responder_survives() {
    weir_trials::run("responder", fuzz_responder);
}

#[test]
fn the_fuzzed_requester_survives() {
    weir_trials::run("requester", fuzz_requester);
}

#[test]
fn a_qp_survives_the_frames_of_a_hostile_peer() {
    weir_trials::run("frames", fuzz_frames);
}

#[test]
fn a_queue_with_tags_survives_a_hostile_peer() {
    weir_trials::run("tags", fuzz_tags);
}

proptest! {
    // PROPTEST_CASES raises the number of cases: `make soak` sets it.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(400)))]

    #[test]
    fn every_guarantee_holds_on_a_bad_wire(setup in setups(), works in prop::collection::vec(work(), 1..32)) {
        check(&mut setup.pair(), &works);
    }

    #[test]
    fn with_few_faults_everything_succeeds(
        setup in setups(),
        few in faults(0.01),
        works in prop::collection::vec(work(), 1..32),
    ) {
        let setup = Setup { faults: few, ..setup };
        let mut pair = setup.pair();
        check(&mut pair, &works);
        prop_assert!(pair.completions(0, Queue::Send).iter().all(|c| c.status == Status::Success));
        prop_assert_eq!(pair.nodes[0].qp.in_flight(), InFlight::default());
    }

    #[test]
    fn the_sender_waits_for_late_receives(
        setup in setups(),
        few in faults(0.02),
        lens in prop::collection::vec(0usize..SLOT, 1..16),
        batch in 1usize..4,
    ) {
        let mut pair = Setup { faults: few, min_rnr_timer: 1, ..setup }.pair();
        let before = pair.memory(0, 0, REGION);
        for (k, &len) in lens.iter().enumerate() {
            pair.post(k as u64, SendOp::Send, k * SLOT, len);
        }
        let mut posted = 0;
        while posted < lens.len() {
            // The sender meets an empty receive queue each time.
            for _ in 0..200 {
                pair.step();
            }
            for k in posted..(posted + batch).min(lens.len()) {
                pair.post_recv(k as u64, k * SLOT, SLOT);
            }
            posted += batch;
        }
        pair.run_until_idle();
        let all: Vec<_> = (0..lens.len() as u64).map(|k| (k, Status::Success)).collect();
        prop_assert_eq!(pair.outcomes(0, Queue::Send), all.clone());
        prop_assert_eq!(pair.outcomes(1, Queue::Receive), all);
        for (k, &len) in lens.iter().enumerate() {
            prop_assert!(pair.memory(1, k * SLOT, len) == before[k * SLOT..][..len]);
        }
    }

    #[test]
    fn transfers_in_both_directions_succeed(
        setup in setups(),
        few in faults(0.01),
        kinds in prop::collection::vec((0usize..2, any::<bool>(), 0usize..SLOT), 1..32),
    ) {
        let mut pair = Setup { faults: few, ..setup }.pair();
        let before = [pair.memory(0, 0, REGION), pair.memory(1, 0, REGION)];
        let mut expected = before.clone();
        let mut ids = [Vec::new(), Vec::new()];
        for (k, &(node, write, len)) in kinds.iter().enumerate() {
            let at = k * SLOT;
            let (remote_addr, rkey) = remote(at);
            let op = if write { SendOp::Write { remote_addr, rkey } } else { SendOp::Read { remote_addr, rkey } };
            let (from, to) = if write { (node, 1 - node) } else { (1 - node, node) };
            expected[to][at..at + len].copy_from_slice(&before[from][at..at + len]);
            pair.post_as(node, k as u64, op, at, len, SendFlags::SIGNALED);
            ids[node].push((k as u64, Status::Success));
        }
        pair.run_until_idle();
        for node in 0..2 {
            prop_assert_eq!(pair.outcomes(node, Queue::Send), ids[node].clone());
            prop_assert!(pair.memory(node, 0, REGION) == expected[node]);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run(setup in setups(), works in prop::collection::vec(work(), 1..8)) {
        let run = || {
            let mut pair = setup.pair();
            post_all(&mut pair, &works);
            pair.run_until_idle();
            (pair.now, pair.wire.log.len(), pair.nodes[0].host.journal.clone())
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn undetected_garbage_does_no_harm_beyond_the_region(seed in any::<u64>(), target in 0usize..2) {
        let mut pair = Setup { seed, frames: seed % 2 == 0, ..Setup::default() }.pair();
        let mut rng = Rng(seed);
        pair.wire.rule = Some(Box::new(move |from, packet| {
            if from == target || !rng.chance(0.2) {
                return weir_transport::testing::Fate::Pass;
            }
            // The headers are damaged, and the ICRC is recomputed to match.
            let mut bytes = vec![0; MAX_HEADERS];
            let len = match &packet.placement {
                Some(placement) => frame::emit(&packet.headers, placement, &mut bytes),
                None => packet.headers.emit(&mut bytes),
            };
            bytes.truncate(len);
            let at = rng.below(bytes.len() as u64) as usize;
            if (4..8).contains(&at) {
                return weir_transport::testing::Fate::Drop;
            }
            bytes[at] ^= 1 << rng.below(8);
            bytes.extend_from_slice(packet.payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            weir_transport::testing::Fate::Forge(bytes)
        }));
        let works: Vec<Work> = (0..20)
            .map(|k| Work {
                kind: [Kind::Write, Kind::Read, Kind::Send, Kind::FetchAdd][k % 4],
                len: if k % 4 == 3 { 8 } else { 3000 },
                signaled: true,
                fence: false,
            })
            .collect();
        post_all(&mut pair, &works);
        pair.run_until_idle();
        prop_assert!(pair.canaries_live());
        let ids: Vec<u64> = pair.completions(0, Queue::Send).iter().map(|c| c.wr_id).collect();
        prop_assert!(ids.iter().enumerate().all(|(i, &id)| id == i as u64), "{:?}", ids);
    }
}
