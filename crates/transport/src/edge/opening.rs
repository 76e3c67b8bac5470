//! How two processes agree on a connection: the exchange of hellos.
//!
//! ```text
//! ask(a) ──▶            A asks with its numbers.
//!        ◀── answer+ask B answers, and asks with numbers that follow from a: B keeps nothing yet.
//! answer ──▶            Both have agreed.
//! ```
//!
//! The side that asks repeats that until the peer shows that it has agreed. A side that asks answers with the numbers that it
//! asks with: so two sides that ask at the same time agree on one connection. A side that has agreed goes on with that
//! until another process answers its nonce: a hello alone, which may be forged, changes nothing.

use super::pairing::{Pair, pairs};
use crate::Instant;
use crate::attempts::{ATTEMPTS, TRIES};
use weir_wire::edge::{Address, Hello, Seq};

/// What a side begins a connection with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// What the peer must repeat; not 0.
    pub nonce: u64,
    /// This side's number of the connection.
    pub connection: u32,
    /// This side's first packet.
    pub first: Seq,
}

/// What hellos say of this side.
#[derive(Clone, Copy, Debug)]
pub struct Own<'a> {
    pub addresses: &'a [Address],
    /// See [`Hello`].
    pub lists_all: bool,
    /// See [`Hello`].
    pub pieces: bool,
    /// True on one of the two sides.
    pub is_first: bool,
}

/// What this side knows of a peer.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    asking: Option<Asking>,
    agreed: Option<(Numbers, u32)>,
    is_absent: bool,
}

#[derive(Clone, Copy, Debug)]
struct Asking {
    numbers: Numbers,
    tries: u32,
    next: Option<Instant>,
}

/// A new connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Of this side.
    pub numbers: Numbers,
    /// The peer's number of the connection, and its first packet.
    pub peer: u32,
    pub first: Seq,
    /// May be empty.
    pub links: Vec<Pair>,
}

/// What comes of a hello.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// To be sent to where the hello came from.
    pub reply: Option<Hello>,
    /// A connection begins, in place of an earlier one.
    pub agreed: Option<Agreed>,
    /// The peer refuses, and is not asked any more.
    pub refused: bool,
}

impl Opening {
    /// Asks the peer, unless it is being asked. `numbers`: new ones, at random; not used if there is a connection, which is
    /// doubted then.
    pub fn ask(&mut self, now: Instant, numbers: impl FnOnce() -> Numbers) {
        if self.asking.is_none_or(|asking| asking.next.is_none()) {
            let numbers = self.agreed.map_or_else(numbers, |(numbers, _)| numbers);
            self.asking = Some(Asking { numbers, tries: 0, next: Some(now) });
            self.is_absent = false;
        }
    }

    /// The question, if it is due.
    pub fn poll(&mut self, now: Instant, own: &Own<'_>) -> Option<Hello> {
        let asking = self.asking.as_mut().filter(|asking| asking.next.is_some_and(|next| next <= now))?;
        asking.next = ATTEMPTS.get(asking.tries as usize).map(|wait| now + *wait);
        asking.tries += 1;
        let numbers = asking.numbers;
        self.is_absent = asking.tries > TRIES && self.agreed.is_none();
        Some(hello(own, &numbers, numbers.nonce, 0))
    }

