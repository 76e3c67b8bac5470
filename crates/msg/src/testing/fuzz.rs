//! The body of the fuzz target; a test on stable Rust calls it too.
//!
//! Node 2 is hostile: the input chooses what it sends, mostly messages that are almost valid, and what node 0 wants of it
//! meanwhile. Nodes 0 and 1 exchange messages all the time.

use super::audit::{audit, close};
use super::mesh::{Mesh, Setup, name};
use super::program::{Program, Receive, Send};
use super::remote::Window;
use crate::atomic::{AtomicKind, Datatype, Operator};
use crate::atomics::AtomicCall;
use crate::buffer::{Buffer, Remote, RemoteBuffer};
use crate::event::Kind;
use crate::hello::Hello;
use crate::matching::Pattern;
use crate::message::{AtomicRequest, Envelope, LONGEST_HEADER, Message, Returned};
use crate::receive::ReceiveCall;
use crate::rma::RmaCall;
use crate::send::SendCall;
use crate::settings::{Rendezvous, Settings};
use std::collections::HashSet;

const HOSTILE: usize = 2;
/// Contexts of operations with the hostile node begin here.
const CONTEXTS: u64 = 1 << 50;

/// Input bytes, consumed one by one; zeros after their end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// A number of an operation: mostly one that there may be.
    fn id(&mut self) -> u32 {
        match self.byte() {
            0 => self.word() as u32,
            byte => u32::from(byte) % 12,
        }
    }

    fn len(&mut self) -> u64 {
        match self.byte() % 10 {
            0 => self.word(),
            1 => u64::from(u32::MAX),
            2 => u64::MAX,
            3 => 5000,
            4 => 1000,
            5 => 0,
            _ => u64::from(self.byte()),
        }
    }

    fn tag(&mut self) -> Option<u64> {
        self.choose(&[None, Some(0), Some(1), Some(u64::MAX)])
    }
}

/// The operations of node 0 that have to do with the hostile node, by context.
#[derive(Default)]
struct Open {
    contexts: HashSet<u64>,
    multi: HashSet<u64>,
    next: u64,
}

impl Open {
    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.contexts.insert(CONTEXTS + self.next);
        CONTEXTS + self.next
    }

    /// Takes events of these operations from the program.
    fn take_events(&mut self, program: &mut Program) {
        program.take_events();
        for (node, event) in std::mem::take(&mut program.others) {
            if event.kind == Kind::WrittenByPeer || event.context == 0 {
                continue;
            }
            assert_eq!(node, 0, "only node 0 has to do with the hostile node");
            let ends = !self.multi.contains(&event.context) || event.released;
            let known =
                if ends { self.contexts.remove(&event.context) } else { self.contexts.contains(&event.context) };
            assert!(known, "an operation ends twice: {event:?}");
        }
    }
}

/// What a hostile peer does to an endpoint: no panic, bounded memory, and other peers are not disturbed.
pub fn fuzz(bytes: &[u8]) {
    let mut input = Input(bytes);
    let base = if input.byte().is_multiple_of(2) { Setup::tiny() } else { Setup::default() };
    let settings = Settings {
        rendezvous: input.choose(&[Rendezvous::Read, Rendezvous::Write]),
        scheme: input.choose(&crate::Scheme::ALL),
        eager_limit: 900,
        unexpected: 3000,
        announced: 20,
        ..base.settings
    };
    let setup = Setup { nodes: 3, settings, seed: input.byte().into(), memory: 1 << 20, ..base };
    let mut program = Program::new(setup.mesh());
    program.mesh.make_hostile(HOSTILE);
    let window = Window::new(&mut program, 0, 64 << 10);
    let mut open = Open::default();
    let mut rounds = 0;
    while !input.0.is_empty() && rounds < 400 {
        rounds += 1;
        if rounds % 20 == 1 {
            for (from, to) in [(0, 1), (1, 0)] {
                let len = [0, 100, 2000][rounds / 20 % 3];
                program.receive(Receive { from: Some(from), ..Receive::tagged(to, 7, len) });
                program.send(Send::tagged(from, to, 7, len));
            }
        }
        match input.byte() % 8 {
            0..=3 => attack(&mut input, &mut program.mesh, &window),
            4 | 5 => operate(&mut input, &mut program, &mut open, &window),
            _ => {
                let node = usize::from(input.byte() % 3);
                program.mesh.poll(node, 3);
            }
        }
        for _ in 0..input.byte() % 4 {
            program.mesh.step();
        }
        open.take_events(&mut program);
        check_memory(&program, &settings);
    }
    end(program, open);
}

