//! MultiEdge's operations over several links in virtual time: each is performed once, with the right bytes, and after or
//! before others as its fences say; notifications come once and after their data; what fails is told.

use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{Endpoint, Event, Failure, Flags, Kind, Operation, Parameters, Scheduler, Setup};
use weir_transport::testing::{EdgeAccess as Access, Endpoints, Line, Rng, TestMemory};
use weir_wire::edge::{Ack, Action, Header, Piece, Seq};

/// Each operation has a place of its own in each third of both memories: one that is read, one that the peer's WRITEs
/// change, one that own READs change.
const PLACE: u64 = 100_000;
const THIRD: u64 = PLACE * 41;
const MEMORY: u64 = 3 * THIRD;

/// An operation, and how it is to end.
struct Issued {
    operation: Operation,
    expected: Result<(), Failure>,
    ended: Option<Result<(), Failure>>,
    notified: u32,
    /// Accesses to both memories before it ended.
    accesses: [usize; 2],
}

fn byte(seed: u64, side: usize, address: u64) -> u8 {
    (address.wrapping_mul(0x9e37_79b9) >> 16) as u8 ^ seed as u8 ^ (side as u8) << 7
}

fn operation(rng: &mut Rng, n: usize, bad: bool) -> Issued {
    let kind = if rng.chance(0.4) { Kind::Read } else { Kind::Write };
    let place = n as u64 * PLACE;
    let [source, written, read] = [0, 1, 2].map(|third| TestMemory::BASE + third * THIRD + place);
    let bytes = match rng.below(4) {
        0 => rng.below(10),
        1 => rng.below(5000),
        _ => rng.below(PLACE),
    } as u32;
    let mut flags = Flags::from_bits_truncate(rng.below(4) as u32 & rng.below(4) as u32);
    flags.set(Flags::NOTIFY, kind == Kind::Write && rng.chance(0.5));
    let (local, remote) = if kind == Kind::Write { (source, written) } else { (read, source) };
    let mut operation = Operation { kind, remote, local, bytes, flags };
    let mut expected = Ok(());
    // The end of the operation lies outside.
    let outside = TestMemory::BASE + MEMORY - u64::from(bytes / 2);
    if bad && bytes > 0 && rng.chance(0.5) {
        (operation.remote, expected) = (outside, Err(Failure::Remote));
    } else if bad && bytes > 0 {
        (operation.local, expected) = (outside, Err(Failure::Local));
    }
    Issued { operation, expected, ended: None, notified: 0, accesses: [0; 2] }
}

