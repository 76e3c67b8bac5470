//! The processes that packets go to: with which of them there is a connection, and how it comes to be.

use super::session::Session;
use crate::interfaces::Interfaces;
use crate::numbers::NumberSource;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{
    Address, Agreed, Hello, MAX_LINKS, Numbers, Opening, Outcome, Own, Pair, Parameters, Scheduler,
};

/// Peers that are remembered, at most. With more, packets go as if there were one link only.
const MOST_PEERS: usize = 1024;
/// From so many on, those are forgotten that got nothing for so long.
const FEW_PEERS: usize = 64;
const QUIET: Duration = Duration::from_secs(60);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Answers that are remembered.
const MOST_ANSWERED: usize = 64;
/// A packet for an unknown connection is answered at most so often.
const UNKNOWN_EVERY: Duration = Duration::from_millis(1);

/// A peer as QPs know it: this side's address, and the peer's, with its port.
pub(super) type Key = (IpAddr, SocketAddr);

/// A process that packets go to.
#[derive(Default)]
pub(super) struct Peer {
    pub key: Option<Key>,
    pub opening: Opening,
    pub session: Option<Session>,
    /// It is in [`Peers::touched`].
    is_touched: bool,
    /// A question is due not before, nor is something of the connection; as in `Peers::due`.
    due: Option<Instant>,
}

/// All of them.
pub(super) struct Peers {
    pub all: Vec<Peer>,
    /// Those with which something has happened since `renew_due`.
    pub touched: Vec<usize>,
    due: BTreeSet<(Instant, usize)>,
    by_key: HashMap<Key, usize>,
    /// By this side's number of the connection.
    by_connection: HashMap<u32, usize>,
    free: Vec<usize>,
    /// Bytes that connections that have ended had put on each interface.
    pub ended_bytes: [u64; MAX_LINKS],
    interfaces: Interfaces,
    addresses: Vec<Address>,
    parameters: Parameters,
    scheduler: Scheduler,
    port: u16,
    is_control: fn(&[u8]) -> bool,
    numbers: NumberSource,
    told_unknown: Instant,
    sweep_at: usize,
    swept: Instant,
    /// What was answered lately to processes that asked, oldest first.
    answered: VecDeque<(Key, Numbers)>,
}

impl Peers {
    pub fn new(
        interfaces: Interfaces,
        (parameters, scheduler): (Parameters, Scheduler),
        port: u16,
        is_control: fn(&[u8]) -> bool,
    ) -> io::Result<Peers> {
        let numbers = NumberSource::new().map_err(|_| io::Error::from_raw_os_error(libc::EAGAIN))?;
        Ok(Peers {
            all: vec![],
            touched: vec![],
            due: BTreeSet::new(),
            by_key: HashMap::new(),
            by_connection: HashMap::new(),
            free: vec![],
            ended_bytes: [0; MAX_LINKS],
            addresses: interfaces.addresses(),
            interfaces,
            parameters,
            scheduler,
            port,
            is_control,
            numbers,
            told_unknown: Instant(0),
            sweep_at: FEW_PEERS,
            swept: Instant(0),
            answered: VecDeque::new(),
        })
    }

    /// The peer of a key, made if there is none. `None`: there are too many.
    pub fn entry(&mut self, key: Key, now: Instant) -> Option<usize> {
        if let Some(n) = self.by_key.get(&key) {
            return Some(*n);
        }
        if !self.make_room(now) {
            return None;
        }
        let n = self.free.pop().unwrap_or_else(|| {
            self.all.push(Peer::default());
            self.all.len() - 1
        });
        let Peer { is_touched, due, .. } = self.all[n];
        self.all[n] = Peer { key: Some(key), is_touched, due, ..Peer::default() };
        self.by_key.insert(key, n);
        Some(n)
    }

    /// The peer with which this side gave a connection this number.
    pub fn of_connection(&self, connection: u32) -> Option<usize> {
        self.by_connection.get(&connection).copied()
    }

    /// Asks a peer for a connection, unless it is being asked.
    pub fn ask(&mut self, n: usize, now: Instant) {
        let Some(key) = self.all[n].key else { return };
        self.touch(n);
        // A peer that has just asked gets the numbers that it has been answered: both questions lead to one connection.
        let answered = self.answered.iter().rfind(|(other, _)| *other == key).map(|(_, numbers)| *numbers);
        self.all[n].opening.ask(now, || answered.unwrap_or_else(|| self.numbers.random()));
    }

    /// The question that is due, and where it goes.
    pub fn poll(&mut self, n: usize, now: Instant) -> Option<(Key, Hello)> {
        let key = self.all[n].key?;
        let own = own(&self.addresses, &self.interfaces, self.port, &key);
        Some((key, self.all[n].opening.poll(now, &own)?))
    }

    /// A hello has come; returns the reply.
    pub fn handle(&mut self, key: Key, hello: &Hello, now: Instant) -> Option<Hello> {
        if hello.pieces {
            return None;
        }
        let Some(n) = self.by_key.get(&key).copied() else {
            // Without an answer, the process at the other end goes on as with one link.
            if !self.make_room(now) {
                return None;
            }
            let own = own(&self.addresses, &self.interfaces, self.port, &key);
            // A process that asks for the first time leaves no trace: its address may be forged.
            let mut opening = Opening::default();
            let derive = |peer: u32| self.numbers.derive(&key, peer);
            let Outcome { reply, agreed, .. } = opening.handle(hello, &own, derive);
            if hello.ask != 0 && agreed.is_none() {
                if self.answered.len() >= MOST_ANSWERED {
                    self.answered.pop_front();
                }
                self.answered.push_back((key, derive(hello.connection)));
            }
            if let Some(agreed) = agreed {
                let n = self.entry(key, now)?;
                self.all[n].opening = opening;
                self.begin(n, key, &agreed, now);
            }
            return reply;
        };
        self.touch(n);
        let own = own(&self.addresses, &self.interfaces, self.port, &key);
        let derive = |peer: u32| self.numbers.derive(&key, peer);
        let Outcome { reply, agreed, .. } = self.all[n].opening.handle(hello, &own, derive);
        if let Some(agreed) = agreed {
            self.begin(n, key, &agreed, now);
        }
        reply
    }

