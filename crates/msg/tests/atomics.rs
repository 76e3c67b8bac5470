//! Atomics against a model, on memory of peers and of the endpoint itself.

use weir_msg::testing::{Program, Receive, Remotes, Rng, Send, Setup, Window, each_seed};
use weir_msg::{AtomicCall, AtomicKind, Buffer, Datatype, Failure, Operator, PeerId, Piece, RemoteBuffer};
use weir_msg::{Remote, Settings, is_valid, result};

const KINDS: [AtomicKind; 3] = [AtomicKind::Plain, AtomicKind::Fetch, AtomicKind::Compare];

fn element(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// A buffer with these bytes, in up to four pieces.
fn filled(program: &mut Program, node: usize, bytes: &[u8], pieces: usize) -> Buffer {
    let buffer = program.buffer(node, bytes.len() as u64, pieces);
    let mut at = 0;
    for &Piece { addr, len } in buffer.pieces() {
        let memory = program.mesh.nodes[node].port.memory.bytes_mut(addr, len as usize);
        memory.copy_from_slice(&bytes[at..at + len as usize]);
        at += len as usize;
    }
    buffer
}

fn call(to: PeerId, kind: AtomicKind, operator: Operator, datatype: Datatype) -> AtomicCall {
    AtomicCall {
        to,
        kind,
        operator,
        datatype,
        target: RemoteBuffer::default(),
        operand: Buffer::default(),
        compare: Buffer::default(),
        result: Buffer::default(),
        context: 0,
        report: true,
    }
}

/// One atomic on `count` elements, split in two places, against the model.
fn check(rng: &mut Rng, program: &mut Program, window: &Window, (kind, operator, datatype): Atomic, count: usize) {
    let mut remotes = Remotes::default();
    let (size, from) = (datatype.size(), 0);
    let to = program.peer(from, window.node);
    let random =
        |rng: &mut Rng| (0..count * size).map(|_| rng.choose(&[0, 1, 0xff, 0x7f, 0x80, 3])).collect::<Vec<u8>>();
    let (before, operand, compare) = (random(rng), random(rng), random(rng));
    let mut call = call(to, kind, operator, datatype);
    let first = rng.below(count as u64 + 1) * size as u64;
    let places = [(window.addr, first), (window.addr + 40_000, (count * size) as u64 - first)];
    for (addr, len) in places {
        call.target.push(Remote { addr, len, rkey: window.key });
    }
    let far = |program: &mut Program| {
        let memory = &program.mesh.nodes[window.node].port.memory;
        places.map(|(addr, len)| memory.bytes(addr, len as usize).to_vec()).concat()
    };
    for (at, (addr, len)) in places.into_iter().enumerate() {
        let memory = program.mesh.nodes[window.node].port.memory.bytes_mut(addr, len as usize);
        let start = if at == 0 { 0 } else { first as usize };
        memory.copy_from_slice(&before[start..start + len as usize]);
    }
    if operator != Operator::Read {
        call.operand = filled(program, from, &operand, 1 + rng.below(4) as usize);
    }
    if kind == AtomicKind::Compare {
        call.compare = filled(program, from, &compare, 1 + rng.below(4) as usize);
    }
    if kind != AtomicKind::Plain {
        call.result = program.buffer(from, before.len() as u64, 1 + rng.below(4) as usize);
    }
    let number = remotes.atomic(program, from, window.node, call);
    program.mesh.settle();
    remotes.take_events(program);
    assert_eq!(remotes.result(number), Some(Ok(())));
    let after = far(program);
    for at in (0..before.len()).step_by(size) {
        let range = at..at + size;
        let of = |bytes: &[u8]| element(&bytes[range.clone()]);
        let operand = if operator == Operator::Read { 0 } else { of(&operand) };
        let compare = if kind == AtomicKind::Compare { of(&compare) } else { 0 };
        let expected = result(operator, datatype, of(&before), operand, compare);
        assert_eq!(of(&after), expected, "{kind:?} {operator:?} {datatype:?}");
    }
    if kind != AtomicKind::Plain {
        assert_eq!(program.bytes(from, &call.result), before);
    }
}

type Atomic = (AtomicKind, Operator, Datatype);

#[test]
fn each_atomic_does_what_the_model_does() {
    for (setup, to) in [(Setup::default(), 1), (Setup::default(), 0), (Setup::tiny(), 1)] {
        let mut program = Program::new(Setup { memory: 16 << 20, ..setup }.mesh());
        let window = Window::new(&mut program, to, 1 << 20);
        let mut rng = Rng(7);
        for kind in KINDS {
            for &operator in Operator::ALL {
                for &datatype in Datatype::ALL {
                    if is_valid(kind, operator, datatype) {
                        let most = program.mesh.nodes[0].endpoint().most_elements(kind, datatype);
                        for count in [1, 2, most] {
                            check(&mut rng, &mut program, &window, (kind, operator, datatype), count);
                        }
                    }
                }
            }
        }
        program.finish();
    }
}

/// Nodes add to the same numbers at once: each sees another value before.
#[test]
fn additions_of_several_nodes_are_all_done() {
    each_seed(30, |seed| {
        let setup = Setup { nodes: 4, seed, ..[Setup::tiny(), Setup::default()][seed as usize % 2].clone() };
        let mut program = Program::new(setup.mesh());
        let mut remotes = Remotes::default();
        let window = Window::new(&mut program, 0, 4096);
        program.mesh.nodes[0].port.memory.bytes_mut(window.addr, 8).fill(0);
        let mut results = Vec::new();
        for round in 0..160 {
            let node = round % 4;
            let to = program.peer(node, 0);
            let mut call = call(to, AtomicKind::Fetch, Operator::Sum, Datatype::U64);
            call.target.push(Remote { addr: window.addr, len: 8, rkey: window.key });
            call.operand = filled(&mut program, node, &1u64.to_le_bytes(), 1);
            call.result = program.buffer(node, 8, 1);
            remotes.atomic(&mut program, node, 0, call);
            results.push((node, call.result));
            for _ in 0..seed % 4 {
                program.mesh.turn();
            }
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        remotes.check();
        let values = results.into_iter().map(|(node, result)| element(&program.bytes(node, &result)));
        let mut values: Vec<u64> = values.collect();
        // Those of one node come in order.
        for node in 0..4 {
            let own: Vec<u64> = values.iter().copied().skip(node).step_by(4).collect();
            assert!(own.is_sorted());
        }
        values.sort_unstable();
        assert!(values.into_iter().eq(0..160));
        assert_eq!(element(program.mesh.nodes[0].port.memory.bytes(window.addr, 8)), 160);
        program.finish();
    });
}

/// A key that does not permit it: the connection stays.
#[test]
fn a_refused_atomic_ends_alone() {
    for setup in [Setup::tiny(), Setup::default()] {
        let mut program = Program::new(setup.mesh());
        let mut remotes = Remotes::default();
        let window = Window::new(&mut program, 1, 4096);
        let to = program.peer(0, 1);
        let mut numbers = Vec::new();
        for (addr, key) in [(window.addr, window.key + 1), (window.addr - 8, window.key), (u64::MAX - 7, window.key)] {
            let mut call = call(to, AtomicKind::Fetch, Operator::Sum, Datatype::U64);
            // The first element is permitted.
            call.target.push(Remote { addr: window.addr, len: 8, rkey: window.key });
            call.target.push(Remote { addr, len: 8, rkey: key });
            call.operand = filled(&mut program, 0, &[1; 16], 1);
            call.result = program.buffer(0, 16, 1);
            numbers.push(remotes.atomic(&mut program, 0, 1, call));
        }
        program.receive(Receive::tagged(1, 1, 5));
        program.send(Send::tagged(0, 1, 1, 5));
        program.mesh.settle();
        remotes.take_events(&mut program);
        assert!(numbers.iter().all(|&number| remotes.result(number) == Some(Err(Failure::Denied))));
        program.finish();
    }
}

/// The peer's bounce buffers are too small for the request, or for the answer.
#[test]
fn an_atomic_that_the_peer_cannot_take_is_denied() {
    let small = Setup::default();
    let small = Setup { settings: Settings { slot: 256, ..small.settings }, ..small };
    let mut mesh = Setup::default().mesh();
    mesh.nodes[1] = small.mesh().nodes.into_iter().nth(1).expect("two nodes");
    let mut program = Program::new(mesh);
    let mut remotes = Remotes::default();
    let window = Window::new(&mut program, 1, 4096);
    let to = program.peer(0, 1);
    for (operator, len, expected) in [
        (Operator::Read, 1000, Err(Failure::Denied)),
        (Operator::Sum, 1000, Err(Failure::Denied)),
        (Operator::Read, 136, Ok(())),
        (Operator::Sum, 136, Ok(())),
    ] {
        let mut call = call(to, AtomicKind::Fetch, operator, Datatype::U64);
        call.target.push(Remote { addr: window.addr, len, rkey: window.key });
        if operator != Operator::Read {
            call.operand = program.buffer(0, len, 2);
        }
        call.result = program.buffer(0, len, 1);
        let number = remotes.atomic(&mut program, 0, 1, call);
        program.mesh.settle();
        remotes.take_events(&mut program);
        assert_eq!(remotes.result(number), Some(expected), "{operator:?} of {len} bytes");
    }
    program.finish();
}
