//! The processes that QPs talk to: hello, ICRC agreement, windows. Who says hello and has nothing to do with our QPs
//! yet, or any more, is among the [`Strangers`].

use crate::engine::flow::Flow;
use crate::engine::strangers::{Key, PLACES, PRESENT, Stranger, Strangers};
use crate::hello::{Hello, Kind};
use crate::route::Route;
use crate::slot::{FIRST_PORT, SLOTS, slot_of};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Index of a peer.
pub type PeerId = usize;

/// A process at the other end, or a foreign adapter.
pub struct Peer {
    /// How packets get there; the port is in `to`.
    pub route: Route,
    /// Where packets go.
    pub to: SocketAddr,
    /// Its slot's port, where hellos go.
    slot_port: u16,
    /// What is known of it.
    pub state: State,
    /// What it told last. It holds for its packets while it is greeted anew: they may be here before its answer is.
    agreed: Option<Weir>,
    /// Cost in bytes of requests under way to it.
    pub in_flight: usize,
    /// Bytes of READ responses under way from it.
    pub reading: usize,
    /// What went there that nobody acknowledges.
    pub flow: Flow,
    /// How many QPs are bound to it.
    pub users: usize,
    /// QPs that wait for its state or its window to open, each once.
    pub waiting: Vec<u16>,
    attempts: u32,
    next_attempt: Option<Instant>,
    confirmed: Option<Instant>,
    /// The window that it was told.
    told: usize,
    /// When a datagram last went there: they do without being bound to it.
    datagrams: Option<Instant>,
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Asked, not answered yet.
    Unknown,
    /// Another Weir process.
    Weir(Weir),
    /// It does not answer: a real adapter or Soft-RoCE, at port 4791.
    Foreign,
}

/// What a Weir peer has told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weir {
    /// Another one tells that the process was restarted.
    pub epoch: u64,
    /// It runs under the same kernel: a burst arrives as it was sent.
    pub near: bool,
    /// Packets between us carry an ICRC.
    pub icrc: bool,
    /// Bytes that may be under way to it.
    pub window: usize,
    /// How long to keep trying while it does not answer.
    pub patience: Duration,
}

/// Waits before hellos are repeated. After the sixth the peer counts as foreign; the rest are for a process that was
/// stopped or very busy.
const ATTEMPTS: [Duration; 10] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
    Duration::from_millis(16),
    Duration::from_millis(32),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(3),
];
const FOREIGN_AFTER: u32 = 6;

/// A peer that was heard of so recently needs no new hello.
const FRESH: Duration = Duration::from_millis(100);

/// What a foreign adapter is trusted to hold; Soft-RoCE has a socket buffer of about 200 KiB.
const FOREIGN_WINDOW: usize = 128 << 10;

/// So many peers are not worth a look.
const FEW: usize = 64;

/// Who got no datagram for so long is not talked to any more.
const QUIET: Duration = Duration::from_secs(60);

impl Peer {
    /// Whether a packet from one of its ports to one of ours carries an ICRC, and whether it is a Weir process's; `None`
    /// if it is not to be taken. `bound`: the epoch of the process that it must come from.
    pub fn terms(&self, from_port: u16, to_port: u16, bound: Option<u64>) -> Option<Terms> {
        // Weir processes talk from slot port to slot port.
        let genuine = |weir: &Weir| {
            to_port != ROCE_PORT && from_port == self.slot_port && bound.is_none_or(|epoch| epoch == weir.epoch)
        };
        let terms = |weir: Weir| Terms { icrc: weir.icrc, weir: true };
        match self.state {
            State::Weir(weir) => genuine(&weir).then(|| terms(weir)),
            State::Unknown | State::Foreign => {
                Some(self.agreed.filter(genuine).map_or(Terms { icrc: true, weir: false }, terms))
            }
        }
    }
}

/// How packets come from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub icrc: bool,
    pub weir: bool,
}

/// All peers, and how our receive buffer is divided among them.
pub struct Peers {
    peers: Vec<Peer>,
    /// Places of peers that are gone.
    vacant: Vec<PeerId>,
    strangers: Strangers,
    by_key: HashMap<Key, Place>,
    /// With so many peers it is time to look for those that got no datagram for long.
    sweep_at: usize,
    /// What we say of ourselves; kind and window are filled in.
    own: Hello,
    /// Bytes that all peers together may have under way to us.
    budget: usize,
    /// The most that one of them gets.
    most: usize,
    /// What each of those that our QPs talk to gets of it.
    share: usize,
    /// How many they are.
    known: usize,
}

