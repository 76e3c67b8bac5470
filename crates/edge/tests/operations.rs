//! Two nodes of one process on loopback: operations of every size, flags, ranges, and what fails.

mod common;

use common::{Area, Pair, Rng, SOON, connect, noise, options, seed};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_edge::{Access, Allow, Error, Event, Kind, Mode, Node, OperationFlags, Options};

const NONE: OperationFlags = OperationFlags::empty();
const NOTIFY: OperationFlags = OperationFlags::NOTIFY;

/// Each mode, and each way of copying.
fn kinds() -> Vec<Options> {
    let mut kinds = vec![];
    for mode in [Mode::Events, Mode::Polling] {
        for [copy_sends, copy_receives] in [[false, false], [true, true]] {
            kinds.push(Options { copy_sends, copy_receives, measure: copy_sends, ..options(mode) });
        }
    }
    kinds
}

#[test]
fn writes_and_reads_of_every_size_bring_the_right_bytes() {
    const MOST: usize = 8 << 20;
    for options in kinds() {
        let pair = Pair::whole(&options);
        let (area, mut back) = (Area::new(MOST), vec![0; MOST]);
        for (n, size) in [0, 1, 8, 4096, 100_001, MOST].into_iter().enumerate() {
            let bytes = noise(n as u64 + 7, size);
            pair.sides[1].write(area.address(), &bytes, NOTIFY).unwrap();
            assert_eq!(area.get()[..size], bytes, "{options:?}");
            let notified = Event::Notified { address: area.address(), bytes: size as u32 };
            assert_eq!(pair.sides[0].wait_event(Some(SOON)), Ok(notified));
            back[..size].fill(0);
            pair.sides[1].read(area.address(), &mut back[..size], NONE).unwrap();
            assert_eq!(back[..size], bytes, "{options:?}");
        }
        let counters = pair.requester.counters().unwrap();
        assert!(counters.bytes_sent >= MOST as u64 && counters.bytes_received >= MOST as u64, "{counters:?}");
        assert_eq!((counters.completed, counters.failed), (12, 0));
        let times = pair.requester.times().unwrap();
        assert_eq!(times.send_copy > Duration::ZERO, options.measure, "{times:?}");
    }
}

/// Random operations of both sides at once, with random flags.
#[test]
fn random_operations_of_both_sides_bring_the_right_bytes() {
    const PLACE: usize = 100_000;
    const COUNT: usize = 60;
    let seed = seed();
    for (n, options) in kinds().into_iter().enumerate() {
        let mut rng = Rng(seed + n as u64 * 1000);
        let pair = Pair::whole(&options);
        // A side's WRITEs go from its first area to the peer's second, its READs from the peer's first to its third.
        let areas: Vec<[Area; 3]> = (0..2).map(|_| [0; 3].map(|_: i32| Area::new(PLACE * COUNT))).collect();
        for (side, areas) in areas.iter().enumerate() {
            areas[0].set(&noise(seed + side as u64, PLACE * COUNT));
        }
        let mut issued = vec![];
        for k in 0..COUNT {
            for (side, connection) in pair.sides.iter().enumerate() {
                let bytes = [rng.below(20), rng.below(5000), rng.below(PLACE as u64)][rng.below(3) as usize] as usize;
                let kind = if rng.below(2) == 0 { Kind::Read } else { Kind::Write };
                let allowed = if kind == Kind::Read { 3 } else { 15 };
                let flags = OperationFlags::from_bits_truncate(rng.below(16) as u32 & allowed);
                let at = k * PLACE;
                let (own, other) = (&areas[side], &areas[1 - side]);
                let (local, remote) = if kind == Kind::Read { (&own[2], &other[0]) } else { (&own[0], &other[1]) };
                // SAFETY: the areas live until the end.
                let handle = unsafe {
                    connection.operation(kind, remote.address() + at as u64, local.start().add(at), bytes, flags)
                };
                issued.push((side, handle.unwrap(), kind, at, bytes, flags));
            }
        }
        let mut notifications = [0, 0];
        for (side, handle, kind, at, bytes, flags) in issued {
            pair.sides[side].wait(handle, Some(SOON)).unwrap();
            let (own, other) = (&areas[side], &areas[1 - side]);
            let (from, to) = if kind == Kind::Read { (&other[0], &own[2]) } else { (&own[0], &other[1]) };
            // SAFETY: the operation is complete.
            let slice = |area: &Area| unsafe { std::slice::from_raw_parts(area.start().add(at), bytes) }.to_vec();
            assert!(slice(from) == slice(to), "seed {seed}: {kind:?} of {bytes}");
            notifications[1 - side] += u32::from(flags.contains(NOTIFY));
        }
        for (side, expected) in notifications.into_iter().enumerate() {
            let mut seen = 0;
            while let Ok(event) =
                pair.sides[side].wait_event(Some(Duration::from_millis(if seen < expected { 5000 } else { 5 })))
            {
                assert!(matches!(event, Event::Notified { .. }), "{event:?}");
                seen += 1;
            }
            assert_eq!(seen, expected, "seed {seed}");
        }
    }
}

