//! The rings of an adapter: their list, and when the engine looks at them and at the sockets.

use crate::engine::local::receive_wait::ReceiveWait;
use crate::engine::peers::hellos::OutgoingHello;
use crate::engine::peers::identity::{PeerId, PeerKey};
use crate::local::endpoint::{Endpoint, MAX_RINGS};
use crate::local::handshake::{Keys, WAKE};
use crate::os::seqpacket;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use weir_transport::Instant;

/// Room for a packet that is held until its page comes.
const SCRATCH: usize = 4608;
/// The sockets are looked at in each turn for this long after something came from them (nanoseconds), and at this
/// interval otherwise. It applies to a process that has a ring: its packets rarely come from the sockets, and a look
/// takes longer than a turn.
const SOCKETS_BUSY: u64 = 1_000_000;
const SOCKETS_INTERVAL: u64 = 20_000;

/// Index of a ring.
pub type RingId = usize;

/// A pair of rings to a peer.
pub struct Ring {
    pub endpoint: Endpoint,
    /// The connection by which it was made. It ends with the peer's process, and carries what wakes the peer's thread.
    pub socket: OwnedFd,
    /// Its number in the thread's lists.
    pub token: u64,
    /// The peer's process.
    pub incarnation: u64,
    pub peer: PeerId,
    pub state: Use,
    pub(in crate::engine) made: Instant,
    /// The attempts that it took.
    pub(in crate::engine) tries: u32,
    /// UC packets went through it, in one direction or the other.
    pub(in crate::engine) unreliable: bool,
    /// Its next packet waits for a receive.
    pub(in crate::engine) wait: ReceiveWait,
    /// An answer to a question of flow control: all packets before the question must be taken first.
    pub(in crate::engine) answer: Option<OutgoingHello>,
}

/// What a ring is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Packets in both directions.
    Both,
    /// Its connection has ended, or another ring took its place: what is in it is taken.
    Rest,
    /// Nothing: the peer at this address wrote what no Weir process writes. The log does not say so yet.
    Lie(SocketAddr),
}

/// The rings of an adapter.
pub struct Rings {
    pub(in crate::engine) rings: Vec<Option<Box<Ring>>>,
    pub(in crate::engine) count: usize,
    /// Rings that the thread must free.
    #[allow(clippy::vec_box)] // A turn moves the boxes here, and frees nothing.
    pub(in crate::engine) closed: Vec<Box<Ring>>,
    /// Packets were published in this turn.
    sent: bool,
    /// When the thread is needed: a peer is to be tried again, or a handshake has taken too long.
    pub(in crate::engine) next_try: Option<Instant>,
    /// When a ring that waits for a receive is looked at again.
    pub(in crate::engine) next_look: Option<Instant>,
    /// The thread is needed.
    pub(in crate::engine) ask: bool,
    /// There were too many.
    pub(in crate::engine) limit_reached: bool,
    pub(in crate::engine) scratch: Box<[u8]>,
    /// When something last came from the sockets, and when they are looked at next (nanoseconds).
    sockets_busy: u64,
    look_at_sockets: u64,
}

/// A peer that gets a ring.
pub struct Wanted {
    pub key: PeerKey,
    /// This process connects.
    pub keys: Keys,
    /// This process's slot.
    pub slot: u16,
}

impl Rings {
    /// None.
    pub fn new() -> Rings {
        Rings {
            rings: (0..MAX_RINGS).map(|_| None).collect(),
            count: 0,
            closed: Vec::with_capacity(MAX_RINGS),
            sent: false,
            next_try: None,
            next_look: None,
            ask: false,
            limit_reached: false,
            scratch: vec![0; SCRATCH].into(),
            sockets_busy: 0,
            look_at_sockets: 0,
        }
    }

    /// The indices that rings may have: none if there is no ring.
    pub fn ids(&self) -> Range<RingId> {
        0..if self.count == 0 { 0 } else { self.rings.len() }
    }

    /// The ring of an index.
    pub fn get_mut(&mut self, id: RingId) -> Option<&mut Ring> {
        self.rings.get_mut(id)?.as_deref_mut()
    }

    /// The thread is needed at this time at the latest.
    pub fn need_thread_by(&mut self, at: Instant) {
        self.next_try = Some(self.next_try.map_or(at, |next| next.min(at)));
    }

    /// Returns whether the thread must be asked for work.
    #[inline]
    pub fn needs_thread(&self) -> bool {
        self.ask
    }

    /// When the engine has something to do for them.
    pub fn next(&self) -> Option<u64> {
        self.next_try.into_iter().chain(self.next_look).map(|instant| instant.0).min()
    }

    /// Returns whether a turn looks for arrivals at the sockets.
    #[inline]
    pub fn leaves_time_for_sockets(&mut self, now: Instant) -> bool {
        let looks = self.count == 0 || now.0 >= self.look_at_sockets;
        if looks {
            let busy = now.0.saturating_sub(self.sockets_busy) < SOCKETS_BUSY;
            self.look_at_sockets = if busy { 0 } else { now.0 + SOCKETS_INTERVAL };
        }
        looks
    }

    /// Packets were published.
    #[inline]
    pub fn note_sent(&mut self) {
        self.sent = true;
    }

    /// Returns whether packets were published since the last call.
    #[inline]
    pub fn take_sent(&mut self) -> bool {
        std::mem::take(&mut self.sent)
    }

    /// Something came from the sockets.
    pub fn note_arrivals(&mut self, now: Instant) {
        (self.sockets_busy, self.look_at_sockets) = (now.0, 0);
    }

    /// Returns whether a ring can be added. Rings that wait to be freed count: the list of them does not grow.
    pub fn has_room(&self) -> bool {
        self.count + self.closed.len() < MAX_RINGS
    }

    /// Adds a ring; returns it if there are too many.
    pub fn insert(&mut self, ring: Box<Ring>) -> Result<RingId, Box<Ring>> {
        let room = self.has_room();
        let Some(id) = self.rings.iter().position(Option::is_none).filter(|_| room) else { return Err(ring) };
        self.rings[id] = Some(ring);
        self.count += 1;
        Ok(id)
    }

    /// Removes a ring.
    pub fn remove(&mut self, id: RingId) -> Option<Box<Ring>> {
        let ring = self.rings.get_mut(id)?.take()?;
        self.count -= 1;
        Some(ring)
    }
}

impl Ring {
    /// Wakes the peer's thread if it sleeps. To be called after packets were published.
    #[inline]
    pub fn wake_peer(&self) {
        if self.endpoint.must_wake_peer() {
            // If the socket is full, the peer has messages to wake up for.
            let _ = seqpacket::send(&self.socket, &WAKE);
        }
    }
}