    /// A packet has come for a connection that this side does not have: what to answer, if that is not too often.
    pub fn unknown(&mut self, connection: u32, now: Instant) -> Option<Hello> {
        if now - self.told_unknown < UNKNOWN_EVERY {
            return None;
        }
        self.told_unknown = now;
        Some(Hello::unknown(connection))
    }

    /// A process at this address and port does not know a connection: the peer is asked.
    pub fn doubt(&mut self, connection: u32, from: SocketAddr, now: Instant) {
        let fits = |peer: &Peer| peer.session.as_ref().is_some_and(|session| session.leads_to(connection, from));
        if let Some(n) = self.all.iter().position(fits) {
            self.ask(n, now);
        }
    }

    /// The connection to a peer ends.
    pub fn end(&mut self, n: usize) {
        self.all[n].opening.forget();
        self.end_session(n);
    }

    /// Something happens with a peer, which changes when it is due.
    pub fn touch(&mut self, n: usize) {
        if !std::mem::replace(&mut self.all[n].is_touched, true) {
            self.touched.push(n);
        }
    }

    /// A question is due to any peer not before, nor is something of a connection. Each packet defers what is due: the
    /// earlier time stays until it has come, so that packets need not change the set.
    pub fn renew_due(&mut self) -> Option<Instant> {
        for n in self.touched.drain(..) {
            let peer = &mut self.all[n];
            peer.is_touched = false;
            let session = peer.session.as_ref().and_then(Session::due);
            let due = [peer.opening.poll_timeout(), session].into_iter().flatten().min();
            let Some(due) = due.filter(|due| peer.due.is_none_or(|before| *due < before)) else { continue };
            peer.due.replace(due).map(|before| self.due.remove(&(before, n)));
            self.due.insert((due, n));
        }
        self.due.first().map(|(at, _)| *at)
    }

    /// The next peer that may be due, which is touched.
    pub fn take_due(&mut self, now: Instant) -> Option<usize> {
        let (at, n) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, n));
        self.all[n].due = None;
        self.touch(n);
        Some(n)
    }

    /// Whether there is room for another peer; forgets quiet ones if there are many.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.by_key.len() >= self.sweep_at && now - self.swept >= SWEEP_EVERY {
            self.forget_quiet(now);
        }
        self.by_key.len() < MOST_PEERS
    }

    fn end_session(&mut self, n: usize) {
        if let Some(session) = self.all[n].session.take() {
            self.by_connection.remove(&session.own);
            self.all[n].key.inspect(|key| self.numbers.ended(key));
            self.count_ended(&session);
        }
    }

    fn count_ended(&mut self, session: &Session) {
        for (interface, state) in session.links() {
            if let Some(bytes) = self.ended_bytes.get_mut(usize::from(interface)) {
                *bytes += state.bytes;
            }
        }
    }

    fn begin(&mut self, n: usize, key: Key, agreed: &Agreed, now: Instant) {
        self.end_session(n);
        self.answered.retain(|(other, _)| *other != key);
        let mut agreed = agreed.clone();
        if agreed.links.is_empty() {
            agreed.links.push(self.only_link(key));
        }
        let session = Session::new(
            &agreed,
            (self.parameters, self.scheduler),
            key.1.port(),
            &self.interfaces,
            self.is_control,
            now,
        );
        if let Some(other) = self.by_connection.insert(session.own, n).filter(|other| *other != n) {
            // Two connections have one number, by a rare chance: the other peer is to agree on another.
            if let Some(session) = self.all[other].session.take() {
                self.count_ended(&session);
            }
            self.all[other].opening.forget();
        }
        self.all[n].session = Some(session);
    }

    /// The link between the addresses that hellos go by, if the interfaces of both sides have no network in common.
    fn only_link(&self, (local, remote): Key) -> Pair {
        let known = self.addresses.iter().find(|address| address.address == local).copied();
        // No interface has this number: its packets leave by their route.
        let any = Address { interface: u8::MAX, address: local, prefix: 0, mtu: self.interfaces.mtu(), speed: 0 };
        let local = known.unwrap_or(any);
        Pair { local, remote: Address { address: remote.ip(), ..local } }
    }

    fn forget_quiet(&mut self, now: Instant) {
        for n in 0..self.all.len() {
            let peer = &self.all[n];
            let is_quiet = match &peer.session {
                Some(session) => session.is_idle_for(now, QUIET),
                None => peer.opening.is_blank(),
            };
            if let Some(key) = peer.key.filter(|_| is_quiet) {
                self.end(n);
                self.by_key.remove(&key);
                let Peer { is_touched, due, .. } = self.all[n];
                self.all[n] = Peer { is_touched, due, ..Peer::default() };
                self.touch(n);
                self.free.push(n);
            }
        }
        self.sweep_at = (2 * self.by_key.len()).clamp(FEW_PEERS, MOST_PEERS);
        self.swept = now;
    }
}

fn own<'a>(addresses: &'a [Address], interfaces: &Interfaces, port: u16, (local, remote): &Key) -> Own<'a> {
    let is_first = (*local, port) < (remote.ip(), remote.port());
    Own { addresses, lists_all: interfaces.lists_all, pieces: false, is_first }
}