#[test]
fn a_fence_keeps_the_order_of_writes_to_one_place() {
    let pair = Pair::whole(&options(Mode::Events));
    let (area, count) = (Area::new(100_000), 50u8);
    let sources: Vec<Area> = (0..count)
        .map(|n| {
            let area = Area::new(100_000);
            area.set(&vec![n; 100_000]);
            area
        })
        .collect();
    let issue = |source: &Area| {
        // SAFETY: the areas live until the end.
        unsafe {
            pair.sides[1].operation(
                Kind::Write,
                area.address(),
                source.start(),
                source.len(),
                OperationFlags::BACKWARD_FENCE,
            )
        }
    };
    let handles: Vec<u32> = sources.iter().map(|source| issue(source).unwrap()).collect();
    handles.into_iter().for_each(|handle| pair.sides[1].wait(handle, Some(SOON)).unwrap());
    assert!(area.get().iter().all(|byte| *byte == count - 1));
}

#[test]
fn memory_that_is_not_mapped_is_an_error_of_its_operation() {
    for options in kinds() {
        let pair = Pair::whole(&options);
        let area = Area::new(1 << 20);
        let hole = hole();
        let run = |kind, remote, local: u64, bytes| {
            let local = std::ptr::with_exposed_provenance_mut(local as usize);
            // SAFETY: memory that is not mapped is an error.
            let handle = unsafe { pair.sides[1].operation(kind, remote, local, bytes, NONE) }.unwrap();
            pair.sides[1].wait(handle, Some(SOON))
        };
        let (good, half) = (area.address(), hole + (1 << 20) - 5000);
        for bytes in [1, 4096, 600_000] {
            for bad in [0, 64, hole + (1 << 20), u64::MAX - 5, half] {
                let expected = |error| if bad == half && bytes <= 4096 { Ok(()) } else { Err(error) };
                assert_eq!(run(Kind::Write, bad, good, bytes), expected(Error::Remote), "{bad:#x} {bytes}");
                assert_eq!(run(Kind::Read, bad, good, bytes), expected(Error::Remote), "{bad:#x} {bytes}");
                assert_eq!(run(Kind::Write, good, bad, bytes), expected(Error::Local), "{bad:#x} {bytes}");
                assert_eq!(run(Kind::Read, good, bad, bytes), expected(Error::Local), "{bad:#x} {bytes}");
            }
            assert_eq!(run(Kind::Write, good, good, bytes), Ok(()));
        }
        // SAFETY: as above.
        let copied = unsafe { pair.sides[1].operation(Kind::Write, good, 64 as *mut u8, 8, OperationFlags::COPY) };
        assert_eq!(copied, Err(Error::Local));
        assert!(pair.requester.counters().unwrap().failed >= 50);
    }
}

/// 1 MiB that is mapped, and 1 MiB behind it that is not.
fn hole() -> u64 {
    // SAFETY: a new mapping, of which a half is made inaccessible.
    unsafe {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let map = libc::mmap(std::ptr::null_mut(), 2 << 20, rights, kind, -1, 0);
        assert_eq!(libc::mprotect(map.add(1 << 20), 1 << 20, libc::PROT_NONE), 0);
        map.expose_provenance() as u64
    }
}

