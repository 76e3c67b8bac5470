//! A connection over several links: both of its halves.

use super::order::{self, Sequencer};
use super::parameters::Parameters;
use super::receiver::{Arrival, Receiver, micros};
use super::scheduler::Scheduler;
use super::sender::{Departure, LinkState, Sender};
use crate::Instant;
use weir_wire::edge::{Ack, Header, MAX_LINKS, MAX_WINDOW, Order, RECEIVED_LEN, Seq};

/// One side of a connection. `C` is what the caller needs to send a packet again, `T` a packet that has arrived.
///
/// ```text
/// send(now, bytes, order, content) ─▶ ┌────────────┐ ─▶ header of the packet, and the link to put it on
/// handle(now, header, ack, packet) ─▶ │ Connection │ ─▶ perform(now): each packet once, when its order allows it
/// handle_timeout(now) ──────────────▶ └────────────┘ ─▶ poll_again(now), poll_ack(now): what else is to be sent
/// ```
///
/// A link has the same number on both sides. A header that has room says up to where all packets have arrived. An
/// acknowledgement that is due goes with a new packet that has room for it, or alone.
#[derive(Debug)]
pub struct Connection<C, T> {
    /// The peer's number of the connection.
    peer: u32,
    sender: Sender<Sent<C>>,
    receiver: Receiver,
    sequencer: Sequencer<T>,
    /// Packets of the peer that have failed.
    failures: u32,
    ack: Ack,
    /// The link of the latest arrival: the peer can probably be reached on it.
    heard_on: u8,
    /// The link on which the latest acknowledgement goes once more.
    once_more_on: Option<u8>,
}

/// What is kept of a packet until it has arrived.
#[derive(Debug)]
struct Sent<C> {
    order: Order,
    /// Beside the content there is room for [`Header::received`].
    has_room: bool,
    content: C,
}

/// How a connection begins.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub parameters: Parameters,
    /// How this side chooses links.
    pub scheduler: Scheduler,
    /// The peer's number of the connection.
    pub peer: u32,
    /// The first packet of this side, and of the peer.
    pub first: [Seq; 2],
}

/// A new packet that leaves.
#[derive(Debug)]
pub struct Leaving<'a, C> {
    pub header: Header,
    /// Goes between the header and what the packet carries.
    pub ack: Option<&'a Ack>,
    pub content: &'a C,
}

/// A packet has come that is not taken. Its acknowledgement is, but for that of an unknown link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the connection has no link {0}")]
    Link(u8),
    #[error("the packet is beyond the window")]
    Beyond,
    #[error("the packet is to wait for a packet after it")]
    Order,
    #[error("a packet without a piece, or a piece without a packet")]
    Piece,
    #[error("the peer asks for more at a time than it may")]
    Reads,
    #[error("the program does not take its notifications")]
    Notifications,
    #[error("the peer does not take what it is told of its failed WRITEs")]
    Failures,
}

impl<C, T> Connection<C, T> {
    /// With links of these weights (1: about 1 Gbit/s).
    ///
    /// # Panics
    /// If there are no links, or more than 64, or if the window is 0 or larger than a bitmap.
    pub fn new(setup: Setup, weights: &[u32]) -> Connection<C, T> {
        let Setup { parameters, scheduler, peer, first: [ours, theirs] } = setup;
        assert!((1..=MAX_LINKS).contains(&weights.len()), "{} links", weights.len());
        assert!((1..=MAX_WINDOW).contains(&parameters.window), "a window of {} packets", parameters.window);
        Connection {
            peer,
            sender: Sender::new(parameters, scheduler, weights, ours),
            receiver: Receiver::new(parameters, theirs),
            sequencer: Sequencer::new(parameters.window, theirs),
            failures: 0,
            ack: Ack::default(),
            heard_on: 0,
            once_more_on: None,
        }
    }

    /// Whether `send` takes a packet. The caller has one: if not, the links are taken to be what it waits for.
    pub fn has_room(&mut self, now: Instant) -> bool {
        self.sender.has_room(now)
    }

    /// The number that the next packet gets.
    pub fn next_seq(&self) -> Seq {
        self.sender.next_seq()
    }

    /// All packets of this side before this one have been performed by the peer, and the peer had counted so many failures
    /// by then.
    pub fn performed_by_peer(&self) -> (Seq, u32) {
        self.sender.performed()
    }

    /// Whether the peer has performed all packets.
    pub fn is_idle(&self) -> bool {
        self.sender.is_idle()
    }