/// Where somebody's entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Peer(PeerId),
    Stranger(usize),
}

/// The least and the most that one peer gets of the receive buffer: one burst; what stays in the cache.
const SHARE: std::ops::RangeInclusive<usize> = (64 << 10)..=(512 << 10);

/// A control datagram to send.
pub struct Note {
    pub to: SocketAddr,
    pub route: Route,
    pub hello: Hello,
}

impl Peers {
    /// `receive_buffer`: what the kernel holds for us.
    pub fn new(own: Hello, receive_buffer: usize) -> Self {
        // The kernel counts its own structures too: a part stays free for them.
        let budget = receive_buffer / 2;
        Peers {
            peers: Vec::new(),
            vacant: Vec::new(),
            strangers: Strangers::new(),
            by_key: HashMap::with_capacity(PLACES),
            sweep_at: FEW,
            own,
            budget,
            most: *SHARE.end(),
            share: share(budget, 1, *SHARE.end()),
            known: 0,
        }
    }

    /// One peer may get all of the buffer: adapters know no windows, and who repeats all that he has sent is to have it
    /// under way. Before anything else.
    pub fn widen(&mut self) {
        self.most = self.budget.max(*SHARE.end());
        self.share = share(self.budget, 1, self.most);
    }

    pub fn get(&self, id: PeerId) -> &Peer {
        &self.peers[id]
    }

