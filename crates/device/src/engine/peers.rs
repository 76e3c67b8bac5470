//! The peers of QPs: hellos, ICRC agreement, windows. A process that says hello without a QP here that is bound to it
//! is an unbound peer, among the [`UnboundPeers`].
//!
//! What a process says about itself is believed only in an answer to our nonce. Each QP's ownership is proven
//! separately: see [`crate::engine::introduce`].

pub mod room;

use crate::Errno;
use crate::engine::connection::TRIES;
use crate::engine::flow::Flow;
use crate::engine::peer::{Peer, PeerId, State, Weir};
use crate::engine::unbound_peers::{RECENT_HELLO, UnboundPeer, UnboundPeers};
use crate::engine::waiting::WaitList;
use crate::hello::{Hello, MAX_PROOFS};
use crate::proof::{PeerKey as Key, Secret, alive};
use crate::route::Route;
use crate::slot::{FIRST_PORT, INDEX_BITS, is_slot_port, slot_of};
use room::{Lists, SPARE};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_transport::Instant;

/// Waits before hellos are repeated. After the sixth the peer is treated as foreign; the others are for a process that
/// was stopped or very busy.
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
/// The number of answers that hold the proofs of all QPs that a process can have.
const ROUNDS: u32 = (1 << INDEX_BITS) / MAX_PROOFS as u32 + 1;

/// A peer that answered a hello within this time needs no new one.
const FRESH: Duration = Duration::from_millis(100);

/// The window of a foreign adapter; Soft-RoCE has a socket buffer of about 200 KiB.
const FOREIGN_WINDOW: usize = 128 << 10;

/// With fewer peers than this, idle ones are not looked for.
const FEW: usize = 64;

/// A peer that got no datagram for this long, and has no QP bound to it, is idle.
const QUIET: Duration = Duration::from_secs(60);

/// All peers, and the division of the receive buffer among them.
pub struct Peers {
    lists: Lists,
    /// There was no memory for larger lists.
    out_of_memory: bool,
    unbound_peers: UnboundPeers,
    /// The number of peers at which idle ones are looked for next.
    sweep_at: usize,
    secret: Secret,
    /// What hellos say about this process; fields that depend on the peer are filled in later.
    own: Hello,
    /// Bytes that all peers together may have under way to this process.
    budget: usize,
    /// The largest window of one peer.
    most: usize,
    /// The window of each peer that QPs here talk to.
    share: usize,
    /// The number of these peers.
    known: usize,
}

/// The entry of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryId {
    Peer(PeerId),
    Unbound(usize),
}

/// The smallest and the largest window of one peer: one burst; what stays in the cache.
const SHARE: std::ops::RangeInclusive<usize> = (64 << 10)..=(512 << 10);

/// A hello to send.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    pub to: SocketAddr,
    pub route: Route,
    pub hello: Hello,
}

/// The result of a hello.
pub struct HelloOutcome {
    /// The sender's entry, if QPs or datagrams here go to it.
    pub peer: Option<PeerId>,
    /// It answers our nonce.
    pub answers: bool,
    /// The answer to send.
    pub reply: Option<Note>,
}

impl Peers {
    /// `receive_buffer`: the size of the socket's receive buffer in the kernel. ENOMEM if there is no memory.
    pub fn new(secret: Secret, own: Hello, receive_buffer: usize) -> Result<Self, Errno> {
        // The kernel counts its own structures too: half of the buffer is left for them.
        let budget = receive_buffer / 2;
        Ok(Peers {
            lists: Lists::new(SPARE)?,
            out_of_memory: false,
            unbound_peers: UnboundPeers::new(),
            sweep_at: FEW,
            secret,
            own,
            budget,
            most: *SHARE.end(),
            share: share(budget, 1, *SHARE.end()),
            known: 0,
        })
    }

    /// One peer may get all of the buffer: real adapters have no windows, and a peer that repeats all its requests
    /// must be able to have them under way. To be called before anything else.
    pub fn widen(&mut self) {
        self.most = self.budget.max(*SHARE.end());
        self.share = share(self.budget, 1, self.most);
    }

    pub fn get(&self, id: PeerId) -> &Peer {
        &self.lists.peers[id]
    }