/// Memory that vanishes while a WRITE is under way makes the WRITE fail, and no other.
#[test]
fn memory_that_vanishes_under_a_write_is_an_error_of_that_write() {
    const BYTES: usize = 64 << 20;
    let pair = Pair::whole(&options(Mode::Events));
    let area = Area::new(BYTES);
    for _ in 0..3 {
        // SAFETY: a new mapping; the WRITE of what is not mapped any more is an error.
        let handle = unsafe {
            let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let map = libc::mmap(std::ptr::null_mut(), BYTES, rights, kind | libc::MAP_POPULATE, -1, 0);
            let handle = pair.sides[1].operation(Kind::Write, area.address(), map.cast(), BYTES, NONE).unwrap();
            assert_eq!(libc::munmap(map, BYTES), 0);
            handle
        };
        assert_eq!(pair.sides[1].wait(handle, Some(SOON)), Err(Error::Local));
        pair.sides[1].write(area.address(), &[5; 100], NONE).unwrap();
    }
}

#[test]
fn a_peer_uses_what_is_allowed_and_nothing_else() {
    let (both, read_only, other) = (Area::new(8192), Area::new(8192), Area::new(8192));
    let access = Access::READ | Access::WRITE;
    // SAFETY: the areas are used through pointers.
    let allow = unsafe { both.allow(access).and(read_only.start(), 8192, Access::READ) };
    let pair = Pair::new(&options(Mode::Events), [&allow, &Allow::nothing()]);
    let mut bytes = [7; 8192];
    let [taken, requester] = &pair.sides;
    requester.write(both.address(), &bytes, NONE).unwrap();
    requester.read(read_only.address(), &mut bytes, NONE).unwrap();
    assert_eq!(bytes, [0; 8192]);
    assert_eq!(requester.write(read_only.address(), &[1], NONE), Err(Error::Remote));
    assert_eq!(requester.write(both.address() + 8191, &[1, 2], NONE), Err(Error::Remote));
    assert_eq!(requester.write(both.address() - 1, &[1, 2], NONE), Err(Error::Remote));
    assert_eq!(requester.read(other.address(), &mut bytes, NONE), Err(Error::Remote));
    assert_eq!(taken.write(other.address(), &[1], NONE), Err(Error::Remote), "the requester allows nothing");
    // SAFETY: the area is used through pointers.
    let range = unsafe { taken.register(other.start(), 4096, Access::WRITE | Access::PIN) }.unwrap();
    requester.write(other.address(), &[9; 4096], NONE).unwrap();
    assert_eq!(requester.read(other.address(), &mut bytes[..1], NONE), Err(Error::Remote));
    taken.deregister(range).unwrap();
    assert_eq!(requester.write(other.address(), &[1], NONE), Err(Error::Remote));
    assert!(taken.deregister(range).is_err());
    assert_eq!((&other.get()[..4096], &other.get()[4096..]), (&[9; 4096][..], &[0; 4096][..]));
    assert_eq!(read_only.get(), [0; 8192]);
}

#[test]
fn a_copied_write_leaves_the_buffer_to_the_program() {
    let pair = Pair::whole(&options(Mode::Events));
    let area = Area::new(1 << 20);
    let mut bytes = vec![1u8; 1 << 20];
    // SAFETY: the bytes are copied.
    let handle = unsafe {
        pair.sides[1].operation(Kind::Write, area.address(), bytes.as_mut_ptr(), bytes.len(), OperationFlags::COPY)
    };
    bytes.fill(2);
    pair.sides[1].wait(handle.unwrap(), Some(SOON)).unwrap();
    assert!(area.get().iter().all(|byte| *byte == 1));
}

#[test]
fn a_number_is_told_without_memory() {
    let pair = Pair::new(&options(Mode::Events), [&Allow::nothing(); 2]);
    let handle = pair.sides[0].tell(0xfeed_0000_1234).unwrap();
    assert_eq!(pair.sides[1].wait_event(Some(SOON)), Ok(Event::Notified { address: 0xfeed_0000_1234, bytes: 0 }));
    assert_eq!(pair.sides[0].wait_event(Some(SOON)), Ok(Event::Completed { handle, result: Ok(()) }));
    assert_eq!(pair.sides[0].query(handle), Err(Error::UnknownHandle(handle)));
    assert_eq!(pair.sides[0].wait_event(Some(Duration::from_millis(10))), Err(Error::Timeout));
}

