//! The protocol's guarantees with ODP memory, over wires that lose, duplicate, reorder and corrupt packets.

use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;
use weir_transport::testing::{Entry, Faults, PagingSetup, Pair, Rng, SRQ, Setup, address, remote};
use weir_transport::*;

const REGION: usize = 128 << 10;
/// Bytes for the buffers of each work request; the buffers of two work requests do not overlap.
const SLOT: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    AtomicWrite,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    kind: Kind,
    len: usize,
}

fn works(most: usize) -> impl Strategy<Value = Vec<Work>> {
    use Kind::*;
    let kind = prop_oneof![Just(Send), Just(Write), Just(WriteImm), Just(Read), Just(FetchAdd), Just(AtomicWrite)];
    let work = (kind, prop_oneof![0usize..20, 200usize..600, 1000usize..SLOT])
        .prop_map(|(kind, len)| Work { kind, len: if matches!(kind, FetchAdd | AtomicWrite) { 8 } else { len } });
    prop::collection::vec(work, 1..most)
}

fn micros(most: u64) -> impl Strategy<Value = Duration> {
    (1..most).prop_map(Duration::from_micros)
}

fn paging() -> impl Strategy<Value = PagingSetup> {
    let page = prop_oneof![Just(256u64), Just(1000), Just(4096)];
    let held = prop_oneof![Just(0usize), 1usize..20, Just(1000)];
    (page, micros(2000), micros(100), held).prop_map(|(page, resolve, notice, held)| PagingSetup {
        page,
        resolve,
        notice,
        held,
    })
}

/// Spreads of times up to `most` µs.
fn delay(most: u64) -> impl Strategy<Value = Delay> {
    (micros(most), micros(most)).prop_map(|(a, b)| Delay { low: a.min(b), high: a.max(b) })
}

fn spread() -> impl Strategy<Value = Spread> {
    (1.0..4.0, 1.0..4.0).prop_map(|(a, b): (f64, f64)| Spread { low: a.min(b), high: a.max(b) })
}

fn ways() -> impl Strategy<Value = PageFaults> {
    let requester = prop_oneof![
        Just(RequesterFaults::Wait),
        delay(1000).prop_map(|retransmit| RequesterFaults::Discard { retransmit })
    ];
    let time = || prop_oneof![Just(Duration::ZERO), micros(1000)];
    let responder =
        prop_oneof![Just(ResponderFaults::Wait), time().prop_map(|read_after| ResponderFaults::RnrNak { read_after })];
    let resolve = prop_oneof![Just(Delay::exactly(Duration::ZERO)), delay(2000)];
    (requester, responder, resolve).prop_map(|(requester, responder, resolve)| PageFaults {
        requester,
        responder,
        resolve,
        ..Profile::ideal().page_faults
    })
}

/// Adapters with all combinations of flaws.
fn profiles() -> impl Strategy<Value = Profile> {
    let flood = (1u32..20, micros(1000)).prop_map(|(waiting, stale)| Flood { stale, waiting });
    let repeated_read = prop_oneof![Just(Delay::exactly(Duration::ZERO)), delay(200)];
    let flaws = (any::<bool>(), prop::option::of(flood), repeated_read);
    let waits = (spread(), any::<bool>(), spread());
    (ways(), flaws, waits, any::<u64>()).prop_map(|(page_faults, flaws, (rnr, discards, ack), seed)| {
        let (damming, flood, repeated_read) = flaws;
        Profile {
            seed,
            page_faults,
            damming,
            flood,
            repeated_read,
            rnr_wait: RnrWait { factor: rnr, powers_of_two: discards, discards },
            ack_timeout: AckTimeout { factor: ack, ..Profile::ideal().ack_timeout },
            ..Profile::ideal()
        }
    })
}

fn wire(most: f64) -> impl Strategy<Value = Faults> {
    let p = || prop_oneof![Just(0.0), 0.0..most];
    (p(), p(), p(), p()).prop_map(|(loss, duplication, reordering, corruption)| Faults {
        loss,
        duplication,
        reordering,
        corruption,
    })
}

fn setups(most: f64) -> impl Strategy<Value = Setup> {
    let sizes = (1u32..=5, 1u8..=4, 1usize..40, prop_oneof![Just(256usize), Just(1000), Just(131_072)], 1u32..20);
    let windows = (600usize..100_000, 1usize..100_000);
    let services = prop_oneof![Just((Service::Rc, false)), Just((Service::Rc, true)), Just((Service::Xrc, false))];
    (services, sizes, windows, wire(most), any::<u64>(), any::<[u32; 2]>(), paging(), profiles(), 1u8..16).prop_map(
        |(service, sizes, window, faults, seed, psn, paging, profile, timer)| {
            let (mtu, rd, burst, read_chunk, ack_every) = sizes;
            let ((service, srq), (request_bytes, read_bytes)) = (service, window);
            Setup {
                service,
                srq,
                mtu: Mtu::from_number(mtu).unwrap(),
                max_rd_atomic: rd,
                max_dest_rd_atomic: rd,
                burst,
                tuning: Tuning { read_chunk, ack_every, ..Tuning::default() },
                window: Limits { request_bytes, read_bytes },
                faults,
                seed,
                psn,
                paging: Some(paging),
                profile,
                min_rnr_timer: timer,
                region: REGION,
                latency: Duration::from_micros(1 + seed % 50),
                ..Setup::default()
            }
        },
    )
}

