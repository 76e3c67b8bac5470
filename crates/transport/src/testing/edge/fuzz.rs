//! The body of a fuzz target: a hostile peer over several links.
//!
//! The input bytes choose operations of this side, times, and packets that are almost right: numbers near the window's
//! ends, orders, counts, acknowledgements, pieces.

use super::endpoints::TestMemory;
use crate::Instant;
use crate::edge::{
    Ack, Action, Endpoint, Flags, Header, Kind, Operation, Order, Parameters, Piece, Scheduler, Seq, Setup,
};
use std::time::Duration;
use weir_trials::Input;
use weir_wire::edge::{Heard, MAX_ACK_LEN, MAX_HEADER_LEN, PIECE_LEN};

const WINDOW: u32 = 16;
const MEMORY: usize = 4096;
const LINKS: usize = 3;
/// Times at which something is due without that time passes.
const MOST_AT_ONCE: u32 = 100;

/// One side, and what its peer would know of it.
struct Victim {
    endpoint: Endpoint<Vec<u8>>,
    memory: TestMemory,
    now: Instant,
    /// The number after the latest packet of this side.
    next: Seq,
    /// What this side says has arrived.
    received: Seq,
}

impl Victim {
    fn send(&mut self) {
        let (next, received) = (&mut self.next, &mut self.received);
        self.endpoint.transmit(self.now, &mut self.memory, |(header, ack, carried)| {
            let mut bytes = [0; MAX_HEADER_LEN + MAX_ACK_LEN + PIECE_LEN];
            let piece = carried.map(|(piece, _)| piece);
            let len = header.emit(ack, piece.as_ref(), &mut bytes);
            let mut heard = Ack::default();
            let whole = len + piece.map_or(0, |piece| piece.payload() as usize);
            let parsed = Header::parse_start(&bytes[..len], whole, &mut heard).expect("this side keeps to the format");
            assert_eq!((parsed.header, parsed.piece), (header, piece));
            assert!(usize::from(header.link) < LINKS, "there is no such link");
            *received = header.received.unwrap_or(*received);
            if let Some((seq, _)) = header.packet.filter(|(seq, _)| !seq.before(*next)) {
                *next = seq.next();
            }
        });
        while self.endpoint.poll_event().is_some() {}
    }

    fn wait(&mut self, until: Instant) {
        let mut at_once = 0;
        while let Some(due) = self.endpoint.poll_timeout().filter(|due| *due <= until) {
            at_once = if due > self.now { 0 } else { at_once + 1 };
            assert!(at_once < MOST_AT_ONCE, "{due:?} is due again and again");
            self.now = self.now.max(due);
            self.endpoint.handle_timeout(self.now);
            self.send();
        }
        self.now = self.now.max(until);
    }
}

fn near(input: &mut Input<'_>, seq: Seq) -> Seq {
    match input.byte() % 8 {
        0 => Seq(input.word()),
        1 => seq.plus(WINDOW),
        2 => seq.minus(1),
        _ => seq.plus(u32::from(input.byte()) % (WINDOW + 4)),
    }
}

fn address(input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0 => u64::from(input.word()) << 32 | u64::from(input.word()),
        1 => u64::MAX - u64::from(input.byte()),
        2 => TestMemory::BASE + MEMORY as u64 - u64::from(input.byte()),
        _ => TestMemory::BASE + u64::from(input.byte()) * 8,
    }
}

fn length(input: &mut Input<'_>) -> u32 {
    match input.byte() % 8 {
        0 => input.word(),
        1 => 0,
        _ => u32::from(input.byte()),
    }
}

fn piece(input: &mut Input<'_>) -> Piece {
    let number = if input.byte().is_multiple_of(4) { input.word() } else { u32::from(input.byte() % 8) };
    let action = match input.byte() % 8 {
        0 => Action::Abandon,
        1 => Action::WriteFailed,
        2 => Action::Read { address: address(input) },
        3 => Action::Response,
        4 => Action::ReadFailed,
        _ => Action::Write { address: address(input), total: length(input), notify: input.byte().is_multiple_of(2) },
    };
    Piece { number, action, offset: length(input), bytes: length(input) }
}