#[test]
fn the_descriptor_is_readable_while_there_are_events() {
    let pair = Pair::new(&options(Mode::Events), [&Allow::nothing(); 2]);
    let [a, b] = &pair.sides;
    let readable = |timeout| {
        let mut poll = libc::pollfd { fd: b.descriptor().unwrap(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        unsafe { libc::poll(&mut poll, 1, timeout) == 1 }
    };
    assert!(!readable(0));
    a.tell(1).unwrap();
    a.tell(2).unwrap();
    assert!(readable(5000));
    b.wait_event(Some(SOON)).unwrap();
    b.wait_event(Some(SOON)).unwrap();
    assert!(!readable(0));
    a.tell(3).unwrap();
    assert!(readable(5000));
}

/// A peer that sends notifications without end does not fill this process's memory, and none is lost.
#[test]
fn notifications_wait_for_the_program() {
    let pair = Pair::new(&options(Mode::Events), [&Allow::nothing(); 2]);
    let [a, b] = &pair.sides;
    let count = 20_000u64;
    (0..count).for_each(|n| _ = a.tell(n).unwrap());
    std::thread::sleep(Duration::from_millis(50));
    let before = pair.listener.counters().unwrap().completed;
    let mut seen = vec![false; count as usize];
    for _ in 0..count {
        let Ok(Event::Notified { address, .. }) = b.wait_event(Some(SOON)) else { panic!("after {seen:?}") };
        assert!(!std::mem::replace(&mut seen[address as usize], true), "{address} twice");
    }
    assert!(before < count, "{before} operations were complete before the program took anything");
}

#[test]
fn a_connection_over_ipv6_works_too() {
    let listener = Node::listen(options(Mode::Events)).unwrap();
    let requester = Node::open(options(Mode::Events)).unwrap();
    let to = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], listener.port()));
    let area = Area::new(1 << 20);
    let bytes = noise(6, 1 << 20);
    let connection = requester.request(to, &Allow::nothing(), SOON).unwrap();
    let _taken = listener.wait(&area.allow(Access::WRITE), Some(SOON)).unwrap();
    connection.write(area.address(), &bytes, NONE).unwrap();
    assert_eq!(area.get(), bytes);
}

#[test]
fn calls_that_wait_do_not_lose_their_end_to_others() {
    for mode in [Mode::Events, Mode::Polling] {
        let area = Area::new(64);
        let pair = Pair::new(&options(mode), [&area.allow(Access::READ | Access::WRITE), &Allow::nothing()]);
        let connection = &pair.sides[1];
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let mut events = vec![];
                while !is_done.load(Ordering::Relaxed) {
                    events.extend(connection.wait_event(Some(Duration::from_millis(1))).ok());
                    events.extend(connection.next_event().unwrap());
                }
                events
            });
            let work = || {
                for _ in 0..200 {
                    connection.write(area.address(), &[1; 64], NONE)?;
                    connection.read(area.address(), &mut [0; 64], NONE)?;
                }
                Ok(())
            };
            let result: Result<(), Error> = work();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!((result, others.join().unwrap()), (Ok(()), vec![]), "{mode:?}");
        });
    }
}

#[test]
fn a_program_that_polls_leaves_the_thread_of_the_node_asleep() {
    let area = Area::new(64);
    let listens = options(Mode::Events);
    let (listener, requester) = (Node::listen(listens).unwrap(), Node::open(options(Mode::Polling)).unwrap());
    let sides = connect(&listener, &requester, [&area.allow(Access::READ | Access::WRITE), &Allow::nothing()]);
    let sleeps = || requester.counters().unwrap().sleeps;
    let (begin, before) = (std::time::Instant::now(), sleeps());
    let mut written = 0;
    while begin.elapsed() < Duration::from_millis(300) {
        sides[1].write(area.address(), &[1; 64], NONE).unwrap();
        sides[1].read(area.address(), &mut [0; 64], NONE).unwrap();
        written += 1;
    }
    // It looks every 2 ms: 150 times, and more often if this thread does not run meanwhile.
    let slept = sleeps() - before;
    assert!(slept < 1000, "{slept} sleeps during {written} writes and reads");
    // The program polls no more: what it has begun is sent again and performed nevertheless.
    sides[1].tell(5).unwrap();
    assert_eq!(sides[0].wait_event(Some(SOON)), Ok(Event::Notified { address: 5, bytes: 0 }));
}