    /// When `poll` is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.asking?.next
    }

    /// Whether there is a connection.
    pub fn has_agreed(&self) -> bool {
        self.agreed.is_some()
    }

    /// Whether the peer has shown that it has agreed too, and is not in doubt. Questions that it did not answer show nothing.
    pub fn is_confirmed(&self) -> bool {
        self.agreed.is_some() && self.asking.is_none()
    }

    /// Whether the peer has not answered for long.
    pub fn is_absent(&self) -> bool {
        self.is_absent
    }

    /// Whether there is no connection, and the peer is not asked any more.
    pub fn is_blank(&self) -> bool {
        self.poll_timeout().is_none() && self.agreed.is_none()
    }

    /// A packet of the connection has come: the peer has agreed.
    pub fn confirm(&mut self) {
        self.asking = None;
    }

    /// The connection ends.
    pub fn forget(&mut self) {
        (self.asking, self.agreed) = (None, None);
    }

    /// A hello has come. `derive`: this side's numbers for a process that asks with this number of a connection; the same for the
    /// same number, as long as no connection has ended since.
    pub fn handle(&mut self, hello: &Hello, own: &Own<'_>, derive: impl Fn(u32) -> Numbers) -> Outcome {
        if hello.unknown {
            return Outcome::default();
        }
        let peer = hello.connection;
        let asked = self.asking.map(|asking| asking.numbers);
        let known = self.agreed.filter(|(_, agreed)| *agreed == peer).map(|(numbers, _)| numbers);
        if hello.refuses {
            let refused = asked.is_some_and(|asked| hello.answer == asked.nonce) && self.agreed.is_none();
            if refused {
                (self.asking, self.is_absent) = (None, true);
            }
            return Outcome { refused, ..Outcome::default() };
        }
        let mine = |numbers: &Numbers| hello.answer == numbers.nonce && hello.answer != 0;
        let mut agreed = None;
        if known.is_none()
            && let Some(numbers) = asked.or_else(|| Some(derive(peer))).filter(mine)
        {
            self.agreed = Some((numbers, peer));
            self.is_absent = false;
            // The side that was asked knows by now that the peer has agreed.
            self.asking = self.asking.filter(|_| asked.is_some());
            let links = pairs(&self::hello(own, &numbers, 0, 0), hello, own.is_first);
            agreed = Some(Agreed { numbers, peer, first: hello.first, links });
        }
        if hello.ask == 0 && self.agreed.is_some_and(|(numbers, agreed)| agreed == peer && mine(&numbers)) {
            self.asking = None;
        }
        let reply = (hello.ask != 0).then(|| {
            let current = self.agreed.filter(|(_, agreed)| *agreed == peer).map(|(numbers, _)| numbers);
            let numbers = current.or(asked).unwrap_or_else(|| derive(peer));
            self::hello(own, &numbers, if current.is_some() { 0 } else { numbers.nonce }, hello.ask)
        });
        Outcome { reply, agreed, refused: false }
    }
}

impl Agreed {
    /// Tells the peer that the connection ends. It is sent once: a peer that does not get it notices the silence.
    pub fn farewell(&self, own: &Own<'_>) -> Hello {
        let answer = proof(self.peer, self.first);
        Hello { refuses: true, addresses: vec![], ..hello(own, &self.numbers, 0, answer) }
    }

    /// Whether the peer tells that the connection ends. A sender that has not seen its hellos cannot.
    pub fn is_farewell(&self, hello: &Hello) -> bool {
        let is_of_peer = (hello.connection, hello.first) == (self.peer, self.first);
        hello.refuses && is_of_peer && hello.answer == proof(self.numbers.connection, self.numbers.first)
    }
}

/// What only a side of the connection can say: the numbers of the other.
fn proof(connection: u32, first: Seq) -> u64 {
    u64::from(connection) << 32 | u64::from(first.0)
}

impl Own<'_> {
    /// Refuses what a hello asks for.
    pub fn refusal(&self, of: &Hello) -> Hello {
        let numbers = Numbers { nonce: 0, connection: 0, first: Seq(0) };
        Hello { refuses: true, addresses: vec![], ..hello(self, &numbers, 0, of.ask) }
    }
}

