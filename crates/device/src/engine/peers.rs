//! The processes that QPs talk to: hello, ICRC agreement, windows.

use crate::engine::flow::Flow;
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
    /// Datagrams go there, without being bound to it.
    datagrams: bool,
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

/// All peers, and how our receive buffer is divided among them.
pub struct Peers {
    peers: Vec<Peer>,
    by_key: HashMap<(IpAddr, IpAddr, u16), PeerId>,
    /// What we say of ourselves; kind and window are filled in.
    own: Hello,
    /// Bytes that all peers together may have under way to us.
    budget: usize,
    share: usize,
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
        let share = budget.clamp(*SHARE.start(), *SHARE.end());
        Peers { peers: Vec::new(), by_key: HashMap::new(), own, budget, share }
    }

    pub fn get(&self, id: PeerId) -> &Peer {
        &self.peers[id]
    }

    pub fn get_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.peers[id]
    }

    /// The peer that a QPN at an address belongs to. It is greeted unless it was heard of just now.
    pub fn bind(&mut self, route: Route, dest_qpn: u32, now: Instant) -> PeerId {
        let port = FIRST_PORT + slot_of(dest_qpn);
        let id = self.entry(route, port);
        let peer = &mut self.peers[id];
        peer.users += 1;
        if peer.confirmed.is_none_or(|confirmed| now - confirmed >= FRESH) {
            // It may have been restarted: what we knew of it may be over.
            if peer.users == 1 {
                peer.state = State::Unknown;
                peer.to = route.to(port);
            }
            peer.attempts = 0;
            peer.next_attempt = Some(now);
        }
        id
    }

    /// The peer that a datagram goes to. It is greeted when it is new, and now and then: it may have been restarted.
    pub fn greet_datagram(&mut self, route: Route, dest_qpn: u32, now: Instant) -> PeerId {
        let id = self.entry(route, FIRST_PORT + slot_of(dest_qpn));
        let peer = &mut self.peers[id];
        let stale = peer.confirmed.is_none_or(|confirmed| now - confirmed >= FRESH);
        if !peer.datagrams || (stale && peer.next_attempt.is_none() && matches!(peer.state, State::Weir(_))) {
            peer.datagrams = true;
            if stale {
                peer.attempts = 0;
                peer.next_attempt = Some(now);
            }
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
    pub fn unbind(&mut self, id: PeerId) {
        self.peers[id].users -= 1;
    }

    fn entry(&mut self, route: Route, port: u16) -> PeerId {
        *self.by_key.entry((route.local, route.remote, port)).or_insert_with(|| {
            self.peers.push(Peer {
                route,
                to: route.to(port),
                slot_port: port,
                state: State::Unknown,
                in_flight: 0,
                reading: 0,
                flow: Flow::default(),
                users: 0,
                waiting: Vec::with_capacity(16),
                attempts: 0,
                next_attempt: None,
                confirmed: None,
                datagrams: false,
            });
            self.peers.len() - 1
        })
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
        peer.next_attempt = wait.map(|wait| now + wait).filter(|_| peer.users > 0 || peer.datagrams);
        let mut foreign = None;
        if peer.attempts > FOREIGN_AFTER && peer.state == State::Unknown {
            peer.state = State::Foreign;
            peer.to = peer.route.to(ROCE_PORT);
            foreign = Some(id);
        }
        let note = self.note(id, Kind::Hello);
        Some((note, foreign))
    }

    /// Takes a control datagram. Returns the peer, and the answer to send.
    pub fn heard(
        &mut self,
        route: Route,
        from_port: u16,
        hello: &Hello,
        now: Instant,
    ) -> Option<(PeerId, Option<Note>)> {
        if !(FIRST_PORT..FIRST_PORT + SLOTS).contains(&from_port) {
            return None;
        }
        let id = self.entry(route, from_port);
        let one_machine = hello.boot_id == self.own.boot_id && hello.boot_id != [0; 16];
        let weir = Weir {
            epoch: hello.epoch,
            near: one_machine,
            icrc: !(one_machine && hello.icrc_auto && self.own.icrc_auto),
            // One burst may always go: a peer that allows nothing would hold up what is for others.
            window: (hello.window as usize).max(*SHARE.start()),
            patience: hello.patience,
        };
        let peer = &mut self.peers[id];
        peer.to = peer.route.to(peer.slot_port);
        peer.state = State::Weir(weir);
        peer.confirmed = Some(now);
        peer.next_attempt = None;
        if hello.kind == Kind::Welcome {
            peer.flow.answered(hello.mark);
        }
        self.divide();
        let answer = (hello.kind == Kind::Hello).then(|| self.marked(id, Kind::Welcome, hello.mark));
        Some((id, answer))
    }

    /// Divides the buffer anew among those that we know.
    fn divide(&mut self) {
        let known = self.peers.iter().filter(|peer| matches!(peer.state, State::Weir(_))).count().max(1);
        self.share = (self.budget / known).clamp(*SHARE.start(), *SHARE.end());
    }

    fn note(&self, id: PeerId, kind: Kind) -> Note {
        self.marked(id, kind, 0)
    }

    fn marked(&self, id: PeerId, kind: Kind, mark: u32) -> Note {
        let peer = &self.peers[id];
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

    /// The peer at a port of an address, if there is one.
    pub fn find(&self, local: IpAddr, remote: IpAddr, port: u16) -> Option<&Peer> {
        self.by_key.get(&(local, remote, port)).map(|id| &self.peers[*id])
    }

    /// Bytes that may still be read from a peer.
    pub fn read_room(&self, id: PeerId) -> usize {
        self.share.saturating_sub(self.peers[id].reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(kind: Kind, epoch: u64) -> Hello {
        Hello { kind, icrc_auto: true, boot_id: [1; 16], epoch, window: 1 << 20, patience: Duration::ZERO, mark: 0 }
    }

    fn route() -> Route {
        Route { local: "10.0.0.1".parse().unwrap(), remote: "10.0.0.2".parse().unwrap(), ifindex: 0 }
    }

    #[test]
    fn silence_makes_a_peer_foreign_and_an_answer_makes_it_weir_again() {
        let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
        let id = peers.bind(route(), 5 << 14 | 77, Instant(0));
        assert_eq!(peers.room(id), 0);
        let mut found = None;
        while found.is_none() {
            let at = Instant(peers.next_attempt().unwrap());
            let (note, foreign) = peers.greet(at).unwrap();
            assert_eq!(note.to, "10.0.0.2:20485".parse().unwrap());
            assert!(at.0 < 100_000_000);
            found = foreign;
        }
        assert_eq!((found, peers.get(id).to.port(), peers.room(id)), (Some(id), 4791, FOREIGN_WINDOW));
        let (same, answer) = peers.heard(route(), 20485, &hello(Kind::Hello, 9), Instant(5)).unwrap();
        assert_eq!((same, answer.unwrap().hello.kind), (id, Kind::Welcome));
        assert_eq!((peers.get(id).to.port(), peers.room(id)), (20485, 1 << 20));
        assert!(matches!(peers.get(id).state, State::Weir(Weir { epoch: 9, icrc: false, .. })));
        assert_eq!(peers.next_attempt(), None);
    }

    #[test]
    fn the_receive_buffer_is_shared() {
        let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
        let windows: Vec<u32> = (0..4)
            .map(|n| peers.heard(route(), FIRST_PORT + 1 + n, &hello(Kind::Hello, 3), Instant(0)).unwrap())
            .map(|(_, answer)| answer.unwrap().hello.window)
            .collect();
        assert_eq!(windows, [524_288, 262_144, 174_762, 131_072]);
    }

    #[test]
    fn other_machines_and_wishes_keep_the_icrc() {
        let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
        for change in [|h: &mut Hello| h.boot_id = [2; 16], |h: &mut Hello| h.icrc_auto = false] {
            let mut other = hello(Kind::Hello, 3);
            change(&mut other);
            let (id, _) = peers.heard(route(), FIRST_PORT + 1, &other, Instant(0)).unwrap();
            assert!(matches!(peers.get(id).state, State::Weir(Weir { icrc: true, .. })));
        }
        assert!(peers.heard(route(), 4791, &hello(Kind::Hello, 3), Instant(0)).is_none());
    }
}
