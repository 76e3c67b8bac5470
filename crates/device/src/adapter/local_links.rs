//! The engine's thread makes and frees the shared memory of rings: outside of the engine, because that takes system calls
//! and memory.
//!
//! Each process listens at `@weir/local/SLOT`. The process with the smaller slot connects to its peer, once the peer has
//! proven a QP, and the two exchange the messages of [`handshake`]. Nothing here waits: a connection goes on when it is
//! readable. A connection of which a ring was made stays open. It ends with the process at the other end, and carries
//! the messages that wake its sleeping thread.

use crate::adapter::Adapter;
use crate::engine::Turn;
use crate::engine::local::Made;
use crate::engine::local::rings::{Ring, Use, Wanted};
use crate::engine::peers::identity::PeerKey;
use crate::local::endpoint::{Endpoint, MAX_RINGS, Side};
use crate::local::handshake::{self, CLAIM_LEN, Claim, WAKE};
use crate::local::listener::{LISTENER, Listener};
use crate::local::segment::Segment;
use crate::os::descriptors::DescriptorGuard;
use crate::os::{clock, seqpacket, users};
use crate::slot::{FIRST_PORT, local_name};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;
use weir_transport::Instant;

/// The most connections in a handshake. A new one takes the place of the oldest.
const HANDSHAKES: usize = 32;
/// Descriptors that an adapter has more because of them.
pub const MORE_DESCRIPTORS: usize = MAX_RINGS + HANDSHAKES + 2;
/// A handshake that takes longer ends: the peer's thread is stopped, or the peer is no Weir process.
const LONGEST: Duration = Duration::from_secs(1);
/// How long no connection is accepted after the system refused one.
const PAUSE: Duration = Duration::from_secs(1);
/// The same after connections of other users.
const PAUSE_OF_OTHERS: Duration = Duration::from_millis(50);
/// The most connections that are accepted before other work.
const AT_ONCE: usize = 32;

/// The connections by which rings are made. The engine's thread has them.
#[derive(Default)]
pub struct LocalLinks {
    handshakes: Vec<Handshake>,
    /// Connections of rings, which the engine owns, by their tokens.
    rings: Vec<(u64, RawFd)>,
    /// The token of the last connection.
    last_token: u64,
    /// The log says that there are too many rings.
    limit_logged: bool,
    /// When connections are accepted again.
    paused: Option<Instant>,
    /// The log says that a connection was refused by the system.
    refusal_logged: bool,
    /// The log says that a process that connected could not be reached through shared memory.
    failure_logged: bool,
}

/// A connection of which no ring is made yet.
struct Handshake {
    token: u64,
    socket: OwnedFd,
    began: Instant,
    state: State,
}

enum State {
    /// This process accepted it, and has sent a greeting with this nonce.
    Accepted { greeting: u64 },
    /// This process connected, and waits for the greeting.
    Connected { wanted: Wanted },
    /// This process connected, and waits for the answer to its claim.
    Claimed { wanted: Wanted, greeting: u64, claim: Claim, segment: Segment },
}

/// Why a handshake ends without a ring.
enum End {
    /// The peer is not ready, or is another process than expected.
    Refused,
    System(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::System(error)
    }
}

impl LocalLinks {
    /// Frees the rings that the engine no longer uses, reads what is readable, and connects to peers.
    pub fn work(&mut self, adapter: &Adapter) {
        let Some(listener) = &adapter.listener else { return };
        // A child that is forked meanwhile must not keep descriptors that are not registered yet.
        let _opening = DescriptorGuard::begin();
        self.resume(adapter, listener);
        for token in listener.readable() {
            if token == LISTENER {
                self.accept(adapter, listener);
            } else if let Some(at) = self.handshakes.iter().position(|handshake| handshake.token == token) {
                let handshake = self.handshakes.swap_remove(at);
                self.proceed(adapter, listener, handshake);
            } else {
                self.read(adapter, listener, token);
            }
        }
        while let Some(wanted) = adapter.with_engine(|engine| engine.take_wanted_ring(clock::now())) {
            let key = wanted.key;
            if let Err(end) = self.connect(adapter, listener, wanted) {
                failed(adapter, &key, end);
            }
        }
        while let Some(ring) = adapter.with_engine(|engine| engine.take_closed_ring()) {
            self.free(adapter, listener, *ring);
        }
        self.end_old(adapter, listener);
        if !self.limit_logged && adapter.with_engine(|engine| engine.ring_limit_was_reached()) {
            self.limit_logged = true;
            tracing::warn!(
                "{}: this process shares memory with {MAX_RINGS} others: packets to further processes of this machine \
                 go by UDP, which is slower",
                adapter.device.name
            );
        }
    }