fn hello(own: &Own<'_>, numbers: &Numbers, ask: u64, answer: u64) -> Hello {
    Hello {
        ask,
        answer,
        connection: numbers.connection,
        first: numbers.first,
        lists_all: own.lists_all,
        pieces: own.pieces,
        addresses: own.addresses.to_vec(),
        ..Hello::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;
    use std::time::Duration;

    /// A process that asks and answers.
    struct Side {
        opening: Opening,
        /// Changes with each process and each connection that ends.
        secret: u64,
        is_first: bool,
        connection: Option<Agreed>,
        made: u32,
    }

    fn mix(a: u64, b: u64) -> u64 {
        Rng(a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b).below(u64::MAX)
    }

    fn numbers(secret: u64, n: u64) -> Numbers {
        let random = mix(secret, n);
        Numbers { nonce: random | 1, connection: mix(random, 1) as u32, first: Seq(mix(random, 2) as u32) }
    }

    impl Side {
        fn new(secret: u64, is_first: bool) -> Side {
            Side { opening: Opening::default(), secret, is_first, connection: None, made: 0 }
        }

        fn own(&self) -> Own<'static> {
            Own { addresses: &[], lists_all: false, pieces: false, is_first: self.is_first }
        }

        fn ask(&mut self, now: Instant) {
            self.made += 1;
            let (secret, n) = (self.secret, u64::from(self.made) << 40);
            self.opening.ask(now, || numbers(secret, n));
        }

        fn poll(&mut self, now: Instant) -> Option<Hello> {
            let own = self.own();
            self.opening.poll(now, &own)
        }

        fn handle(&mut self, hello: &Hello) -> Option<Hello> {
            let (own, secret) = (self.own(), self.secret);
            let outcome = self.opening.handle(hello, &own, |peer| numbers(secret, u64::from(peer)));
            if let Some(agreed) = outcome.agreed {
                self.connection = Some(agreed);
            }
            outcome.reply
        }

        fn numbers(&self) -> Option<(u32, u32, Seq, Seq)> {
            let Agreed { numbers, peer, first, .. } = self.connection.as_ref()?;
            Some((numbers.connection, *peer, numbers.first, *first))
        }
    }

    fn agree(a: &Side, b: &Side) -> bool {
        a.numbers().is_some() && a.numbers().map(|(a, b, x, y)| (b, a, y, x)) == b.numbers()
    }

    #[test]
    fn three_hellos_make_a_connection() {
        let (mut a, mut b) = (Side::new(1, true), Side::new(2, false));
        a.ask(Instant(0));
        let ask = a.poll(Instant(0)).unwrap();
        let answer = b.handle(&ask).unwrap();
        assert!(b.opening.is_blank(), "a process that was asked keeps nothing");
        let last = a.handle(&answer).unwrap();
        assert_eq!(b.handle(&last), None);
        assert!(agree(&a, &b));
        // The answer may be lost: the question is repeated until the peer shows that it knows.
        let again = a.poll(a.opening.poll_timeout().unwrap()).unwrap();
        let answer = b.handle(&again).unwrap();
        assert_eq!((answer.ask, a.handle(&answer), a.opening.poll_timeout()), (0, None, None));
        assert!(agree(&a, &b));
    }

    #[test]
    fn forged_hellos_change_nothing() {
        let (mut a, mut b) = (Side::new(1, true), Side::new(2, false));
        a.ask(Instant(0));
        let ask = a.poll(Instant(0)).unwrap();
        let forged = Hello { answer: ask.ask ^ 1, connection: 9, ..ask.clone() };
        a.handle(&forged);
        assert!(a.connection.is_none());
        let last = b.handle(&ask).and_then(|answer| a.handle(&answer)).unwrap();
        b.handle(&last);
        let before = a.numbers();
        for ask in [0, 5] {
            let reply = b.handle(&Hello { connection: 77, ask, answer: 3, ..forged.clone() });
            assert_eq!(reply.is_some(), ask != 0);
            assert!(agree(&a, &b) && a.numbers() == before);
        }
    }

    #[test]
    fn a_farewell_is_of_one_connection_and_its_peer() {
        let (mut a, mut b) = (Side::new(1, true), Side::new(2, false));
        a.ask(Instant(0));
        let ask = a.poll(Instant(0)).unwrap();
        let last = b.handle(&ask).and_then(|answer| a.handle(&answer)).unwrap();
        b.handle(&last);
        let (of_a, of_b) = (a.connection.clone().unwrap(), b.connection.clone().unwrap());
        let farewell = Hello::decode(&of_a.farewell(&a.own()).encode()).unwrap();
        assert!(of_b.is_farewell(&farewell) && !of_a.is_farewell(&farewell) && !of_b.is_farewell(&last));
        for wrong in [
            Hello { answer: farewell.answer ^ 1, ..farewell.clone() },
            Hello { answer: farewell.answer ^ 1 << 32, ..farewell.clone() },
            Hello { connection: farewell.connection ^ 1, ..farewell.clone() },
            Hello { first: farewell.first.next(), ..farewell.clone() },
            Hello { refuses: false, ..farewell },
        ] {
            assert!(!of_b.is_farewell(&wrong));
        }
        assert!(!b.opening.handle(&of_a.farewell(&a.own()), &a.own(), |_| unreachable!()).refused);
    }

    #[test]
    fn a_peer_that_refuses_is_asked_no_more() {
        let (mut a, b) = (Side::new(1, true), Side::new(2, false));
        a.ask(Instant(0));
        let ask = a.poll(Instant(0)).unwrap();
        let refusal = b.own().refusal(&ask);
        let own = a.own();
        let outcome = a.opening.handle(&refusal, &own, |_| unreachable!("it is no question"));
        assert!(outcome.refused && a.opening.is_absent() && a.opening.poll_timeout().is_none());
    }

    #[test]
    fn a_peer_that_does_not_answer_is_absent() {
        let mut a = Side::new(1, true);
        a.ask(Instant(0));
        let (mut asked, mut absent_at) = (0, None);
        while let Some(next) = a.opening.poll_timeout() {
            a.poll(next).unwrap();
            asked += 1;
            if a.opening.is_absent() {
                absent_at.get_or_insert(next);
            }
        }
        assert_eq!((asked, absent_at), (11, Some(Instant(63_000_000))));
    }

    /// Hellos are lost and late, both sides ask, and processes end: at last both agree.
    #[test]
    fn both_sides_agree_at_last() {
        for seed in 0..2000 {
            let mut rng = Rng(seed);
            let mut sides = [Side::new(1, true), Side::new(2, false)];
            let mut flying: Vec<(Instant, usize, Hello)> = vec![];
            let (mut now, loss) = (Instant(0), rng.below(3) as f64 / 10.0);
            for round in 0..rng.below(6) + 1 {
                match rng.below(4) {
                    0 => sides[rng.below(2) as usize] = Side::new(100 + round, false),
                    1 => {
                        let side = &mut sides[rng.below(2) as usize];
                        side.opening.forget();
                        (side.connection, side.secret) = (None, side.secret + 1000);
                    }
                    _ => {}
                }
                (sides[0].is_first, sides[1].is_first) = (true, false);
                // Packets for a connection that a side does not know make the other side ask.
                let [a, b] = [rng.chance(0.7), rng.chance(0.7)];
                for (n, asks) in [a, b || !a].into_iter().enumerate() {
                    if asks {
                        sides[n].ask(now);
                    }
                }
                let end = now + Duration::from_secs(10);
                loop {
                    let arrival = flying.iter().map(|(at, ..)| *at).min();
                    let polls = sides.iter().filter_map(|side| side.opening.poll_timeout());
                    let Some(next) = polls.chain(arrival).min().filter(|next| *next <= end) else { break };
                    now = now.max(next);
                    let mut out = vec![];
                    for (n, side) in sides.iter_mut().enumerate() {
                        out.extend(side.poll(now).map(|hello| (1 - n, hello)));
                    }
                    while let Some(k) = flying.iter().position(|(at, ..)| *at <= now) {
                        let (_, to, hello) = flying.swap_remove(k);
                        out.extend(sides[to].handle(&hello).map(|reply| (1 - to, reply)));
                    }
                    for (to, hello) in out {
                        if !rng.chance(loss) {
                            let most = if rng.chance(0.2) { 3_000_000 } else { 100_000 };
                            let late = 20_000 + rng.below(most);
                            flying.push((now + Duration::from_nanos(late), to, hello));
                        }
                    }
                }
            }
            assert!(agree(&sides[0], &sides[1]), "seed {seed}: {:?} {:?}", sides[0].numbers(), sides[1].numbers());
        }
    }
}
