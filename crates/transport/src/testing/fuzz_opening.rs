//! The body of the fuzz target `opening`: hellos of a third host while two processes agree on a connection.

use super::rng::Rng;
use crate::Instant;
use crate::edge::{Agreed, Numbers, Opening, Own};
use std::time::Duration;
use weir_trials::Input;
use weir_wire::edge::{Address, Hello, MAX_LINKS, Seq};

/// A process that asks and answers.
struct Side {
    opening: Opening,
    secret: u64,
    is_first: bool,
    addresses: Vec<Address>,
    connection: Option<Agreed>,
    asked: Vec<u64>,
}

/// Any hellos from a host that does not see those of the two sides: they begin no connection and end none, each gets an
/// answer at most, and the sides agree at last.
pub fn opening(data: &[u8]) {
    decode(data);
    let mut input = Input(data);
    let mut now = Instant(0);
    let mut sides = [side(1, true), side(2, false)];
    let mut flying: Vec<(usize, Hello)> = vec![];
    for _ in 0..256 {
        if input.is_empty() {
            break;
        }
        let what = input.byte();
        let n = usize::from(what >> 7);
        match what % 8 {
            0 => now = now + Duration::from_millis(u64::from(input.byte())),
            1 => sides[n].ask(now),
            // The network loses a hello.
            2 => drop(flying.pop()),
            3 => exchange(&mut sides, &mut flying, now),
            _ => {
                let hello = forged(&mut input, &sides[n]);
                let (before, confirmed) = (sides[n].connection.clone(), sides[n].opening.is_confirmed());
                let refused = sides[n].handle(&hello).1;
                assert!(sides[n].connection == before && !refused, "a forged hello was used: {hello:?}");
                assert_eq!(sides[n].opening.is_confirmed(), confirmed);
            }
        }
        flying.truncate(64);
    }
    sides[0].ask(now);
    for _ in 0..64 {
        exchange(&mut sides, &mut flying, now);
        now = now + Duration::from_millis(200);
    }
    let numbers = |side: &Side| side.connection.as_ref().map(|agreed| (agreed.numbers.connection, agreed.peer));
    let [a, b] = [&sides[0], &sides[1]].map(numbers);
    assert!(a.is_some() && a == b.map(|(own, peer)| (peer, own)), "the sides do not agree: {a:?} {b:?}");
}

/// Each side's questions, and what is on its way, arrive.
fn exchange(sides: &mut [Side; 2], flying: &mut Vec<(usize, Hello)>, now: Instant) {
    for (n, side) in sides.iter_mut().enumerate() {
        flying.extend(side.poll(now).map(|hello| (1 - n, hello)));
    }
    for _ in 0..200 {
        let Some((to, hello)) = flying.pop() else { return };
        let (reply, _) = sides[to].handle(&hello);
        flying.extend(reply.map(|reply| (1 - to, reply)));
    }
    panic!("hellos without an end");
}

/// A hello of a host that knows all but the nonces.
fn forged(input: &mut Input<'_>, of: &Side) -> Hello {
    let what = input.byte();
    let connection = match (what & 3, &of.connection) {
        (0, Some(agreed)) => agreed.peer,
        (1, _) => input.word(),
        _ => u32::from(input.byte()),
    };
    let answer = match what >> 2 & 3 {
        0 => 0,
        1 => u64::from(input.byte()),
        _ => u64::from(input.word()) << 32 | u64::from(input.word()),
    };
    let own = of.connection.as_ref().map(|agreed| agreed.numbers.nonce);
    let secret = [Some(numbers(of.secret, connection).nonce), own];
    let is_known = secret.contains(&Some(answer)) || of.asked.contains(&answer);
    let addresses = (0..input.byte() % 5).map(|_| address(input)).collect();
    Hello {
        ask: u64::from(input.byte()),
        answer: if is_known { 0 } else { answer },
        connection,
        first: Seq(input.word()),
        lists_all: what & 0x10 != 0,
        pieces: what & 0x20 != 0,
        refuses: what & 0x40 != 0,
        unknown: what & 0x80 != 0,
        addresses,
    }
}

fn address(input: &mut Input<'_>) -> Address {
    let bits = input.byte();
    let (address, most) = if bits & 1 == 0 {
        ([10, 0, bits >> 4, input.byte()].into(), 32)
    } else {
        ([0xfd00, 0, 0, 0, 0, 0, u16::from(bits), u16::from(input.byte())].into(), 128)
    };
    let interface = input.byte() % MAX_LINKS as u8;
    Address { interface, address, prefix: input.byte() % (most + 1), mtu: input.word(), speed: input.word() }
}

/// Bytes with a right check sum are an error, or a hello that encodes to them, if it has room.
fn decode(data: &[u8]) {
    let mut bytes = data.to_vec();
    bytes.extend(crc32fast::hash(data).to_be_bytes());
    let Ok(hello) = Hello::decode(&bytes) else { return };
    let again = hello.encode();
    let kept = Address::fitting(&hello.addresses).len();
    assert!(kept < hello.addresses.len() || again == bytes);
    assert_eq!(Hello::decode(&again).map(|hello| hello.addresses.len()), Ok(kept));
}

fn side(secret: u64, is_first: bool) -> Side {
    let addresses = (0..2).map(|n: u8| Address {
        interface: n,
        address: [10, 0, n, secret as u8].into(),
        prefix: 24,
        mtu: 1500,
        speed: 10_000,
    });
    let addresses = addresses.collect();
    Side { opening: Opening::default(), secret, is_first, addresses, connection: None, asked: vec![] }
}

fn numbers(secret: u64, n: u32) -> Numbers {
    let mut rng = Rng(secret << 32 | u64::from(n));
    Numbers { nonce: rng.draw() | 1, connection: rng.draw() as u32, first: Seq(rng.draw() as u32) }
}

impl Side {
    fn ask(&mut self, now: Instant) {
        let (secret, n) = (self.secret + 100, self.asked.len() as u32);
        let asked = &mut self.asked;
        self.opening.ask(now, || {
            let numbers = numbers(secret, n);
            asked.push(numbers.nonce);
            numbers
        });
    }

    fn poll(&mut self, now: Instant) -> Option<Hello> {
        let own = Own { addresses: &self.addresses, lists_all: false, pieces: false, is_first: self.is_first };
        self.opening.poll(now, &own)
    }

    /// The answer, and whether the peer has refused.
    fn handle(&mut self, hello: &Hello) -> (Option<Hello>, bool) {
        let own = Own { addresses: &self.addresses, lists_all: false, pieces: false, is_first: self.is_first };
        let outcome = self.opening.handle(hello, &own, |peer| numbers(self.secret, peer));
        assert!(hello.ask != 0 || outcome.reply.is_none(), "an answer to no question");
        if let Some(agreed) = outcome.agreed {
            assert!(agreed.links.len() <= MAX_LINKS && agreed.links.iter().all(|link| link.weight() > 0));
            self.connection = Some(agreed);
        }
        (outcome.reply, outcome.refused)
    }
}