/// The hostile node ends: all operations with it end, and nothing is left of it.
fn end(mut program: Program, mut open: Open) {
    program.mesh.settle();
    open.take_events(&mut program);
    assert_eq!(program.open(), (0, 0), "messages between other nodes");
    program.mesh.kill(HOSTILE, false);
    program.mesh.settle();
    for context in open.contexts.clone() {
        program.mesh.with(0, |endpoint, port, _| endpoint.cancel(port, context));
    }
    program.mesh.settle();
    open.take_events(&mut program);
    assert!(open.contexts.is_empty(), "{:?} do not end", open.contexts);
    assert_eq!(program.mesh.nodes[0].endpoint().open_operations(), 0);
    audit(&mut program.mesh);
    close(&mut program.mesh);
}

fn check_memory(program: &Program, settings: &Settings) {
    let endpoint = program.mesh.nodes[0].endpoint();
    assert!(endpoint.counters().unexpected_bytes <= 3 * u64::from(settings.unexpected));
    let messages = endpoint.unexpected_messages() as u64;
    assert!(messages <= 3 * u64::from(settings.unexpected / 64 + settings.announced), "{messages} messages wait");
    for peer in &endpoint.peers {
        // Answers to what it has asked, and answers that the program's own receives make.
        let most = 3 * usize::from(settings.receive_slots) + endpoint.open_operations();
        assert!(peer.answers.len() <= most, "{} answers wait", peer.answers.len());
    }
}

/// The hostile node sends something.
fn attack(input: &mut Input<'_>, mesh: &mut Mesh, window: &Window) {
    match input.byte() % 16 {
        0 => {
            let hello = Hello {
                name: name(input.choose(&[HOSTILE, HOSTILE, HOSTILE, 0])),
                receives: input.choose(&[4, 32, u16::MAX]),
                slot: input.choose(&[256, 1024, u32::MAX]),
                unexpected: input.word() as u32,
                announced: input.choose(&[0, 10, u32::MAX]),
            };
            mesh.raw_connect(HOSTILE, 0, hello);
        }
        1 => {
            let bytes: Vec<u8> = (0..input.byte()).map(|_| input.byte()).collect();
            mesh.raw_send(HOSTILE, &bytes);
        }
        2 => {
            let immediate = input.choose(&[None, Some(5)]);
            let len = usize::from(input.byte());
            mesh.raw_write(HOSTILE, &vec![1; len], window.addr, window.key, immediate);
        }
        _ => {
            let bytes = message(input, window);
            for _ in 0..=input.choose(&[0, 0, 0, 0, 1, 40]) {
                if !mesh.raw_send(HOSTILE, &bytes) {
                    let hello = mesh.nodes[HOSTILE].raw_hello(name(HOSTILE));
                    mesh.raw_connect(HOSTILE, 0, hello);
                    mesh.settle();
                }
            }
        }
    }
}

fn message(input: &mut Input<'_>, window: &Window) -> Vec<u8> {
    let envelope = Envelope { tag: input.tag(), data: input.tag() };
    let payload = &[3; 1 << 13][..usize::from(input.byte()) * input.choose(&[0, 1, 1, 1, 4])];
    let message = match input.byte() % 11 {
        0 | 1 => Message::Eager { envelope, len: input.choose(&[payload.len() as u32, 700, 3000, u32::MAX]), payload },
        2 => Message::More { payload },
        3 => Message::Announce { envelope, len: input.len(), id: input.id(), source: remote(input, window) },
        4 => Message::Grant { id: input.id(), receiver: input.id(), len: input.len(), target: remote(input, window) },
        5 => Message::Payload { receiver: input.id(), payload },
        6 => Message::Written { receiver: input.id() },
        7 => Message::Finished { id: input.id() },
        8 => Message::Credit,
        9 => {
            let request = AtomicRequest {
                kind: input.choose(&[AtomicKind::Plain, AtomicKind::Fetch, AtomicKind::Compare]),
                operator: input.choose(Operator::ALL),
                datatype: input.choose(Datatype::ALL),
                target: remote(input, window),
            };
            Message::Atomic { id: input.id(), request, payload }
        }
        _ => Message::AtomicDone { id: input.id(), refused: input.byte().is_multiple_of(2), payload },
    };
    let mut bytes = vec![0; LONGEST_HEADER];
    let returned = Returned {
        credits: input.choose(&[0, 1, 1, 3, u16::MAX]),
        waited: input.choose(&[false, true]),
        consumed: input.len() as u32,
    };
    let len = message.emit(returned, &mut bytes);
    bytes.truncate(len);
    bytes.extend(payload);
    // Longer than the receive, sometimes.
    bytes.truncate(input.choose(&[256, 256, 256, 8192]));
    bytes
}