/// Runs random operations of both sides; each is bad with this probability.
fn run(seed: u64, bad: f64) {
    let mut rng = Rng(seed);
    let lines = Line::random(&mut rng, (8.0, 200), (3.0, 400), 150);
    let parameters = [Parameters::MULTIEDGE, Parameters::TUNED][rng.below(2) as usize];
    let parameters = Parameters { window: [16, 64, 512][rng.below(3) as usize], ..parameters };
    let payload = [256, 1400, 8900][rng.below(3) as usize];
    let scheduler = Scheduler::ALL[rng.below(4) as usize];
    let mut endpoints = Endpoints::new(&lines, parameters, scheduler, payload, MEMORY as usize, seed);
    let mut issued: [Vec<Issued>; 2] = [vec![], vec![]];
    for (side, issued) in issued.iter_mut().enumerate() {
        for at in 0..THIRD {
            endpoints.memories[side].bytes[at as usize] = byte(seed, side, at);
        }
        for n in 0..rng.below(40) as usize {
            let bad = rng.chance(bad);
            let issue = operation(&mut rng, n, bad);
            assert_eq!(endpoints.sides[side].issue(issue.operation), n as u32);
            issued.push(issue);
        }
    }
    let mut see = |side: usize, event, memories: &[TestMemory; 2]| match event {
        Event::Completed { operation, result } => {
            let memory = &memories[side];
            let issue = &mut issued[side][operation as usize];
            assert_eq!(issue.ended, None, "seed {seed}: operation {operation} of side {side} ended twice");
            issue.ended = Some(result);
            issue.accesses = [0, 1].map(|of| memories[of].accesses.len());
            if result.is_ok() && issue.operation.kind == Kind::Read {
                check_bytes(
                    seed,
                    1 - side,
                    issue.operation.remote,
                    memory,
                    issue.operation.local,
                    issue.operation.bytes,
                );
            }
        }
        Event::Notified { address, bytes } => {
            let memory = &memories[side];
            let is = |issue: &&mut Issued| {
                let Operation { flags, remote, bytes: all, .. } = issue.operation;
                flags.contains(Flags::NOTIFY) && (remote, all) == (address, bytes)
            };
            let issue = issued[1 - side].iter_mut().find(is).expect("a WRITE that wants it");
            issue.notified += 1;
            check_bytes(seed, 1 - side, issue.operation.local, memory, address, bytes);
        }
    };
    // Links fail, and come back.
    for _ in 0..rng.below(8) {
        let later = endpoints.now + Duration::from_micros(rng.below(50_000));
        endpoints.run_until(later, &mut see);
        let link = rng.below(lines.len() as u64) as usize;
        let (now, up) = (endpoints.now, rng.chance(0.5));
        match rng.below(3) {
            0 => endpoints.lines()[link].loss = if up { lines[link].loss } else { 1.0 },
            1 => endpoints.lines()[link].deaf = Some(rng.below(2) as usize).filter(|_| !up),
            _ => endpoints.sides[rng.below(2) as usize].set_link(now, link, up),
        }
    }
    for (link, line) in lines.iter().enumerate() {
        let now = endpoints.now;
        endpoints.lines()[link] = *line;
        endpoints.sides.iter_mut().for_each(|side| side.set_link(now, link, true));
    }
    assert!(endpoints.run(Instant(0) + Duration::from_secs(300), &mut see), "seed {seed}: open, {lines:?}");
    // What is on the way still does nothing more.
    let later = endpoints.now + Duration::from_secs(1);
    endpoints.run_until(later, &mut see);
    for (side, issued) in issued.iter().enumerate() {
        let memory = &endpoints.memories[1 - side];
        for (n, Issued { operation, expected, ended, notified, accesses }) in issued.iter().enumerate() {
            assert_eq!(*ended, Some(*expected), "seed {seed}: operation {n} of side {side}, {operation:?}");
            let notifies = operation.flags.contains(Flags::NOTIFY) && expected.is_ok();
            assert_eq!(*notified, u32::from(notifies), "seed {seed}: operation {n} of side {side}");
            for (of, by_peer, address) in [(side, false, operation.local), (1 - side, true, operation.remote)] {
                let range = address..address + u64::from(operation.bytes);
                let after = &endpoints.memories[of].accesses[accesses[of]..];
                // Bad operations have the end of a memory in common.
                let own = |access: &&Access| {
                    access.by_peer == by_peer
                        && range.contains(&access.range.start)
                        && access.range.end < TestMemory::BASE + THIRD * 3 - PLACE
                };
                assert_eq!(
                    after.iter().find(own),
                    None,
                    "seed {seed}: operation {n} of side {side} goes on after its end"
                );
            }
            if expected.is_ok() && operation.kind == Kind::Write {
                check_bytes(seed, side, operation.local, memory, operation.remote, operation.bytes);
            }
        }
        check_accesses(seed, issued, memory);
    }
}

/// The bytes at `to` are those that side `from` has at an address of its own.
fn check_bytes(seed: u64, from: usize, address: u64, memory: &TestMemory, to: u64, bytes: u32) {
    for k in 0..u64::from(bytes) {
        let got = memory.bytes[(to + k - TestMemory::BASE) as usize];
        assert_eq!(got, byte(seed, from, address + k - TestMemory::BASE), "seed {seed}: byte {k} of {bytes}");
    }
}

