//! Random programs over random settings: every operation ends once, with the right bytes, in the right order.

use std::time::Duration;
use weir_msg::testing::{Program, Receive, Remotes, Rng, Send, Setup, Window, each_seed};
use weir_msg::{Rendezvous, Scheme, Settings};

fn setup(rng: &mut Rng, seed: u64) -> Setup {
    let slot = rng.choose(&[256, 300, 1024, 4096]);
    let settings = Settings {
        scheme: rng.choose(&Scheme::ALL),
        rendezvous: rng.choose(&[Rendezvous::Read, Rendezvous::Write]),
        slot,
        receive_slots: rng.choose(&[4, 5, 8, 32]),
        send_slots: rng.choose(&[1, 2, 64]),
        eager_limit: rng.choose(&[0, 100, 1000, 5000]),
        unexpected: rng.choose(&[0, 500, 3000, 100_000]),
        announced: rng.choose(&[1, 3, 1000]),
        injected: rng.choose(&[0, 300, 10_000]),
        rma_bounce: rng.choose(&[0, 200, 4096]),
        cache_regions: rng.choose(&[0, 2, 100]),
        ..Settings::default()
    };
    Setup {
        nodes: rng.choose(&[1, 2, 2, 2, 3, 4]),
        settings,
        depth: rng.choose(&[4, 5, 16, 128]),
        inline: rng.choose(&[0, 64, 220]),
        jitter: Duration::from_nanos(rng.choose(&[0, 1000, 30_000])),
        seed,
        ..Setup::default()
    }
}

fn random_program(seed: u64) {
    let mut rng = Rng(seed);
    let setup = setup(&mut rng, seed);
    let mut mesh = setup.mesh();
    if rng.once_in(3) && setup.nodes > 1 {
        // One node has other settings, and another adapter.
        let other = self::setup(&mut rng, seed);
        mesh.nodes[1] = Setup { nodes: 2, ..other }.mesh().nodes.remove(1);
    }
    let mut program = Program::new(mesh);
    let fails = rng.choose(&[0, 0, 2, 10]);
    let regions = rng.choose(&[2, 6, 1000]);
    let mut windows = Vec::new();
    for node in 0..setup.nodes {
        windows.push(Window::new(&mut program, node, 256 << 10));
        program.mesh.nodes[node].port.register_fails = fails;
        program.mesh.nodes[node].port.memory.most_regions = regions;
    }
    let mut remotes = Remotes::default();
    for _ in 0..rng.choose(&[20, 80]) {
        random_call(&mut rng, &mut program, &setup, &mut windows, &mut remotes);
        for _ in 0..rng.choose(&[0, 0, 1, 3, 20]) {
            program.mesh.turn();
        }
        if rng.once_in(20) {
            program.mesh.compute(Duration::from_micros(rng.below(500)));
        }
        remotes.take_events(&mut program);
    }
    // Receives for all that has come, and no further ones.
    for round in 0.. {
        program.mesh.settle();
        remotes.take_events(&mut program);
        let missing = program.missing_receives();
        if missing.is_empty() {
            break;
        }
        assert!(round < 100, "{} messages do not arrive", missing.len());
        for receive in missing {
            program.receive(receive);
        }
    }
    for receive in program.open_receives() {
        program.cancel(receive);
    }
    program.settle();
    remotes.check();
    program.finish();
}

fn random_call(rng: &mut Rng, program: &mut Program, setup: &Setup, windows: &mut [Window], remotes: &mut Remotes) {
    let nodes = setup.nodes as u64;
    let (from, to) = (rng.below(nodes) as usize, rng.below(nodes) as usize);
    let limit = setup.settings.eager_limit;
    let len = rng.choose(&[0, 1, 50, limit, limit + 1, 3 * limit, 700, 9000, 1, 20]);
    let tag = (!rng.once_in(4)).then(|| rng.below(4));
    let pieces = 1 + rng.below(4) as usize;
    let receive = Receive {
        node: to,
        tagged: tag.is_some(),
        tag: tag.unwrap_or(0),
        ignore: rng.choose(&[0, 0, 1, 3, u64::MAX]),
        from: (!rng.once_in(3)).then_some(from),
        len: rng.choose(&[len, len, len + 100, len / 2]),
        pieces,
        multi: None,
    };
    if rng.once_in(20) {
        let addr = program.mesh.nodes[to].port.memory.base + rng.below(200_000);
        let len = rng.choose(&[1, 10_000, 1 << 20]);
        program.mesh.with(to, |endpoint, port, _| endpoint.invalidate(port, addr, len));
    }
    match rng.below(12) {
        0..=3 => {
            program.send(Send { from, to, tag, len, pieces, matched: rng.once_in(5) });
        }
        4..=6 => {
            program.receive(receive);
        }
        7 => {
            let longest = program.mesh.nodes[from].endpoint().longest_injected() as u64;
            let send = Send { from, to, tag, len: len.min(longest), pieces: 1, matched: false };
            if rng.once_in(3) {
                program.send_copied(Send { matched: rng.once_in(2), ..send });
            } else {
                program.inject(send);
            }
        }
        8 => {
            let multi = Some(rng.choose(&[0, 1, 100, 5000]));
            let len = 1 + rng.below(10_000);
            program.receive(Receive { multi, pieces: 1, len, ..receive });
        }
        9 if rng.once_in(2) => {
            program.claim(receive, rng.once_in(2));
        }
        9 => {
            program.discard(receive);
        }
        10 => {
            let open = program.open_receives();
            if !open.is_empty() {
                program.cancel(rng.choose(&open));
            }
        }
        _ => {
            let write = rng.once_in(2);
            let immediate = (write && rng.once_in(2)).then(|| rng.draw() as u32);
            if let Some(addr) = windows[to].take(len) {
                remotes.start_as(program, from, write, (to, addr, windows[to].key), len, pieces, immediate);
            }
        }
    }
}

#[test]
fn random_programs_on_random_settings() {
    each_seed(700, random_program);
}