/// A send that is not posted yet.
type Post = (u64, SendOp, usize, usize);

/// Posts the receives and creates the sends. Returns the receives in order of use, and the sends.
fn prepare(pair: &mut Pair, setup: &Setup, works: &[Work]) -> (Vec<usize>, VecDeque<Post>) {
    let (mut receives, mut sends) = (Vec::new(), VecDeque::new());
    pair.nodes[1].host.srqs.borrow_mut().entry(SRQ).or_default();
    for (k, work) in works.iter().enumerate() {
        let at = k * SLOT;
        let (remote_addr, rkey) = remote(at);
        let op = match work.kind {
            Kind::Send => SendOp::Send,
            Kind::Write => SendOp::Write { remote_addr, rkey },
            Kind::WriteImm => SendOp::WriteImm { remote_addr, rkey, imm: k as u32 },
            Kind::Read => SendOp::Read { remote_addr, rkey },
            Kind::FetchAdd => SendOp::FetchAdd { remote_addr, rkey, add: 77 },
            Kind::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
        };
        if matches!(work.kind, Kind::Send | Kind::WriteImm) {
            let len = if work.kind == Kind::Send { SLOT } else { 0 };
            match (setup.service, setup.srq) {
                (Service::Xrc, _) => pair.post_srq_recv(SRQ, k as u64, at, len),
                (_, true) => pair.post_srq_recv(0, k as u64, at, len),
                _ => pair.post_recv(k as u64, at, len),
            }
            receives.push(k);
        }
        sends.push_back((k as u64, op, at, work.len));
    }
    (receives, sends)
}

/// Runs until idle. At random times pages are invalidated or prefetched, and sends are posted.
fn run(pair: &mut Pair, seed: u64, restless: f64, mut sends: VecDeque<Post>) {
    let mut rng = Rng(seed);
    // The probability of posting a further send at each step.
    let eager = [1.0, 0.3, 0.05][rng.below(3) as usize];
    // Invalidations stop after 3000 steps, because otherwise a page might always be removed before its use.
    for _ in 0..3000 {
        while rng.chance(eager)
            && let Some((wr_id, op, at, len)) = sends.pop_front()
        {
            pair.post(wr_id, op, at, len);
        }
        if rng.chance(restless) {
            let (at, len) = (rng.below(REGION as u64 - 1), 1 + rng.below(3 * SLOT as u64));
            let len = len.min(REGION as u64 - at);
            let time = Duration::from_micros(rng.below(300));
            let kind = rng.below(4);
            let mut paging = pair.paging(rng.below(2) as usize);
            match kind {
                0 => paging.prefetch(address(at as usize), len, rng.chance(0.5)),
                _ => paging.invalidate(address(at as usize), len, time),
            }
        }
        if !pair.step() && sends.is_empty() {
            break;
        }
    }
    sends.into_iter().for_each(|(wr_id, op, at, len)| pair.post(wr_id, op, at, len));
    pair.run_until_idle();
    for node in 0..2 {
        for side in [Side::Requester, Side::Responder] {
            assert_eq!(pair.held(node, side), 0, "a packet is still held");
        }
    }
}

/// Checks every guarantee for the completed work requests; returns the number of successful ones.
fn check(pair: &mut Pair, setup: &Setup, works: &[Work], seed: u64, restless: f64) -> usize {
    let before = [pair.memory(0, 0, REGION), pair.memory(1, 0, REGION)];
    let (receives, sends) = prepare(pair, setup, works);
    run(pair, seed, restless, sends);
    assert!(pair.canaries_live(), "a byte outside of the region changed");
    let sent = pair.completions(0, Queue::Send);
    assert_eq!(sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..works.len() as u64).collect::<Vec<_>>());
    let done = sent.iter().position(|c| c.status != Status::Success).unwrap_or(works.len());
    for (k, completion) in sent.iter().enumerate().skip(done) {
        let status = if k == done { Status::RetryExceeded } else { Status::WrFlushed };
        assert_eq!(completion.status, status, "the only possible errors");
    }
    let received = pair.completions(1, Queue::Receive);
    assert!(received.len() >= receives.iter().filter(|&&k| k < done).count());
    for (completion, &k) in received.iter().zip(&receives) {
        let len = works[k].len as u32;
        assert_eq!((completion.wr_id, completion.status, completion.byte_len), (k as u64, Status::Success, len));
    }
    for (k, work) in works.iter().enumerate().take(done) {
        let slot = k * SLOT..(k + 1) * SLOT;
        let mut expected = [before[0][slot.clone()].to_vec(), before[1][slot].to_vec()];
        let (from, to) = if matches!(work.kind, Kind::Read | Kind::FetchAdd) { (1, 0) } else { (0, 1) };
        let moved = expected[from][..work.len].to_vec();
        expected[to][..work.len].copy_from_slice(&moved);
        if work.kind == Kind::FetchAdd {
            let sum = u64::from_ne_bytes(moved.try_into().unwrap()).wrapping_add(77);
            expected[1][..8].copy_from_slice(&sum.to_ne_bytes());
        }
        for (node, expected) in expected.iter().enumerate() {
            assert!(pair.memory(node, k * SLOT, SLOT) == *expected, "bytes of node {node}, {k} {work:?}");
        }
    }
    check_journal(pair, works);
    done
}

