//! The exchange of hellos with peers: when they are sent, and which of their parameters are used.
//!
//! The parameters in a hello are used only if it answers this process's nonce. Each QP's ownership is proven
//! separately: see [`crate::engine::handshake`]. From then on connected QPs use the parameters of the proven process
//! only. Another process that answers at its port is obeyed for datagrams, which go to any process there.

use crate::engine::peers::connection::TRIES;
use crate::engine::peers::hello::{Hello, MAX_PROOFS};
use crate::engine::peers::identity::{EntryId, PeerId, PeerKey as Key};
use crate::engine::peers::peer::{RingState, State, Weir};
use crate::engine::peers::proof::alive;
use crate::engine::peers::unbound_peers::UnboundPeer;
use crate::engine::peers::{Peers, SHARE, share};
use crate::shared::route::Route;
use crate::slot::{INDEX_BITS, is_slot_port};
use std::net::SocketAddr;
use weir_transport::Instant;
use weir_transport::attempts::ATTEMPTS;

/// The most bytes in flight to a peer with shared memory: a ring has room for requests, UC packets and READ responses
/// at the same time.
const LOCAL_WINDOW: usize = 512 << 10;

/// The number of answers that hold the proofs of all QPs that a process can have.
pub(super) const ROUNDS: u32 = (1 << INDEX_BITS) / MAX_PROOFS as u32 + 1;

/// A hello to send.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingHello {
    pub to: SocketAddr,
    pub route: Route,
    pub hello: Hello,
}

/// The result of a hello.
pub struct HelloOutcome {
    /// The sender's entry, if QPs or datagrams of this process go to it.
    pub peer: Option<PeerId>,
    /// It answers this process's nonce.
    pub answers: bool,
    /// The answer to send.
    pub reply: Option<OutgoingHello>,
}

/// Whether a hello asks for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Yes,
    No,
}

impl Peers {
    /// Sends a hello in the next turn, and again after the waits of `ATTEMPTS` while it is not answered.
    pub fn ask_soon(&mut self, id: PeerId, now: Instant) {
        self.lists.peers[id].rounds = 0;
        self.ask_because_asked(id, now);
    }

    /// As [`ask_soon`](Self::ask_soon), because the peer asks. That begins no new rounds of full answers: two
    /// processes with QPs that stay unproven would go on without an end.
    pub fn ask_because_asked(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.lists.peers[id];
        (peer.attempts, peer.next_attempt) = (0, Some(now));
    }

    /// Asks at once for proofs that an answer had no room for. After `ROUNDS` answers that prove nothing it stops.
    pub fn ask_for_more(&mut self, id: PeerId, progress: bool, now: Instant) {
        let peer = &mut self.lists.peers[id];
        peer.rounds = if progress { 0 } else { peer.rounds + 1 };
        if peer.rounds <= ROUNDS {
            peer.attempts = 0;
            peer.next_attempt = Some(now);
        }
    }

    /// A flow-control question to a peer, if one is due.
    pub fn ask(&mut self, id: PeerId, now: Instant) -> Option<OutgoingHello> {
        let peer = &mut self.lists.peers[id];
        let State::Weir(weir) = peer.state else { return None };
        let mark = peer.flow.ask(weir.window, now)?;
        Some(self.hello_to(id, Ask::Yes, 0, mark))
    }

    /// A flow-control question that is due again, one per call; or a peer that is no longer waited for.
    pub fn ask_again(&mut self, now: Instant) -> Option<(PeerId, Option<OutgoingHello>)> {
        let id = self.lists.peers.iter().position(|peer| peer.flow.due().is_some_and(|due| due <= now))?;
        let by_ring = matches!(self.lists.peers[id].ring, RingState::Up(_));
        let mark = self.lists.peers[id].flow.repeat(now, by_ring);
        Some((id, mark.map(|mark| self.hello_to(id, Ask::Yes, 0, mark))))
    }

    /// A hello that is due, one per call: its peer, and whether the peer now counts as foreign for datagrams.
    pub fn next_due_hello(&mut self, now: Instant) -> Option<(PeerId, OutgoingHello, bool)> {
        let id = self.lists.peers.iter().position(|peer| peer.next_attempt.is_some_and(|at| at <= now))?;
        let peer = &mut self.lists.peers[id];
        let wait = ATTEMPTS.get(peer.attempts as usize).copied();
        peer.attempts += 1;
        peer.next_attempt =
            wait.map(|wait| now + wait).filter(|_| !peer.members.is_empty() || peer.datagrams.is_some());
        peer.ask_again();
        let foreign = peer.attempts > TRIES && peer.state == State::Unknown;
        if foreign {
            peer.state = State::Foreign;
        }
        Some((id, self.hello_to(id, Ask::Yes, 0, 0), foreign))
    }

    /// All QPs bound to a peer are proven or need no proof: no more hellos are sent.
    pub fn satisfied(&mut self, id: PeerId) {
        if self.lists.peers[id].weir().is_some() && self.lists.peers[id].suspected.is_none() {
            self.lists.peers[id].next_attempt = None;
        }
    }

