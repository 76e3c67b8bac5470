//! Page faults of the adapter in each scheme (Li et al., V and VI): which are avoided, and when.

use std::time::Duration;
use weir_msg::testing::{Program, Receive, Remotes, Send, Setup, Window};
use weir_msg::{
    AtomicCall, AtomicKind, Buffer, Datatype, Envelope, Operator, Pattern, ReceiveCall, Remote, RemoteBuffer,
    Rendezvous, RmaCall, Scheme, SendCall, Settings,
};

const LONG: u64 = 100_000;
const COMPUTES: Duration = Duration::from_millis(1);

/// A prefetch takes less than a packet.
fn setup(scheme: Scheme, rendezvous: Rendezvous) -> Setup {
    let settings = Settings { scheme, rendezvous, ..Settings::default() };
    let latency = Duration::from_micros(10);
    Setup { settings, latency, memory: 8 << 20, ..Setup::default() }
}

/// A program with a connection, on which nothing is on the way.
fn connected(setup: &Setup) -> Program {
    let mut program = Program::new(setup.mesh());
    for node in 0..2 {
        program.mesh.nodes[node].port.memory.prefetch_takes = Duration::from_micros(4);
        program.receive(Receive::tagged(node, 99, 10));
        program.send(Send::tagged(1 - node, node, 99, 10));
    }
    program.mesh.settle();
    program
}

fn faults(program: &Program) -> [u64; 2] {
    [0, 1].map(|node| program.mesh.nodes[node].port.memory.faults)
}

/// The system takes pages away: all that the programs have.
fn drop_pages(program: &mut Program, node: usize) {
    let now = program.mesh.now;
    let memory = &mut program.mesh.nodes[node].port.memory;
    memory.drop_pages(now, memory.base, 8 << 20);
}

/// Happens until nothing is on the way, while the node computes and the other waits.
fn computes(program: &mut Program, node: usize) {
    for _ in 0..10 {
        program.mesh.compute(COMPUTES / 10);
        program.mesh.poll(1 - node, 100);
    }
}

#[test]
fn without_pressure_prefetches_avoid_all_faults_of_a_rendezvous() {
    for scheme in Scheme::ALL {
        for rendezvous in [Rendezvous::Read, Rendezvous::Write] {
            for receive_first in [true, false] {
                let mut program = connected(&setup(scheme, rendezvous));
                if receive_first {
                    program.receive(Receive::tagged(1, 1, LONG));
                    program.send(Send::tagged(0, 1, 1, LONG));
                } else {
                    program.send(Send::tagged(0, 1, 1, LONG));
                    program.mesh.settle();
                    program.receive(Receive::tagged(1, 1, LONG));
                }
                program.mesh.settle();
                let pages = LONG / 4096 + 1;
                let expected = if scheme == Scheme::OdpNative { [pages; 2] } else { [0; 2] };
                for (node, expected) in expected.into_iter().enumerate() {
                    let found = faults(&program)[node];
                    assert!(found.abs_diff(expected) <= 1, "{scheme} by {rendezvous}: {found} faults of node {node}");
                }
                assert_eq!(program.mesh.nodes[0].endpoint().counters().rendezvous, 1);
                program.finish();
            }
        }
    }
}

/// The sender computes after its send, and loses its pages meanwhile. Then it waits, and only later the receive comes.
fn sender_loses_pages(scheme: Scheme, rendezvous: Rendezvous) -> [u64; 2] {
    let mut program = connected(&setup(scheme, rendezvous));
    program.send(Send::tagged(0, 1, 1, LONG));
    computes(&mut program, 0);
    drop_pages(&mut program, 0);
    program.mesh.settle();
    program.mesh.compute(COMPUTES / 20);
    program.receive(Receive::tagged(1, 1, LONG));
    program.mesh.settle();
    let found = faults(&program);
    program.finish();
    found
}

/// The receiver has granted the message, computes, and loses its pages; it waits before the sender goes on.
fn receiver_loses_pages(scheme: Scheme) -> [u64; 2] {
    let mut program = connected(&setup(scheme, Rendezvous::Write));
    program.receive(Receive::tagged(1, 1, LONG));
    program.send(Send::tagged(0, 1, 1, LONG));
    program.mesh.compute(COMPUTES / 20);
    program.mesh.poll(1, 100);
    // The grant travels, and both compute.
    program.mesh.compute(COMPUTES);
    drop_pages(&mut program, 1);
    program.mesh.poll(1, 100);
    program.mesh.compute(COMPUTES / 20);
    program.mesh.settle();
    let found = faults(&program);
    program.finish();
    found
}