    /// What the state of each link is.
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkState> + '_ {
        self.sender.links()
    }

    /// Sends a packet of so many bytes on the wire. `room`: bytes that may be added to it, for what it says of the peer's
    /// packets. `None`: the window is full, or no link takes it.
    pub fn send(&mut self, now: Instant, bytes: u32, room: u32, order: Order, content: C) -> Option<Leaving<'_, C>> {
        let room = room as usize;
        let fits = self.receiver.is_almost_due(now) && RECEIVED_LEN + self.receiver.ack_len() <= room;
        let received = (RECEIVED_LEN <= room).then(|| self.receiver.received());
        let sent = Sent { order, has_room: received.is_some(), content };
        let (departure, sent) = self.sender.send(now, bytes, sent)?;
        if fits {
            self.receiver.acknowledge(now, self.sequencer.performed(), self.failures, &mut self.ack);
        }
        Some(Leaving {
            header: header(now, departure, order, self.peer, received),
            ack: fits.then_some(&self.ack),
            content: &sent.content,
        })
    }

    /// The next packet that goes again with its content, or an empty packet that asks the peer to answer.
    pub fn poll_again(&mut self, now: Instant) -> Option<(Header, Option<&C>)> {
        let connection = self.peer;
        let (departure, sent) = self.sender.poll_again(now)?;
        let received = sent.is_none_or(|sent| sent.has_room).then(|| self.receiver.received());
        let order = sent.map_or(Order::Any, |sent| sent.order);
        Some((header(now, departure, order, connection, received), sent.map(|sent| &sent.content)))
    }

    /// An acknowledgement, if it is due, to be sent alone; the caller calls again until there is none. One that others do
    /// not follow soon goes on two links: one may not work in this direction, which this side does not notice.
    pub fn poll_ack(&mut self, now: Instant) -> Option<(Header, &Ack)> {
        let received = Some(self.receiver.received());
        let (connection, sent) = (self.peer, micros(now));
        let header = |link| Header { connection, link, count: 0, packet: None, received, sent, asks: false };
        if let Some(link) = self.once_more_on.take() {
            return Some((header(link), &self.ack));
        }
        self.receiver.due().filter(|due| *due <= now)?;
        let n = self.sender.links().len() as u8;
        let after = |link: u8| (1..n).map(move |k| (link + k) % n).find(|link| self.sender.is_up(*link));
        let link = if self.sender.is_up(self.heard_on) { None } else { after(self.heard_on) }.unwrap_or(self.heard_on);
        if !self.receiver.is_busy() {
            self.once_more_on = after(link);
        }
        self.receiver.acknowledge(now, self.sequencer.performed(), self.failures, &mut self.ack);
        Some((header(link), &self.ack))
    }

    /// A header has come. `packet` makes what is kept of its packet, is called if the packet is new, and
    /// gets whether the packet has to wait for others. `done` gets the
    /// contents of packets that have arrived at the peer. Returns whether the packet was new. Call `perform` next.
    pub fn handle(
        &mut self,
        now: Instant,
        header: &Header,
        ack: Option<&Ack>,
        packet: impl FnOnce(bool) -> T,
        mut done: impl FnMut(Seq, C),
    ) -> Result<bool, Refusal> {
        if usize::from(header.link) >= self.sender.links().len() {
            return Err(Refusal::Link(header.link));
        }
        if let Some(received) = header.received {
            self.sender.acknowledge(now, received, ack, |seq, sent| done(seq, sent.content));
        }
        if header.packet.is_some_and(|(seq, order)| !order::is_sound(seq, order)) {
            return Err(Refusal::Order);
        }
        let arrival = self.receiver.receive(now, header, self.sequencer.performed());
        match (arrival, header.packet) {
            (Arrival::Beyond, _) => return Err(Refusal::Beyond),
            (Arrival::New, Some((seq, order))) => self.sequencer.arrive(seq, order, packet),
            _ => {}
        }
        self.heard_on = header.link;
        Ok(arrival == Arrival::New)
    }

    /// The next packet of the peer that may be performed. The caller does so before it calls again, and performs all
    /// before it calls `handle` again.
    pub fn perform(&mut self, now: Instant) -> Option<(Seq, T)> {
        let next = self.sequencer.next();
        self.receiver.note_performed(now, self.sequencer.performed());
        next
    }

    /// The packet that `perform` has returned last has failed, which the caller will tell the peer: the peer will know that
    /// it has to wait for that.
    pub fn note_failure(&mut self) {
        self.failures = self.failures.wrapping_add(1);
    }

    /// When `handle_timeout` is to be called, and `poll_again`, `send` and `poll_ack` after it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.sender.poll_timeout().into_iter().chain(self.receiver.due()).min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now);
    }

    /// The interface of a link is up, or down.
    pub fn set_link(&mut self, now: Instant, link: usize, up: bool) {
        self.sender.set_link(now, link, up);
    }
}

fn header(now: Instant, departure: Departure, order: Order, connection: u32, received: Option<Seq>) -> Header {
    let Departure { seq, link, count, asks } = departure;
    Header { connection, link, count, packet: seq.map(|seq| (seq, order)), received, sent: micros(now), asks }
}