    /// Handles a hello from a port of an address.
    pub fn handle_hello(&mut self, route: Route, from_port: u16, hello: &Hello, now: Instant) -> HelloOutcome {
        let nothing = HelloOutcome { peer: None, answers: false, reply: None };
        if !is_slot_port(from_port) {
            return nothing;
        }
        let weir = self.parameters_of(hello);
        let key = (route.local, route.remote, from_port);
        let answers = hello.answer == self.secret.nonce(&key);
        let id = match self.lists.by_key.get(&key).copied() {
            Some(EntryId::Peer(id)) => id,
            entry if answers || hello.ask != 0 => {
                let (outgoing, asks) = self.handle_unbound_hello(entry, key, weir, route, answers, now);
                let reply = (hello.ask != 0).then(|| self.reply(key, outgoing, hello, asks));
                return HelloOutcome { reply, answers, ..nothing };
            }
            _ => return nothing,
        };
        let peer = &mut self.lists.peers[id];
        let news = peer.for_datagrams() != Some(weir);
        if answers {
            match peer.incarnation {
                Some(incarnation) if hello.alive != alive(incarnation, hello.answer) => {
                    // Not the process that the QPs belong to, or one that pretends to be the peer.
                    peer.unidentified = Some(weir);
                    peer.suspected.get_or_insert(0);
                    if peer.is_suspected() && peer.next_attempt.is_none() {
                        (peer.attempts, peer.next_attempt) = (0, Some(now));
                    }
                }
                identity => {
                    (peer.state, peer.unidentified) = (State::Weir(weir), None);
                    if identity.is_some() {
                        peer.suspected = None;
                    }
                }
            }
            // What follows is used whatever process answers. It is for datagrams: when a new hello is due. And for UC and
            // UD: packets from before the mark have been taken in. Without an answer the sender would go on too.
            peer.confirmed = Some(now);
            if hello.mark != 0 {
                peer.flow.answered(hello.mark);
            }
            self.divide(now);
        }
        // A hello that only asks may be answered with a question: its parameters are not used otherwise.
        let asks = if hello.answer == 0 && news { Ask::Yes } else { Ask::No };
        let reply = (hello.ask != 0).then(|| self.hello_to(id, asks, hello.ask, hello.mark));
        HelloOutcome { peer: Some(id), answers, reply }
    }

    /// Adds a question to an answer, unless the hello that it answers is an answer itself: two processes with
    /// questions must not exchange hellos endlessly.
    pub fn ask_back(&self, id: PeerId, hello: &Hello, reply: &mut OutgoingHello) {
        if hello.answer == 0 {
            reply.hello.ask = self.nonce(id);
        }
    }

    /// The parameters in a hello.
    fn parameters_of(&self, hello: &Hello) -> Weir {
        let one_machine = hello.boot_id == self.own.boot_id && hello.boot_id != [0; 16];
        let icrc = !(one_machine && hello.icrc_auto && self.own.icrc_auto);
        let local = !icrc && hello.local && self.own.local;
        let most = if local { LOCAL_WINDOW } else { usize::MAX };
        Weir {
            near: one_machine,
            frames: hello.frames && self.own.frames,
            icrc,
            local,
            // At least one burst: a peer with window 0 would block a UD QP's datagrams to others.
            window: (hello.window as usize).clamp(*SHARE.start(), most),
            patience: hello.patience,
        }
    }

    /// Handles a hello of an unbound peer: returns the reply, and whether it should ask. The peer's window comes out
    /// of what bound peers leave. The parameters in the hello are used only if it `answers`.
    fn handle_unbound_hello(
        &mut self,
        entry: Option<EntryId>,
        key: Key,
        weir: Weir,
        route: Route,
        answers: bool,
        now: Instant,
    ) -> (OutgoingHello, Ask) {
        let known = match entry {
            Some(EntryId::Unbound(index)) => self.unbound_peers.get(index).copied(),
            _ => None,
        };
        self.unbound_peers.count_hello(known.map(|known| known.last_hello), now);
        let news = known.is_none_or(|known| !known.proven || known.weir != weir);
        let unbound = match known.filter(|known| known.proven && !answers) {
            Some(known) => UnboundPeer { last_hello: now, ..known },
            None => UnboundPeer { key, weir, last_hello: now, announced_window: 0, proven: answers },
        };
        let index = match entry {
            Some(EntryId::Unbound(index)) => {
                self.unbound_peers.renew(index, unbound);
                Some(index)
            }
            _ => self.remember(unbound),
        };
        let window = share(self.budget, self.known + self.unbound_peers.recent_count(now), self.most);
        if let Some(index) = index {
            self.unbound_peers.set_announced_window(index, window);
        }
        // An unbound peer without an entry would omit the ICRC, and its packets would be dropped.
        let icrc_auto = self.own.icrc_auto && index.is_some();
        let hello = Hello { icrc_auto, window: window as u32, ..self.own };
        let asks = if news && index.is_some() { Ask::Yes } else { Ask::No };
        (OutgoingHello { to: route.to(key.2), route, hello }, asks)
    }

    /// Turns a hello to an unbound peer into an answer.
    fn reply(&self, key: Key, mut outgoing: OutgoingHello, received: &Hello, asks: Ask) -> OutgoingHello {
        outgoing.hello.ask = if asks == Ask::Yes && received.answer == 0 { self.secret.nonce(&key) } else { 0 };
        outgoing.hello.answer = received.ask;
        outgoing.hello.alive = alive(self.secret.incarnation(&key), received.ask);
        outgoing.hello.mark = received.mark;
        outgoing
    }

    /// A hello to a peer, with the window that it gets.
    fn hello_to(&mut self, id: PeerId, asks: Ask, answer: u64, mark: u32) -> OutgoingHello {
        let peer = &mut self.lists.peers[id];
        peer.announced_window = self.share;
        let key = peer.key();
        let hello = Hello {
            ask: if asks == Ask::Yes { self.secret.nonce(&key) } else { 0 },
            answer,
            alive: if answer == 0 { 0 } else { alive(self.secret.incarnation(&key), answer) },
            window: self.share as u32,
            mark,
            ..self.own
        };
        OutgoingHello { to: peer.to(false), route: peer.route, hello }
    }
}