/// Each byte was read or written once, and fences held.
fn check_accesses(seed: u64, issued: &[Issued], memory: &TestMemory) {
    let mut places = vec![(usize::MAX, 0usize); issued.len()];
    let mut bytes = vec![0; issued.len()];
    for (at, access) in memory.accesses.iter().enumerate().filter(|(_, access)| access.by_peer) {
        let n = ((access.range.start - TestMemory::BASE) % THIRD / PLACE) as usize;
        // What lies outside is at the end, and no operation's own place.
        let is = |issue: &&Issued| {
            let Operation { remote, bytes, .. } = issue.operation;
            (remote..remote + u64::from(bytes)).contains(&access.range.start)
        };
        if issued.get(n).filter(is).is_some() {
            places[n] = (places[n].0.min(at), places[n].1.max(at));
            bytes[n] += access.range.end - access.range.start;
        }
    }
    for (n, issue) in issued.iter().enumerate().filter(|(_, issue)| issue.expected.is_ok()) {
        assert_eq!(bytes[n], u64::from(issue.operation.bytes), "seed {seed}: operation {n}");
        for m in 0..n {
            let ordered = issue.operation.flags.contains(Flags::BACKWARD_FENCE)
                || issued[m].operation.flags.contains(Flags::FORWARD_FENCE);
            let none = places[m].0 == usize::MAX || places[n].0 == usize::MAX;
            assert!(!ordered || none || places[m].1 < places[n].0, "seed {seed}: operation {n} overtook {m}");
        }
    }
}

/// A peer that reads without end does not keep this side's own operations from being sent.
#[test]
fn answers_and_operations_take_turns() {
    let lines = [Line::gigabits(1.0)];
    let mut endpoints = Endpoints::new(&lines, Parameters::TUNED, Scheduler::Auto, 1400, 1 << 20, 1);
    let operation = |kind, bytes, local: u64| Operation {
        kind,
        remote: TestMemory::BASE,
        local: TestMemory::BASE + local,
        bytes,
        flags: Flags::default(),
    };
    (0..200).for_each(|_| _ = endpoints.sides[0].issue(operation(Kind::Read, 500_000, 0)));
    endpoints.run_until(Instant(5_000_000), &mut |_, _, _| ());
    endpoints.sides[1].issue(operation(Kind::Write, 1000, 600_000));
    let mut ended = None;
    let later = endpoints.now + Duration::from_millis(20);
    endpoints.run_until(later, &mut |side, event, _| {
        if side == 1 {
            ended = Some(event);
        }
    });
    assert_eq!(ended, Some(Event::Completed { operation: 0, result: Ok(()) }));
}

#[test]
fn operations_are_performed_once_and_fences_hold() {
    (0..120).for_each(|seed| run(seed, 0.0));
}

#[test]
fn operations_that_fail_are_told_and_others_go_on() {
    (1000..1120).for_each(|seed| run(seed, 0.2));
}

/// A WRITE that is withdrawn after a part, or all of it, was sent fails, and the next one is performed.
#[test]
fn an_operation_that_is_withdrawn_fails_alone() {
    for bytes in [20_000, 2_000_000] {
        let lines = [Line::gigabits(1.0)];
        let parameters = Parameters { window: 64, ..Parameters::TUNED };
        let mut endpoints = Endpoints::new(&lines, parameters, Scheduler::Auto, 1400, 2 << 20, 1);
        let (kind, flags) = (Kind::Write, Flags::NOTIFY);
        let first = Operation { kind, remote: TestMemory::BASE, local: TestMemory::BASE, bytes, flags };
        let operations = [first, Operation { bytes: 4000, ..first }];
        let numbers = operations.map(|operation| endpoints.sides[0].issue(operation));
        let mut seen = vec![];
        endpoints.run_until(Instant(1), &mut |side, event, _| seen.push((side, event)));
        endpoints.sides[0].withdraw(numbers[0]);
        endpoints.sides[0].withdraw(numbers[0]);
        assert!(endpoints.run(Instant(5_000_000_000), &mut |side, event, _| seen.push((side, event))));
        let ended = |operation, result| (0, Event::Completed { operation, result });
        assert!(seen.contains(&ended(numbers[0], Err(Failure::Local))), "{bytes}: {seen:?}");
        assert!(seen.contains(&ended(numbers[1], Ok(()))), "{bytes}: {seen:?}");
        assert!(seen.contains(&(1, Event::Notified { address: TestMemory::BASE, bytes: 4000 })), "{bytes}: {seen:?}");
    }
}