    /// Ends handshakes that have taken too long. The thread is called again for the others.
    fn end_old(&mut self, adapter: &Adapter, listener: &Listener) {
        let now = clock::now();
        while let Some(at) = self.handshakes.iter().position(|handshake| now - handshake.began >= LONGEST) {
            let handshake = self.handshakes.swap_remove(at);
            self.end(adapter, listener, handshake, End::Refused);
        }
        if let Some(oldest) = self.handshakes.iter().map(|handshake| handshake.began).min() {
            call_again(adapter, oldest + LONGEST);
        }
    }

    /// Accepts connections again when the time has come. Otherwise the thread is called again then.
    fn resume(&mut self, adapter: &Adapter, listener: &Listener) {
        let Some(at) = self.paused else { return };
        if at <= clock::now() {
            // Without memory it pauses again.
            self.paused = listener.resume().err().map(|_| clock::now() + PAUSE);
        }
        if let Some(at) = self.paused {
            call_again(adapter, at);
        }
    }

    fn accept(&mut self, adapter: &Adapter, listener: &Listener) {
        let mut others_came = false;
        for _ in 0..AT_ONCE {
            let socket = match listener.accept() {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    // No descriptors or no memory: the connection would wake the thread again and again.
                    self.pause(adapter, listener, PAUSE);
                    if !std::mem::replace(&mut self.refusal_logged, true) {
                        tracing::warn!(
                            "{}: another process of this machine gets no shared memory for now, packets go by UDP, \
                             which is slower{}: {error}",
                            adapter.device.name,
                            explain(&error)
                        );
                    }
                    return;
                }
            };
            // Memory is shared with processes of the same user only.
            if !is_own_user(&socket) {
                // The next one may be of the own user: its connect fails while those of others fill the backlog.
                others_came = true;
                continue;
            }
            let Ok(greeting) = getrandom::u64() else { break };
            if seqpacket::send(&socket, &handshake::greeting(greeting)).is_ok() {
                self.begin(adapter, listener, socket, State::Accepted { greeting });
            }
        }
        if others_came {
            // Another user may connect without end, and each connection wakes the thread.
            self.pause(adapter, listener, PAUSE_OF_OTHERS);
        }
    }

    /// Accepts no connection for a while.
    fn pause(&mut self, adapter: &Adapter, listener: &Listener, pause: Duration) {
        listener.pause();
        self.paused = Some(clock::now() + pause);
        self.resume(adapter, listener);
    }

    fn connect(&mut self, adapter: &Adapter, listener: &Listener, wanted: Wanted) -> Result<(), End> {
        let (_, _, port) = wanted.key;
        let socket = seqpacket::connect(&local_name(port - FIRST_PORT)).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock => End::Refused,
            _ => End::System(error),
        })?;
        if !is_own_user(&socket) {
            return Err(End::Refused);
        }
        self.begin(adapter, listener, socket, State::Connected { wanted });
        Ok(())
    }

    fn begin(&mut self, adapter: &Adapter, listener: &Listener, socket: OwnedFd, state: State) {
        if self.handshakes.len() == HANDSHAKES {
            let oldest = self.handshakes.iter().enumerate().min_by_key(|(_, handshake)| handshake.token);
            if let Some(at) = oldest.map(|(at, _)| at) {
                let oldest = self.handshakes.swap_remove(at);
                self.end(adapter, listener, oldest, End::Refused);
            }
        }
        // Not that of the listener.
        self.last_token += 1;
        let token = self.last_token;
        adapter.add_sockets(&[socket.as_raw_fd()]);
        let handshake = Handshake { token, socket, began: clock::now(), state };
        match listener.watch(handshake.socket.as_raw_fd(), token) {
            Ok(()) => self.handshakes.push(handshake),
            Err(error) => self.end(adapter, listener, handshake, error.into()),
        }
    }

    /// A connection in a handshake is readable.
    fn proceed(&mut self, adapter: &Adapter, listener: &Listener, handshake: Handshake) {
        let Handshake { token, socket, began, state } = handshake;
        let mut message = [0; CLAIM_LEN + 1];
        let (len, file) = match seqpacket::receive_with_file(&socket, &mut message) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return self.handshakes.push(Handshake { token, socket, began, state });
            }
            Ok((len, file)) => (len.min(message.len()), file),
            Err(_) => (0, None),
        };
        let message = &message[..len];
        let proceeded = match &state {
            State::Accepted { greeting } => self.claimed(adapter, &socket, *greeting, message, file),
            State::Connected { wanted } => greeted(&socket, wanted, message),
            State::Claimed { .. } => Ok(Next::Answered),
        };
        match (proceeded, state) {
            (Ok(Next::Ring { key, incarnation, segment }), _) => {
                let endpoint = Endpoint::new(segment, Side::Taker);
                self.add(adapter, listener, token, socket, (&key, incarnation), endpoint);
            }
            (Ok(Next::Claimed { greeting, claim, segment }), State::Connected { wanted }) => {
                let state = State::Claimed { wanted, greeting, claim, segment };
                self.handshakes.push(Handshake { token, socket, began, state });
            }
            (Ok(Next::Answered), State::Claimed { wanted, greeting, claim, segment })
                if message == claim.answer(&wanted.keys, greeting) =>
            {
                let endpoint = Endpoint::new(segment, Side::Maker);
                self.add(adapter, listener, token, socket, (&wanted.key, wanted.keys.acceptor), endpoint);
            }
            (Err(end), state) => self.end(adapter, listener, Handshake { token, socket, began, state }, end),
            (_, state) => self.end(adapter, listener, Handshake { token, socket, began, state }, End::Refused),
        }
    }

    /// The connector has claimed to be a peer.
    fn claimed(
        &self,
        adapter: &Adapter,
        socket: &OwnedFd,
        greeting: u64,
        message: &[u8],
        file: Option<OwnedFd>,
    ) -> Result<Next, End> {
        let claim = Claim::decode(message).ok_or(End::Refused)?;
        // The peer's proof may still be in the socket.
        adapter.drive(Turn::THREAD);
        let key = (claim.to, claim.from, FIRST_PORT.wrapping_add(claim.slot));
        let keys = adapter.with_engine(|engine| engine.keys_of_connector(&key)).ok_or(End::Refused)?;
        if !claim.is_valid(&keys, greeting) {
            return Err(End::Refused);
        }
        let segment = Segment::open(&file.ok_or(End::Refused)?)?;
        seqpacket::send(socket, &claim.answer(&keys, greeting))?;
        Ok(Next::Ring { key, incarnation: keys.connector, segment })
    }

    /// Gives the engine a ring.
    fn add(
        &mut self,
        adapter: &Adapter,
        listener: &Listener,
        token: u64,
        socket: OwnedFd,
        (key, incarnation): (&PeerKey, u64),
        endpoint: Endpoint,
    ) {
        self.rings.push((token, socket.as_raw_fd()));
        // Before the ring is used: the thread must not sleep without it.
        adapter.sleepers.add(token, endpoint.sleeper());
        let made = Made { endpoint, socket, token };
        let added = adapter.with_engine(|engine| engine.add_ring(adapter, key, incarnation, made, clock::now()));
        match added {
            Ok(()) => tracing::debug!("packets to {}, port {}, go through shared memory", key.1, key.2),
            Err(unused) => self.free(adapter, listener, *unused),
        }
    }

    /// The connection of a ring is readable: its peer wakes this thread, or has ended.
    fn read(&mut self, adapter: &Adapter, listener: &Listener, token: u64) {
        let Some((_, socket)) = self.rings.iter().find(|(other, _)| *other == token) else { return };
        let mut message = [0u8; WAKE.len()];
        // The engine closes the socket of a ring by this thread only.
        match seqpacket::receive(socket, &mut message) {
            Ok(len) if len == WAKE.len() => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            _ => {}
        }
        // The engine may need the ring for some time: it is readable all that time.
        listener.unwatch(*socket);
        adapter.with_engine(|engine| engine.end_ring(adapter, token, clock::now()));
        // A turn arms the timer.
        adapter.drive(Turn::SEND);
    }

    fn end(&mut self, adapter: &Adapter, listener: &Listener, handshake: Handshake, end: End) {
        listener.unwatch(handshake.socket.as_raw_fd());
        adapter.forget_socket(handshake.socket.as_raw_fd());
        match handshake.state {
            State::Connected { wanted } | State::Claimed { wanted, .. } => failed(adapter, &wanted.key, end),
            State::Accepted { .. } => {
                if let End::System(error) = end {
                    let why = explain(&error);
                    // Each attempt of each process may fail.
                    if std::mem::replace(&mut self.failure_logged, true) {
                        tracing::debug!("another process of this machine is reached by UDP{why}: {error}");
                    } else {
                        let device = &adapter.device.name;
                        tracing::warn!(
                            "{device}: a process of this machine is reached by UDP, which is slower{why}: {error}"
                        );
                    }
                }
            }
        }
    }

    fn free(&mut self, adapter: &Adapter, listener: &Listener, ring: Ring) {
        if let Use::Lie(peer) = ring.state {
            tracing::error!(
                "{}: the process at {peer} wrote invalid data into shared memory: packets to it go by UDP from now on. \
                 It has a defect, or is hostile: end it",
                adapter.device.name
            );
        }
        self.rings.retain(|(token, _)| *token != ring.token);
        drop(adapter.sleepers.remove(ring.token));
        listener.unwatch(ring.socket.as_raw_fd());
        adapter.forget_socket(ring.socket.as_raw_fd());
    }
}