/// No completion comes before its data; each byte is written once and in order; each atomic is executed once.
fn check_journal(pair: &Pair, works: &[Work]) {
    let (base, _) = remote(0);
    for node in 0..2 {
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
                    if node == 1 || matches!(works[k].kind, Kind::Read | Kind::FetchAdd) {
                        assert_eq!(filled[k], works[k].len, "{k} completed before its data");
                    }
                }
                _ => {}
            }
        }
        assert!(atomics.iter().all(|&count| count <= 1));
    }
}

proptest! {
    // PROPTEST_CASES raises the number of cases: `make soak` sets it.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(300)))]

    #[test]
    fn every_guarantee_holds_on_a_bad_wire(
        setup in setups(0.2),
        works in works(16),
        seed in any::<u64>(),
        restless in 0.0..0.3,
    ) {
        check(&mut setup.pair(), &setup, &works, seed, restless);
    }

    #[test]
    fn on_a_good_wire_everything_succeeds(
        setup in setups(0.01),
        works in works(16),
        seed in any::<u64>(),
        restless in 0.0..0.1,
    ) {
        let mut pair = setup.pair();
        let done = check(&mut pair, &setup, &works, seed, restless);
        prop_assert_eq!(done, works.len());
        prop_assert_eq!(pair.nodes[0].qp.in_flight(), InFlight::default());
        prop_assert_eq!(pair.nodes[1].qp.responder_state(), ResponderState::Ready);
    }

    #[test]
    fn if_both_sides_wait_no_request_is_sent_twice(setup in setups(0.001), works in works(16)) {
        // Faults are short compared with the ACK timeout, and every packet is held.
        let paging = PagingSetup { held: 10_000, resolve: Duration::from_micros(5), notice: Duration::from_micros(1), page: 4096 };
        let profile = Profile::ideal();
        let setup = Setup { paging: Some(paging), faults: Faults::default(), profile, ..setup };
        let mut pair = setup.pair();
        let done = check(&mut pair, &setup, &works, 0, 0.0);
        prop_assert_eq!(done, works.len());
        let mut psns: Vec<u32> = Vec::new();
        for sent in pair.wire.log.iter().filter(|sent| sent.from == 0) {
            psns.push(sent.headers.bth.psn.get());
        }
        let count = psns.len();
        psns.sort_unstable();
        psns.dedup();
        prop_assert_eq!(psns.len(), count, "a request was sent twice");
    }

    #[test]
    fn unreliable_services_lose_whole_messages_only(
        setup in setups(0.05),
        datagrams in any::<bool>(),
        lens in prop::collection::vec(0usize..SLOT, 1..16),
        seed in any::<u64>(),
        restless in 0.0..0.3,
    ) {
        let service = if datagrams { Service::Ud } else { Service::Uc };
        let mut pair = Setup { service, srq: false, ..setup.clone() }.pair();
        let room = setup.mtu.bytes();
        for (k, &len) in lens.iter().enumerate() {
            let len = if datagrams { len.min(room) } else { len };
            pair.post_recv(k as u64, k * SLOT, SLOT);
            pair.post(k as u64, SendOp::SendImm { imm: k as u32 }, k * SLOT, len);
        }
        run(&mut pair, seed, restless, VecDeque::new());
        prop_assert!(pair.canaries_live());
        prop_assert!(pair.outcomes(0, Queue::Send).iter().all(|(_, status)| *status == Status::Success));
        let header = if datagrams { 40 } else { 0 };
        let received = pair.completions(1, Queue::Receive);
        for (k, completion) in received.iter().enumerate() {
            let (k, from) = (k * SLOT, completion.imm as usize * SLOT);
            let len = completion.byte_len as usize - header;
            prop_assert_eq!(completion.status, Status::Success);
            prop_assert!(pair.memory(1, k + header, len) == pair.memory(0, from, len));
        }
        let faults = setup.faults;
        let nothing_lost = faults.loss + faults.corruption + faults.reordering + faults.duplication == 0.0
            && setup.paging.unwrap().held == 1000
            && setup.profile.page_faults.responder == ResponderFaults::Wait;
        if nothing_lost {
            prop_assert_eq!(received.len(), lens.len());
        }
    }
}