fn ack(input: &mut Input<'_>, next: Seq) -> Ack {
    let heard = |input: &mut Input<'_>, link| {
        let newest = if input.byte().is_multiple_of(4) { input.word() } else { u32::from(input.byte()) };
        Heard { link, newest, held: u64::from(input.byte()) << (input.byte() % 40), delay: input.word() }
    };
    let links = input.byte() % 6;
    Ack {
        performed: near(input, next.minus(WINDOW)),
        failures: u32::from(input.byte() % 4),
        heard: (0..links).map(|link| heard(input, link)).collect(),
        bitmap: (0..input.byte() % 4).map(|_| input.word()).collect(),
    }
}

/// Lets a hostile peer talk to a side of MultiEdge. Panics if something is wrong.
pub fn edge(bytes: &[u8]) {
    let mut parsed = Ack::default();
    _ = Header::parse(bytes, &mut parsed);
    let mut input = Input(bytes);
    let scheduler = Scheduler::ALL[usize::from(input.byte() % 4)];
    let parameters = if input.byte().is_multiple_of(2) { Parameters::TUNED } else { Parameters::MULTIEDGE };
    let first = [Seq(input.word()), Seq(input.word())];
    let setup = Setup { parameters: Parameters { window: WINDOW, ..parameters }, scheduler, peer: 7, first };
    let mut victim = Victim {
        endpoint: Endpoint::new(setup, &[1, 2, 3][..LINKS], 64),
        memory: TestMemory { bytes: vec![0; MEMORY], accesses: vec![] },
        now: Instant(1),
        next: first[0],
        received: first[1],
    };
    while !input.is_empty() {
        match input.byte() % 8 {
            0 => {
                let kind = if input.byte().is_multiple_of(2) { Kind::Read } else { Kind::Write };
                let flags = Flags::from_bits_truncate(u32::from(input.byte()));
                let (remote, local, bytes) = (address(&mut input), address(&mut input), length(&mut input) % 100_000);
                victim.endpoint.issue(Operation { kind, remote, local, bytes, flags });
            }
            1 => {
                let until = victim.now + Duration::from_micros(u64::from(input.byte()) << (input.byte() % 12));
                victim.wait(until);
            }
            2 => {
                victim.endpoint.set_link(victim.now, usize::from(input.byte()) % LINKS, input.byte().is_multiple_of(2))
            }
            _ => {
                let seq = near(&mut input, victim.received);
                let before = seq.minus(WINDOW);
                let order = match input.byte() % 4 {
                    0 => Order::AfterOne(near(&mut input, before)),
                    1 => Order::AfterAll(near(&mut input, before)),
                    _ => Order::Any,
                };
                let packet = (!input.byte().is_multiple_of(8)).then_some((seq, order));
                let header = Header {
                    connection: 7,
                    link: if input.byte().is_multiple_of(8) { input.byte() } else { input.byte() % LINKS as u8 },
                    count: if input.byte().is_multiple_of(4) { input.word() } else { u32::from(input.byte()) },
                    packet,
                    received: (!input.byte().is_multiple_of(8)).then(|| near(&mut input, victim.next.minus(WINDOW))),
                    sent: u32::from(input.byte()) << (input.byte() % 32),
                    asks: input.byte().is_multiple_of(4),
                };
                let ack = input.byte().is_multiple_of(2).then(|| ack(&mut input, victim.next));
                let piece = (input.byte() % 16 > 0 && packet.is_some()).then(|| piece(&mut input));
                let payload = vec![1; piece.map_or(0, |piece| piece.bytes as usize % 200)];
                _ = victim.endpoint.handle(victim.now, (&header, ack.as_ref()), piece, |_| payload, &mut victim.memory);
            }
        }
        victim.send();
    }
    victim.wait(victim.now + Duration::from_secs(1));
}