/// The grant comes while the sender computes and loses its pages.
fn answer_is_early(scheme: Scheme) -> [u64; 2] {
    let mut program = connected(&setup(scheme, Rendezvous::Write));
    program.receive(Receive::tagged(1, 1, LONG));
    program.send(Send::tagged(0, 1, 1, LONG));
    computes(&mut program, 0);
    drop_pages(&mut program, 0);
    program.mesh.settle();
    let found = faults(&program);
    program.finish();
    found
}

#[test]
fn pages_that_are_lost_while_the_program_computes_come_back_when_it_waits() {
    for rendezvous in [Rendezvous::Read, Rendezvous::Write] {
        assert!(sender_loses_pages(Scheme::OdpEnhanced, rendezvous)[0] > 20);
        assert!(sender_loses_pages(Scheme::OdpNative, rendezvous)[0] > 20);
        assert_eq!(sender_loses_pages(Scheme::OdpOptimal, rendezvous)[0], 0, "{rendezvous}");
    }
    assert!(receiver_loses_pages(Scheme::OdpEnhanced)[1] > 20);
    assert_eq!(receiver_loses_pages(Scheme::OdpOptimal), [0, 0]);
    assert!(answer_is_early(Scheme::OdpEnhanced)[0] > 20);
    assert_eq!(answer_is_early(Scheme::OdpOptimal), [0, 0]);
}

/// A message between buffers that may have been used before.
fn message(program: &mut Program, buffers: [Buffer; 2]) {
    let [to, from] = [program.peer(0, 1), program.peer(1, 0)];
    let pattern = Pattern { tag: 1, ignore: 0, from: Some(from) };
    let receive = ReceiveCall { tagged: true, pattern, buffer: buffers[1], multi: None, context: 0, report: false };
    let envelope = Envelope { tag: Some(1), data: None };
    let send = SendCall { to, envelope, buffer: buffers[0], matched: false, context: 0, report: false };
    program.mesh.with(1, |endpoint, port, now| endpoint.receive(port, now, &receive));
    program.mesh.with(0, |endpoint, port, now| endpoint.send(port, now, &send));
    program.mesh.settle();
}

/// Ranges that each node asks for during some calls.
fn asked(program: &mut Program, calls: impl FnOnce(&mut Program)) -> [u64; 2] {
    let count = |program: &Program| [0, 1].map(|node| program.mesh.nodes[node].endpoint().counters().prefetches);
    let before = count(program);
    calls(program);
    let after = count(program);
    [after[0] - before[0], after[1] - before[1]]
}

/// A program with a buffer of its own pages at each node.
fn with_buffers(rendezvous: Rendezvous) -> (Program, [Buffer; 2]) {
    let mut program = connected(&setup(Scheme::OdpOptimal, rendezvous));
    let buffer = |node: usize| Buffer::contiguous(program.mesh.nodes[node].port.memory.allocate_pages(LONG), LONG);
    let buffers = [0, 1].map(buffer);
    (program, buffers)
}

#[test]
fn pages_that_the_adapter_has_are_not_asked_for_again() {
    for rendezvous in [Rendezvous::Read, Rendezvous::Write] {
        let (mut program, buffers) = with_buffers(rendezvous);
        assert_eq!(asked(&mut program, |program| message(program, buffers)), [1, 1]);
        assert_eq!(asked(&mut program, |program| message(program, buffers)), [0, 0]);
        // A part of them, too.
        let parts = buffers.map(|buffer| buffer.range(5000, LONG / 2));
        assert_eq!(asked(&mut program, |program| message(program, parts)), [0, 0]);
        program.mesh.compute(COMPUTES);
        drop_pages(&mut program, 0);
        assert_eq!(asked(&mut program, |program| message(program, buffers)), [1, 0]);
        program.mesh.compute(COMPUTES);
        drop_pages(&mut program, 1);
        assert_eq!(asked(&mut program, |program| message(program, buffers)), [0, 1]);
        assert_eq!(asked(&mut program, |program| message(program, buffers)), [0, 0]);
        assert_eq!(faults(&program), [0, 0], "by {rendezvous}");
    }
}