    pub fn get_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.lists.peers[id]
    }

    /// The indices of all entries, free ones too.
    pub fn ids(&self) -> std::ops::Range<PeerId> {
        0..self.lists.peers.len()
    }

    /// The peer at an address, by the slot of a QPN; the QP `index` is bound to it.
    pub fn bind(&mut self, route: Route, dest_qpn: u32, index: u16, now: Instant) -> PeerId {
        self.make_room();
        let id = self.entry(route, FIRST_PORT + slot_of(dest_qpn), now).expect("there is room");
        self.lists.peers[id].members.push(index);
        self.divide(now);
        id
    }

    /// Sends a hello at the next opportunity, and repeats it for a while if it is not answered.
    pub fn ask_soon(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.lists.peers[id];
        (peer.attempts, peer.rounds) = (0, 0);
        peer.next_attempt = Some(now);
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

    /// A QP has missed an ACK: the peer must show that it is still alive.
    pub fn suspect(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.lists.peers[id];
        peer.suspected.get_or_insert(0);
        if peer.suspected == Some(0) || peer.next_attempt.is_none() {
            self.ask_soon(id, now);
        }
    }

    /// A QP was proven to belong to the process with this incarnation.
    pub fn proven(&mut self, id: PeerId, incarnation: u64) {
        let peer = &mut self.lists.peers[id];
        (peer.incarnation, peer.suspected) = (Some(incarnation), None);
    }

    /// What identifies this process to a peer.
    pub fn own_incarnation(&self, id: PeerId) -> u64 {
        self.secret.incarnation(&self.lists.peers[id].key())
    }

    /// The nonce that a peer's answers repeat.
    pub fn nonce(&self, id: PeerId) -> u64 {
        self.secret.nonce(&self.lists.peers[id].key())
    }

    /// The tag that packets to a QP must carry in its `connection`-th connection.
    pub fn tag(&self, qpn: u32, connection: u64) -> u32 {
        self.secret.tag(qpn, connection)
    }

    /// Whether packets may omit the ICRC if the peer agrees.
    pub fn leaves_icrc_out(&self) -> bool {
        self.own.icrc_auto
    }

    /// The peer that a datagram goes to. It gets a hello if it is new, and now and then, as it may have restarted.
    /// `None` if it is new and there is no room for its entry.
    pub fn greet_datagram(&mut self, route: Route, dest_qpn: u32, now: Instant) -> Option<PeerId> {
        let id = self.entry(route, FIRST_PORT + slot_of(dest_qpn), now)?;
        let peer = &mut self.lists.peers[id];
        if !is_slot_port(peer.slot_port) {
            // No Weir process has QPNs of this slot.
            peer.state = State::Foreign;
            return Some(id);
        }
        let stale = peer.confirmed.is_none_or(|confirmed| now - confirmed >= FRESH);
        let first = peer.datagrams.replace(now).is_none();
        if stale && (first || (peer.next_attempt.is_none() && matches!(peer.state, State::Weir(_)))) {
            peer.attempts = 0;
            peer.next_attempt = Some(now);
        }
        Some(id)
    }

    /// Bytes of unacknowledged packets (UC, UD) that may still go to a peer.
    pub fn unreliable_room(&self, id: PeerId) -> usize {
        let peer = &self.lists.peers[id];
        match peer.state {
            State::Weir(weir) => peer.flow.room(weir.window),
            State::Foreign => usize::MAX,
            State::Unknown => 0,
        }
    }

    /// A flow-control question to a peer, if one is due.
    pub fn ask(&mut self, id: PeerId, now: Instant) -> Option<Note> {
        let peer = &mut self.lists.peers[id];
        let State::Weir(weir) = peer.state else { return None };
        let mark = peer.flow.ask(weir.window, now)?;
        Some(self.note(id, Ask::Yes, 0, mark))
    }

    /// A flow-control question that is due again, one per call; or a peer that is no longer waited for.
    pub fn ask_again(&mut self, now: Instant) -> Option<(PeerId, Option<Note>)> {
        let id = self.lists.peers.iter().position(|peer| peer.flow.due().is_some_and(|due| due <= now))?;
        let mark = self.lists.peers[id].flow.repeat(now);
        Some((id, mark.map(|mark| self.note(id, Ask::Yes, 0, mark))))
    }

    /// Unbinds a QP from a peer.
    pub fn unbind(&mut self, id: PeerId, index: u16, now: Instant) {
        let members = &mut self.lists.peers[id].members;
        if let Some(at) = members.iter().rposition(|member| *member == index) {
            members.swap_remove(at);
        }
        self.leave_if_idle(id, now);
        self.divide(now);
    }

    /// The entry of a peer, made if there is none. `None` if there is no room for it.
    fn entry(&mut self, route: Route, port: u16, now: Instant) -> Option<PeerId> {
        let key = (route.local, route.remote, port);
        if let Some(EntryId::Peer(id)) = self.lists.by_key.get(&key) {
            return Some(*id);
        }
        if self.lists.count() >= self.sweep_at {
            (0..self.lists.peers.len()).for_each(|id| self.leave_if_idle(id, now));
            self.sweep_at = FEW.max(2 * (self.lists.count()));
        }
        if !self.lists.has_room() {
            return None;
        }
        let known = match self.lists.by_key.get(&key) {
            Some(EntryId::Unbound(index)) => self.unbound_peers.take(*index),
            _ => None,
        };
        let mut peer = Peer {
            route,
            slot_port: port,
            state: known.filter(|known| known.proven).map_or(State::Unknown, |known| State::Weir(known.weir)),
            incarnation: None,
            members: Vec::new(),
            next_to_prove: 0,
            suspected: None,
            in_flight: 0,
            reading: 0,
            flow: Flow::default(),
            waiting: WaitList::default(),
            attempts: 0,
            rounds: 0,
            next_attempt: None,
            confirmed: known.filter(|known| known.proven).map(|known| known.last_hello),
            announced_window: known.map_or(0, |known| known.announced_window),
            datagrams: None,
        };
        let id = match self.lists.vacant.pop() {
            Some(id) => {
                // The list of members is empty; its memory is kept rather than freed here.
                peer.members = std::mem::take(&mut self.lists.peers[id].members);
                self.lists.peers[id] = peer;
                id
            }
            None => {
                self.lists.peers.push(peer);
                self.lists.peers.len() - 1
            }
        };
        self.lists.by_key.insert(key, EntryId::Peer(id));
        Some(id)
    }

    /// Turns a peer without bound QPs and recent datagrams into an unbound peer.
    fn leave_if_idle(&mut self, id: PeerId, now: Instant) {
        let peer = &mut self.lists.peers[id];
        let (key, announced_window) = (peer.key(), peer.announced_window);
        let sends = peer.datagrams.is_some_and(|last| now - last < QUIET) || peer.flow.due().is_some();
        let idle = peer.members.is_empty() && !sends && peer.waiting.is_empty();
        if !idle || self.lists.by_key.get(&key) != Some(&EntryId::Peer(id)) {
            return;
        }
        debug_assert_eq!((peer.in_flight, peer.reading), (0, 0), "what was under way is settled");
        peer.next_attempt = None;
        let known = peer.weir().zip(peer.confirmed);
        self.lists.by_key.remove(&key);
        self.lists.vacant.push(id);
        if let Some((weir, last_hello)) = known {
            self.remember(UnboundPeer { key, weir, last_hello, announced_window, proven: true });
        }
    }

    /// Enters an unbound peer, if there is an entry for it.
    fn remember(&mut self, unbound: UnboundPeer) -> Option<usize> {
        let (index, gone) = self.unbound_peers.enter(unbound)?;
        if let Some(gone) = gone {
            self.lists.by_key.remove(&gone);
        }
        self.lists.by_key.insert(unbound.key, EntryId::Unbound(index));
        Some(index)
    }

    /// When the next hello is due (nanoseconds).
    pub fn next_attempt(&self) -> Option<u64> {
        let due = |peer: &Peer| [peer.next_attempt, peer.flow.due()].into_iter().flatten().min();
        self.lists.peers.iter().filter_map(due).map(|instant| instant.0).min()
    }

    /// A hello that is due, one per call: its peer, and whether the peer now counts as foreign for datagrams.
    pub fn greet(&mut self, now: Instant) -> Option<(PeerId, Note, bool)> {
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
        Some((id, self.note(id, Ask::Yes, 0, 0), foreign))
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
                let (note, asks) = self.handle_unbound_hello(entry, key, weir, route, answers, now);
                let reply = (hello.ask != 0).then(|| self.reply(key, note, hello, asks));
                return HelloOutcome { reply, answers, ..nothing };
            }
            _ => return nothing,
        };
        let peer = &mut self.lists.peers[id];
        let news = peer.weir() != Some(weir);
        if answers {
            peer.state = State::Weir(weir);
            peer.confirmed = Some(now);
            match peer.incarnation {
                Some(incarnation) if hello.alive == alive(incarnation, hello.answer) => peer.suspected = None,
                // Not the process that the QPs belong to, or one that pretends to be the peer.
                Some(_) => {
                    peer.suspected.get_or_insert(0);
                    if peer.is_suspected() && peer.next_attempt.is_none() {
                        (peer.attempts, peer.next_attempt) = (0, Some(now));
                    }
                }
                None => {}
            }
            if hello.mark != 0 {
                peer.flow.answered(hello.mark);
            }
            self.divide(now);
        }
        // A hello that only asks may be answered with a question: what it says is not believed otherwise.
        let asks = if hello.answer == 0 && news { Ask::Yes } else { Ask::No };
        let reply = (hello.ask != 0).then(|| self.note(id, asks, hello.ask, hello.mark));
        HelloOutcome { peer: Some(id), answers, reply }
    }

    /// Adds a question to an answer, unless the hello that it answers is an answer itself: two processes with
    /// questions must not exchange hellos endlessly.
    pub fn ask_back(&self, id: PeerId, hello: &Hello, reply: &mut Note) {
        if hello.answer == 0 {
            reply.hello.ask = self.nonce(id);
        }
    }

    /// The parameters in a hello.
    fn parameters_of(&self, hello: &Hello) -> Weir {
        let one_machine = hello.boot_id == self.own.boot_id && hello.boot_id != [0; 16];
        Weir {
            near: one_machine,
            icrc: !(one_machine && hello.icrc_auto && self.own.icrc_auto),
            // At least one burst: a peer with window 0 would block a UD QP's datagrams to others.
            window: (hello.window as usize).max(*SHARE.start()),
            patience: hello.patience,
        }
    }

    /// Handles a hello of an unbound peer: returns the reply, and whether it should ask. The peer's window comes out
    /// of what bound peers leave. What the hello says is believed only if it `answers`.
    fn handle_unbound_hello(
        &mut self,
        entry: Option<EntryId>,
        key: Key,
        weir: Weir,
        route: Route,
        answers: bool,
        now: Instant,
    ) -> (Note, Ask) {
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
        (Note { to: route.to(key.2), route, hello }, asks)
    }

    /// Turns a note to an unbound peer into an answer.
    fn reply(&self, key: Key, mut note: Note, hello: &Hello, asks: Ask) -> Note {
        note.hello.ask = if asks == Ask::Yes && hello.answer == 0 { self.secret.nonce(&key) } else { 0 };
        note.hello.answer = hello.ask;
        note.hello.alive = alive(self.secret.incarnation(&key), hello.ask);
        note.hello.mark = hello.mark;
        note
    }

    /// Divides the receive buffer anew among the peers that QPs here talk to.
    fn divide(&mut self, now: Instant) {
        let talks = |peer: &&Peer| {
            let lately = peer.datagrams.is_some_and(|last| now - last < RECENT_HELLO);
            peer.weir().is_some() && (!peer.members.is_empty() || lately)
        };
        self.known = self.lists.peers.iter().filter(talks).count();
        self.share = share(self.budget, self.known, self.most);
    }

    fn note(&mut self, id: PeerId, asks: Ask, answer: u64, mark: u32) -> Note {
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
        Note { to: peer.to(false), route: peer.route, hello }
    }

    /// Bytes of requests that may still go to a peer.
    pub fn room(&self, id: PeerId, foreign: bool) -> usize {
        let peer = &self.lists.peers[id];
        let window = match peer.weir() {
            _ if foreign => FOREIGN_WINDOW,
            Some(weir) => weir.window,
            None => 0,
        };
        window.saturating_sub(peer.in_flight)
    }

    /// The agreed parameters of the process at a port of an address, if it has answered our nonce.
    pub fn find(&self, local: IpAddr, remote: IpAddr, port: u16) -> Option<Weir> {
        match *self.lists.by_key.get(&(local, remote, port))? {
            EntryId::Peer(id) => self.lists.peers[id].weir(),
            EntryId::Unbound(index) => self.unbound_peers.get(index).filter(|peer| peer.proven).map(|peer| peer.weir),
        }
    }

    /// Bytes of READ responses that may still be requested from a peer.
    pub fn read_room(&self, id: PeerId) -> usize {
        self.share.min(*SHARE.end()).saturating_sub(self.lists.peers[id].reading)
    }
}

/// Whether a hello asks for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Yes,
    No,
}

/// The share of each of `count` peers in a budget, `most` at the most.
fn share(budget: usize, count: usize, most: usize) -> usize {
    (budget / count.max(1)).clamp(*SHARE.start(), most)
}

#[cfg(test)]
mod tests;