/// The thread is called again at this time.
fn call_again(adapter: &Adapter, at: Instant) {
    adapter.with_engine(|engine| engine.need_thread_by(at));
    // A turn arms the timer.
    adapter.drive(Turn::SEND);
}

/// What follows a message.
enum Next {
    /// The peer is right.
    Ring { key: PeerKey, incarnation: u64, segment: Segment },
    /// The claim was sent.
    Claimed { greeting: u64, claim: Claim, segment: Segment },
    /// The message must be the answer.
    Answered,
}

/// The acceptor has sent its greeting: makes the segment and hands it over.
fn greeted(socket: &OwnedFd, wanted: &Wanted, message: &[u8]) -> Result<Next, End> {
    let greeting = handshake::read_greeting(message).ok_or(End::Refused)?;
    let nonce = getrandom::u64().map_err(|_| End::Refused)?;
    let (local, remote, _) = wanted.key;
    let slot = wanted.slot;
    let claim = Claim::new(&wanted.keys, greeting, nonce, local, remote, slot);
    let (segment, file) = Segment::create()?;
    seqpacket::send_with_file(socket, &claim.encode(), &file)?;
    Ok(Next::Claimed { greeting, claim, segment })
}

fn failed(adapter: &Adapter, key: &PeerKey, end: End) {
    let last = adapter.with_engine(|engine| engine.ring_failed(key, clock::now()));
    match end {
        End::System(error) if last => {
            let why = explain(&error);
            let (device, to, port) = (&adapter.device.name, key.1, key.2);
            tracing::warn!("{device}: packets to {to}, port {port}, go by UDP, which is slower{why}: {error}");
        }
        End::Refused if last => tracing::debug!("{}, port {}, shares no memory with this process", key.1, key.2),
        _ => {}
    }
    // A turn arms the timer for the next attempt.
    adapter.drive(Turn::SEND);
}

fn is_own_user(socket: &OwnedFd) -> bool {
    seqpacket::user(socket).is_ok_and(users::is_own)
}

/// Why a ring could not be made, for the log.
fn explain(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => ": there are no descriptors. Close files, or raise `ulimit -n`",
        Some(libc::ENOMEM) => ": there is no memory",
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            ": a sandbox of this process forbids it (seccomp, AppArmor or SELinux)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::testing::Bed;
    use crate::slot::slot_of;
    use weir_transport::Profile;

    #[test]
    fn a_handshake_that_does_not_go_on_is_ended() {
        let bed = Bed::new(&Profile { name: "handshake".into(), ..Profile::ideal() });
        let socket = seqpacket::connect(&local_name(slot_of(bed.qps[0].num()))).unwrap();
        let (mut greeted, end) = (false, std::time::Instant::now() + Duration::from_secs(20));
        loop {
            let mut message = [0; CLAIM_LEN];
            match seqpacket::receive(&socket, &mut message) {
                Ok(0) => break,
                Ok(len) => greeted = handshake::read_greeting(&message[..len]).is_some(),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(std::time::Instant::now() < end, "it is never ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(greeted);
    }
}
