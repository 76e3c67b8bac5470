//! Registrations of the program's memory: kept, evicted, refused, and ended when the memory goes away.

use weir_msg::testing::{PAGE, Program, Receive, Remotes, Rng, Send, Setup, Window, each_seed};
use weir_msg::{Buffer, Counters, Envelope, Rendezvous, Scheme, SendCall, Settings};

const LONG: u64 = 40_000;

fn setup(scheme: Scheme, cache_regions: usize, cache_bytes: u64) -> Setup {
    let settings = Settings { scheme, cache_regions, cache_bytes, ..Settings::default() };
    Setup { settings, memory: 4 << 20, ..Setup::default() }
}

fn counters(program: &Program, node: usize) -> Counters {
    *program.mesh.nodes[node].endpoint().counters()
}

/// Sends a buffer that may have been sent before.
fn send_buffer(program: &mut Program, buffer: Buffer) {
    let to = program.peer(0, 1);
    program.receive(Receive::tagged(1, 1, LONG));
    let envelope = Envelope { tag: Some(1), data: Some(0) };
    let call = SendCall { to, envelope, buffer, matched: false, context: 0, report: false };
    program.mesh.with(0, |endpoint, port, now| endpoint.send(port, now, &call));
    program.mesh.settle();
    program.mesh.nodes[1].events.clear();
}

#[test]
fn memory_stays_registered_until_it_goes_away() {
    for scheme in Scheme::ALL {
        let mut program = Program::new(setup(scheme, 100, 1 << 30).mesh());
        let addr = program.mesh.nodes[0].port.memory.allocate_pages(2 * LONG);
        let buffer = Buffer::contiguous(addr, LONG);
        (0..3).for_each(|_| send_buffer(&mut program, buffer));
        assert_eq!((counters(&program, 0).registrations, counters(&program, 0).cache_hits), (1, 2));
        // A part of it is registered, too.
        send_buffer(&mut program, Buffer::contiguous(addr + 100, LONG - 5000));
        assert_eq!(counters(&program, 0).registrations, 1);
        let pinned = counters(&program, 0).pinned_bytes;
        program.mesh.with(0, |endpoint, port, _| endpoint.invalidate(port, addr + 8192, 1));
        assert_eq!(program.mesh.nodes[0].port.memory.regions(), 0);
        let bounce = pinned - if scheme.on_demand() { 0 } else { LONG.next_multiple_of(PAGE) };
        assert_eq!(counters(&program, 0).pinned_bytes, bounce);
        send_buffer(&mut program, buffer);
        assert_eq!(counters(&program, 0).registrations, 2);
    }
}

#[test]
fn registrations_that_nothing_uses_are_limited() {
    for (regions, bytes) in [(3, 1 << 30), (100, 3 * (LONG + PAGE)), (0, 1 << 30), (100, 0)] {
        let mut program = Program::new(setup(Scheme::PinDown, regions, bytes).mesh());
        for number in 0..10 {
            let addr = program.mesh.nodes[0].port.memory.allocate_pages(LONG);
            send_buffer(&mut program, Buffer::contiguous(addr, LONG));
            let most = if regions == 0 || bytes == 0 { 0 } else { 3 };
            assert_eq!(program.mesh.nodes[0].port.memory.regions(), most.min(number + 1));
        }
    }
}

/// The adapter has no room for another registration: those that nothing uses make room, otherwise bytes are copied.
#[test]
fn registrations_that_are_refused() {
    for scheme in Scheme::ALL {
        for most_regions in [0, 1, 2] {
            let mut program = Program::new(setup(scheme, 100, 1 << 30).mesh());
            for node in 0..2 {
                program.mesh.nodes[node].port.memory.most_regions = most_regions;
            }
            for tag in 0..10 {
                program.receive(Receive::tagged(1, tag, LONG));
                program.send(Send::tagged(0, 1, tag, LONG));
                program.mesh.settle();
            }
            let Counters { rendezvous, deferred, evictions, .. } = counters(&program, 0);
            assert_eq!((rendezvous, deferred), if most_regions > 0 { (10, 0) } else { (0, 10) });
            assert_eq!(evictions > 0, most_regions > 0);
            // Several at once do not find room.
            for tag in 0..10 {
                program.receive(Receive { pieces: 3, ..Receive::tagged(1, tag, LONG) });
                program.send(Send { pieces: 3, ..Send::tagged(0, 1, tag, LONG) });
            }
            program.mesh.settle();
            assert!(counters(&program, 0).deferred > deferred);
            program.finish();
        }
    }
}

/// Memory goes away and registrations fail at random moments.
#[test]
fn random_invalidations_and_failures() {
    each_seed(150, |seed| {
        let mut rng = Rng(seed);
        let setup = setup(rng.choose(&Scheme::ALL), rng.choose(&[0, 3, 100]), rng.choose(&[0, 100_000, 1 << 30]));
        let rendezvous = rng.choose(&[Rendezvous::Read, Rendezvous::Write]);
        let settings = Settings { rendezvous, ..setup.settings };
        let mut program = Program::new(Setup { settings, seed, ..setup }.mesh());
        let mut remotes = Remotes::default();
        let mut window = Window::new(&mut program, 1, 1 << 20);
        for node in 0..2 {
            program.mesh.nodes[node].port.register_fails = rng.choose(&[0, 3]);
            program.mesh.nodes[node].port.memory.most_regions = rng.choose(&[3, 8, 1000]);
        }
        for _ in 0..60 {
            let len = rng.choose(&[17_000, LONG, 100]);
            let pieces = 1 + rng.below(4) as usize;
            match rng.below(4) {
                0 => {
                    program.send(Send { pieces, ..Send::tagged(0, 1, 1, len) });
                }
                1 => {
                    program.receive(Receive { pieces, ..Receive::tagged(1, 1, LONG) });
                }
                2 => {
                    if let Some(addr) = window.take(len) {
                        remotes.start(&mut program, 0, rng.once_in(2), (window, addr), len);
                    }
                }
                _ => {
                    let node = rng.below(2) as usize;
                    let base = program.mesh.nodes[node].port.memory.base;
                    let (addr, len) = (base + rng.below(2 << 20), rng.choose(&[1, 4096, 1 << 20]));
                    program.mesh.with(node, |endpoint, port, _| endpoint.invalidate(port, addr, len));
                }
            }
            (0..rng.below(6)).for_each(|_| program.mesh.turn());
            remotes.take_events(&mut program);
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        for receive in program.missing_receives() {
            program.receive(receive);
        }
        for receive in program.open_receives() {
            program.cancel(receive);
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        for receive in program.missing_receives() {
            program.receive(receive);
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        remotes.check();
        program.finish();
    });
}