fn remote(input: &mut Input<'_>, window: &Window) -> RemoteBuffer {
    let mut buffer = RemoteBuffer::default();
    for _ in 0..input.byte() % 5 {
        let addr = match input.byte() % 4 {
            0 => input.word(),
            1 => u64::MAX - u64::from(input.byte()),
            _ => window.addr + u64::from(input.byte()),
        };
        let rkey = input.choose(&[window.key, window.key, window.key + 1, 1]);
        let len = input.len();
        buffer.push(Remote { addr, len, rkey });
    }
    buffer
}

/// Node 0 wants something of the hostile node.
fn operate(input: &mut Input<'_>, program: &mut Program, open: &mut Open, window: &Window) {
    if open.contexts.len() > 100 || open.next > 250 {
        return;
    }
    let to = program.peer(0, HOSTILE);
    let len = input.choose(&[0, 10, 500, 2000]);
    let buffer = program.buffer(0, len, 1 + usize::from(input.byte() % 3));
    let tag = input.tag();
    match input.byte() % 8 {
        0 | 1 => {
            let (context, matched) = (open.begin(), input.byte() & 3 == 0);
            let envelope = Envelope { tag, data: None };
            let call = SendCall { to, envelope, buffer, matched, context, report: true };
            program.mesh.with(0, |endpoint, port, now| endpoint.send(port, now, &call));
        }
        2..=4 => {
            let context = open.begin();
            let multi = input.choose(&[None, None, Some(100)]);
            if multi.is_some() {
                open.multi.insert(context);
            }
            let pattern = Pattern { tag: tag.unwrap_or(0), ignore: input.choose(&[0, u64::MAX]), from: Some(to) };
            let call = ReceiveCall { tagged: tag.is_some(), pattern, buffer, multi, context, report: true };
            let done = program.mesh.with(0, |endpoint, port, now| match (multi, input.byte() % 4) {
                (None, 0) => endpoint.discard(port, now, &call, false),
                (None, 1) => {
                    endpoint.peek(call.tagged, &call.pattern, Some(context)).is_some()
                        && endpoint.receive_claimed(port, now, &call)
                }
                _ => {
                    endpoint.receive(port, now, &call);
                    true
                }
            });
            if !done {
                open.contexts.remove(&context);
            }
        }
        5 => {
            let (context, write) = (open.begin(), input.byte().is_multiple_of(2));
            let immediate = input.choose(&[None, Some(1)]).filter(|_| write);
            let remote = Remote { addr: window.addr, len, rkey: 1 };
            let call = RmaCall { to, write, local: buffer, remote, immediate, context, report: true };
            program.mesh.with(0, |endpoint, port, now| endpoint.rma(port, now, &call));
        }
        _ => {
            let context = open.begin();
            let (mut target, eight) = (RemoteBuffer::default(), program.buffer(0, 8, 1));
            target.push(Remote { addr: window.addr, len: 8, rkey: 1 });
            let call = AtomicCall {
                to,
                kind: AtomicKind::Fetch,
                operator: Operator::Sum,
                datatype: Datatype::U64,
                target,
                operand: eight,
                compare: Buffer::default(),
                result: program.buffer(0, 8, 1),
                context,
                report: true,
            };
            program.mesh.with(0, |endpoint, port, now| endpoint.atomic(port, now, &call));
        }
    }
}