    pub fn get_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.peers[id]
    }

    /// All places of peers.
    pub fn ids(&self) -> std::ops::Range<PeerId> {
        0..self.peers.len()
    }

    /// The peer that a QPN at an address belongs to. It is greeted unless it was heard of just now.
    pub fn bind(&mut self, route: Route, dest_qpn: u32, now: Instant) -> PeerId {
        let port = FIRST_PORT + slot_of(dest_qpn);
        let id = self.entry(route, port, now);
        let peer = &mut self.peers[id];
        peer.users += 1;
        let stale = peer.confirmed.is_none_or(|confirmed| now - confirmed >= FRESH);
        // It may have been restarted: what we knew of it may be over.
        if stale && peer.users == 1 {
            peer.state = State::Unknown;
            peer.to = route.to(port);
        }
        self.divide(now);
        let peer = &mut self.peers[id];
        // As a stranger it may have been told less than it gets now.
        if stale || peer.told < self.share {
            peer.attempts = 0;
            peer.next_attempt = Some(now);
        }
        id
    }

    /// The peer that a datagram goes to. It is greeted when it is new, and now and then: it may have been restarted.
    pub fn greet_datagram(&mut self, route: Route, dest_qpn: u32, now: Instant) -> PeerId {
        let id = self.entry(route, FIRST_PORT + slot_of(dest_qpn), now);
        let peer = &mut self.peers[id];
        let stale = peer.confirmed.is_none_or(|confirmed| now - confirmed >= FRESH);
        let first = peer.datagrams.replace(now).is_none();
        if stale && (first || (peer.next_attempt.is_none() && matches!(peer.state, State::Weir(_)))) {
            peer.attempts = 0;
            peer.next_attempt = Some(now);
        }
        id
    }

    /// Bytes that nobody acknowledges and that may still go to a peer.
    pub fn unreliable_room(&self, id: PeerId) -> usize {
        let peer = &self.peers[id];
        match peer.state {
            State::Weir(weir) => peer.flow.room(weir.window),
            State::Foreign => usize::MAX,
            State::Unknown => 0,
        }
    }

    /// A question how far a peer has come, if it is time for one.
    pub fn ask(&mut self, id: PeerId, now: Instant) -> Option<Note> {
        let peer = &mut self.peers[id];
        let State::Weir(weir) = peer.state else { return None };
        let mark = peer.flow.ask(weir.window, now)?;
        Some(self.marked(id, Kind::Hello, mark))
    }

    /// A question that is to be repeated, one a call; or a peer that is no longer waited for.
    pub fn ask_again(&mut self, now: Instant) -> Option<(PeerId, Option<Note>)> {
        let id = self.peers.iter().position(|peer| peer.flow.due().is_some_and(|due| due <= now))?;
        let mark = self.peers[id].flow.repeat(now);
        Some((id, mark.map(|mark| self.marked(id, Kind::Hello, mark))))
    }

    /// A QP no longer talks to it.
    pub fn unbind(&mut self, id: PeerId, now: Instant) {
        self.peers[id].users -= 1;
        self.leave_if_idle(id, now);
        self.divide(now);
    }

    /// The entry of a peer, made if there is none.
    fn entry(&mut self, route: Route, port: u16, now: Instant) -> PeerId {
        let key = (route.local, route.remote, port);
        let known = match self.by_key.get(&key) {
            Some(Place::Peer(id)) => return *id,
            Some(Place::Stranger(place)) => self.strangers.take(*place),
            None => None,
        };
        if self.peers.len() - self.vacant.len() >= self.sweep_at {
            (0..self.peers.len()).for_each(|id| self.leave_if_idle(id, now));
            self.sweep_at = FEW.max(2 * (self.peers.len() - self.vacant.len()));
        }
        let peer = Peer {
            route,
            to: route.to(port),
            slot_port: port,
            state: known.map_or(State::Unknown, |known| State::Weir(known.weir)),
            agreed: known.map(|known| known.weir),
            in_flight: 0,
            reading: 0,
            flow: Flow::default(),
            users: 0,
            waiting: Vec::with_capacity(16),
            attempts: 0,
            next_attempt: None,
            confirmed: known.map(|known| known.heard),
            told: known.map_or(0, |known| known.told),
            datagrams: None,
        };
        let id = match self.vacant.pop() {
            Some(id) => {
                self.peers[id] = peer;
                id
            }
            None => {
                self.peers.push(peer);
                self.vacant.reserve(self.peers.len() - self.vacant.len());
                self.peers.len() - 1
            }
        };
        self.by_key.insert(key, Place::Peer(id));
        id
    }

    /// Makes a stranger of a peer that nothing of ours talks to any more.
    fn leave_if_idle(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.peers[id];
        let key = (peer.route.local, peer.route.remote, peer.slot_port);
        let sends = peer.datagrams.is_some_and(|last| now - last < QUIET) || peer.flow.due().is_some();
        let idle = peer.users == 0 && !sends && peer.waiting.is_empty();
        if !idle || self.by_key.get(&key) != Some(&Place::Peer(id)) {
            return;
        }
        debug_assert_eq!((peer.in_flight, peer.reading), (0, 0), "what was under way is settled");
        peer.next_attempt = None;
        let known = match (peer.state, peer.confirmed) {
            (State::Weir(weir), Some(heard)) => Some(Stranger { key, weir, heard, told: peer.told }),
            _ => None,
        };
        self.by_key.remove(&key);
        self.vacant.push(id);
        if let Some(stranger) = known {
            self.remember(stranger);
        }
    }

    /// Finds a place for a stranger.
    fn remember(&mut self, stranger: Stranger) -> Option<usize> {
        let (place, gone) = self.strangers.enter(stranger)?;
        if let Some(gone) = gone {
            self.by_key.remove(&gone);
        }
        self.by_key.insert(stranger.key, Place::Stranger(place));
        Some(place)
    }

    /// The earliest hello that is due.
    pub fn next_attempt(&self) -> Option<u64> {
        let due = |peer: &Peer| [peer.next_attempt, peer.flow.due()].into_iter().flatten().min();
        self.peers.iter().filter_map(due).map(|instant| instant.0).min()
    }

    /// Hellos that are due, one a call, and the peer that was found to be foreign thereby.
    pub fn greet(&mut self, now: Instant) -> Option<(Note, Option<PeerId>)> {
        let id = self.peers.iter().position(|peer| peer.next_attempt.is_some_and(|at| at <= now))?;
        let peer = &mut self.peers[id];
        let wait = ATTEMPTS.get(peer.attempts as usize).copied();
        peer.attempts += 1;
        peer.next_attempt = wait.map(|wait| now + wait).filter(|_| peer.users > 0 || peer.datagrams.is_some());
        let mut foreign = None;
        if peer.attempts > FOREIGN_AFTER && peer.state == State::Unknown {
            peer.state = State::Foreign;
            peer.to = peer.route.to(ROCE_PORT);
            foreign = Some(id);
        }
        let note = self.note(id, Kind::Hello);
        Some((note, foreign))
    }

    /// Takes a control datagram. Returns the peer, if it is one of ours, and the answer to send.
    pub fn heard(
        &mut self,
        route: Route,
        from_port: u16,
        hello: &Hello,
        now: Instant,
    ) -> (Option<PeerId>, Option<Note>) {
        if !(FIRST_PORT..FIRST_PORT + SLOTS).contains(&from_port) {
            return (None, None);
        }
        let one_machine = hello.boot_id == self.own.boot_id && hello.boot_id != [0; 16];
        let weir = Weir {
            epoch: hello.epoch,
            near: one_machine,
            icrc: !(one_machine && hello.icrc_auto && self.own.icrc_auto),
            // One burst may always go: a peer that allows nothing would hold up what is for others.
            window: (hello.window as usize).max(*SHARE.start()),
            patience: hello.patience,
        };
        let key = (route.local, route.remote, from_port);
        let id = match self.by_key.get(&key) {
            Some(Place::Peer(id)) => *id,
            place => {
                let place = place.copied();
                // What we have not asked for is no answer.
                let asked = hello.kind == Kind::Hello;
                return (None, asked.then(|| self.greeted(place, key, weir, route, hello.mark, now)));
            }
        };
        let peer = &mut self.peers[id];
        peer.to = peer.route.to(peer.slot_port);
        peer.state = State::Weir(weir);
        peer.agreed = Some(weir);
        peer.confirmed = Some(now);
        peer.next_attempt = None;
        if hello.kind == Kind::Welcome {
            peer.flow.answered(hello.mark);
        }
        self.divide(now);
        let answer = (hello.kind == Kind::Hello).then(|| self.marked(id, Kind::Welcome, hello.mark));
        (Some(id), answer)
    }

    /// A stranger says hello: the answer. Its window comes out of what is there beside our peers'.
    fn greeted(&mut self, place: Option<Place>, key: Key, weir: Weir, route: Route, mark: u32, now: Instant) -> Note {
        let stranger = Stranger { key, weir, heard: now, told: 0 };
        let before = match place {
            Some(Place::Stranger(place)) => self.strangers.get(place).map(|known| known.heard),
            _ => None,
        };
        self.strangers.count(before, now);
        let place = match place {
            Some(Place::Stranger(place)) => {
                self.strangers.renew(place, stranger);
                Some(place)
            }
            _ => self.remember(stranger),
        };
        let window = share(self.budget, self.known + self.strangers.present(now), self.most);
        if let Some(place) = place {
            self.strangers.tell(place, window);
        }
        // Who is not remembered would send without ICRC, and not be believed.
        let icrc_auto = self.own.icrc_auto && place.is_some();
        let hello = Hello { kind: Kind::Welcome, icrc_auto, window: window as u32, mark, ..self.own };
        Note { to: route.to(key.2), route, hello }
    }

    /// Divides the buffer anew among those that we talk to.
    fn divide(&mut self, now: Instant) {
        let talks = |peer: &&Peer| {
            let lately = peer.datagrams.is_some_and(|last| now - last < PRESENT);
            matches!(peer.state, State::Weir(_)) && (peer.users > 0 || lately)
        };
        self.known = self.peers.iter().filter(talks).count();
        self.share = share(self.budget, self.known, self.most);
    }

    fn note(&mut self, id: PeerId, kind: Kind) -> Note {
        self.marked(id, kind, 0)
    }

    fn marked(&mut self, id: PeerId, kind: Kind, mark: u32) -> Note {
        let peer = &mut self.peers[id];
        peer.told = self.share;
        let hello = Hello { kind, window: self.share as u32, mark, ..self.own };
        Note { to: peer.route.to(peer.slot_port), route: peer.route, hello }
    }

    /// Bytes of requests that may still go to a peer.
    pub fn room(&self, id: PeerId) -> usize {
        let peer = &self.peers[id];
        let window = match peer.state {
            State::Weir(weir) => weir.window,
            State::Foreign => FOREIGN_WINDOW,
            State::Unknown => 0,
        };
        window.saturating_sub(peer.in_flight)
    }

    /// What was agreed with whoever is at a port of an address.
    pub fn find(&self, local: IpAddr, remote: IpAddr, port: u16) -> Option<Weir> {
        match *self.by_key.get(&(local, remote, port))? {
            Place::Peer(id) => self.peers[id].agreed,
            Place::Stranger(place) => self.strangers.get(place).map(|stranger| stranger.weir),
        }
    }

    /// Bytes that may still be read from a peer.
    pub fn read_room(&self, id: PeerId) -> usize {
        self.share.min(*SHARE.end()).saturating_sub(self.peers[id].reading)
    }
}

/// What each of `count` gets of a budget, `most` at the most.
fn share(budget: usize, count: usize, most: usize) -> usize {
    (budget / count.max(1)).clamp(*SHARE.start(), most)
}

#[cfg(test)]
mod tests;