#[test]
fn pages_to_send_are_asked_for_again_to_receive() {
    let (mut program, [sent, received]) = with_buffers(Rendezvous::Write);
    message(&mut program, [sent, received]);
    // The memory was registered for reading only.
    let back = |program: &mut Program| {
        let (to, window) = (program.peer(0, 1), Window::new(program, 1, LONG));
        let remote = Remote { addr: window.addr, len: LONG, rkey: window.key };
        let call = RmaCall { to, write: false, local: sent, remote, immediate: None, context: 0, report: false };
        program.mesh.with(0, |endpoint, port, now| endpoint.rma(port, now, &call));
        program.mesh.settle();
    };
    assert_eq!(asked(&mut program, back)[0], 1);
    assert_eq!(asked(&mut program, back)[0], 0);
}

#[test]
fn an_adapter_that_does_not_tell_what_it_has_lost_is_asked_each_time() {
    let (mut program, buffers) = with_buffers(Rendezvous::Write);
    for node in 0..2 {
        program.mesh.nodes[node].port.tells_invalidations = false;
    }
    (0..3).for_each(|_| assert_eq!(asked(&mut program, |program| message(program, buffers)), [1, 1]));
}

#[test]
fn reads_and_writes_are_prefetched_on_this_side() {
    for scheme in Scheme::ALL {
        for write in [true, false] {
            let mut program = connected(&setup(scheme, Rendezvous::Write));
            let mut remotes = Remotes::default();
            let window = Window::new(&mut program, 1, 1 << 20);
            program.mesh.compute(COMPUTES);
            remotes.start(&mut program, 0, write, (window, window.addr), LONG);
            program.mesh.settle();
            remotes.take_events(&mut program);
            remotes.check();
            let found = faults(&program);
            assert_eq!(found[0] > 0, scheme == Scheme::OdpNative, "{scheme}: {found:?}");
            // The test registers windows on demand in every scheme; pin-down and native do not prefetch them.
            let prefetched = [Scheme::OdpEnhanced, Scheme::OdpOptimal].contains(&scheme);
            assert_eq!(found[1] == 0, prefetched, "{scheme}: {found:?}");
            program.finish();
        }
    }
}

/// A peer synchronises with an atomic: pages of windows that were lost come back before it uses them.
#[test]
fn windows_are_prefetched_when_a_peer_synchronises() {
    for (tells, scheme) in [(true, Scheme::OdpOptimal), (false, Scheme::OdpOptimal), (true, Scheme::OdpEnhanced)] {
        let mut program = connected(&setup(scheme, Rendezvous::Write));
        let mut remotes = Remotes::default();
        program.mesh.nodes[1].port.tells_invalidations = tells;
        let window = Window::new(&mut program, 1, 1 << 20);
        let flag = Window::new(&mut program, 1, 4096);
        program.mesh.compute(COMPUTES);
        program.mesh.settle();
        drop_pages(&mut program, 1);
        let before = program.mesh.nodes[1].endpoint().counters().prefetches;
        for _ in 0..3 {
            let (to, mut target) = (program.peer(0, 1), RemoteBuffer::default());
            target.push(Remote { addr: flag.addr, len: 8, rkey: flag.key });
            let call = AtomicCall {
                to,
                kind: AtomicKind::Plain,
                operator: Operator::Sum,
                datatype: Datatype::U64,
                target,
                operand: program.buffer(0, 8, 1),
                compare: Buffer::default(),
                result: Buffer::default(),
                context: 0,
                report: true,
            };
            remotes.atomic(&mut program, 0, 1, call);
            program.mesh.settle();
        }
        let prefetches = program.mesh.nodes[1].endpoint().counters().prefetches - before;
        let already = faults(&program)[1];
        remotes.start(&mut program, 0, true, (window, window.addr), LONG);
        program.mesh.settle();
        remotes.take_events(&mut program);
        let optimal = scheme == Scheme::OdpOptimal;
        assert_eq!(faults(&program)[1] == already, optimal);
        // An adapter that tells what it has lost need not be asked again.
        assert_eq!(prefetches == 2, optimal && tells, "{prefetches} prefetches");
        program.finish();
    }
}