/// Two WRITEs fail. The acknowledgement of the first, and what is told of the second, come first: neither is complete yet.
#[test]
fn failures_that_are_told_out_of_order_are_not_mixed_up() {
    type Carried = (Header, Option<Ack>, Option<(Piece, Vec<u8>)>);
    struct Side(Endpoint<Vec<u8>>, TestMemory);
    impl Side {
        fn new(first: [Seq; 2]) -> Side {
            let setup = Setup { parameters: Parameters::TUNED, scheduler: Scheduler::Auto, peer: 7, first };
            Side(Endpoint::new(setup, &[1], 1400), TestMemory { bytes: vec![0; 1000], accesses: vec![] })
        }
        fn leaves(&mut self, now: Instant) -> Vec<Carried> {
            let mut left = vec![];
            self.0.handle_timeout(now);
            self.0.transmit(now, &mut self.1, |(header, ack, carried)| {
                left.push((header, ack.cloned(), carried.map(|(piece, bytes)| (piece, bytes.clone()))));
            });
            left
        }
        fn takes(&mut self, now: Instant, (header, ack, carried): &Carried) {
            let (piece, bytes) = carried.clone().unzip();
            let bytes = |_| bytes.unwrap_or_default();
            self.0.handle(now, (header, ack.as_ref()), piece, bytes, &mut self.1).expect("a sound packet");
        }
    }
    let now = |micros: u64| Instant(micros * 1000);
    let mut sides = [Side::new([Seq(1), Seq(1)]), Side::new([Seq(1), Seq(1)])];
    let (kind, flags) = (Kind::Write, Flags::default());
    let operation = Operation { kind, remote: 0, local: TestMemory::BASE, bytes: 8, flags };
    (0..2).for_each(|_| _ = sides[0].0.issue(operation));
    let writes = sides[0].leaves(now(0));
    assert_eq!(writes.len(), 2);
    // The peer fails them one after the other, and acknowledges each.
    let mut answers = vec![];
    for (write, at) in writes.iter().zip([10, 2000]) {
        sides[1].takes(now(at), write);
        answers.push([sides[1].leaves(now(at)), sides[1].leaves(now(at + 1000))].concat());
    }
    let is_told = |of: u32| {
        move |(.., carried): &&Carried| {
            carried.as_ref().is_some_and(|(piece, _)| (piece.number, piece.action) == (of, Action::WriteFailed))
        }
    };
    let told = [0, 1].map(|of| answers[of as usize].iter().find(is_told(of)).expect("the failure is told").clone());
    let (header, ack, _) = answers[0].iter().find(|(_, ack, _)| ack.is_some()).expect("it is acknowledged");
    sides[0].takes(now(3000), &(Header { packet: None, ..*header }, ack.clone(), None));
    sides[0].takes(now(3000), &(told[1].0, None, told[1].2.clone()));
    assert_eq!(sides[0].0.poll_event(), None, "it is not known which of the two has failed");
    sides[0].takes(now(3000), &told[0]);
    for answer in answers[1].iter().filter(|(_, ack, _)| ack.is_some()) {
        sides[0].takes(now(3000), answer);
    }
    for operation in 0..2 {
        let event = Event::Completed { operation, result: Err(Failure::Remote) };
        assert_eq!(sides[0].0.poll_event(), Some(event));
    }
}
