//! A connection, as the engine has it.

use crate::allowed::Allowed;
use crate::error::Error;
use crate::events::Events;
use crate::payload::Payload;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use weir_link::Arrival;
use weir_links::Ends;
use weir_transport::Instant;
use weir_transport::edge::{Agreed, Endpoint, Event, Failure, Flags, Kind, Opening, Operation};

/// A peer that says goodbye counts as gone so much later: what it sent before may come after that.
const GRACE: Duration = Duration::from_millis(5);
/// Packets that are kept until the program takes the connection, at most; others come again.
pub const MOST_HELD: usize = 64;

/// A connection.
pub struct Peer {
    /// Where its hellos come from.
    pub remote: SocketAddr,
    /// This side's address in them.
    pub local: IpAddr,
    pub agreed: Agreed,
    pub opening: Opening,
    /// Where the packets of each link go.
    pub links: Vec<Ends>,
    /// `None`: the connection has ended.
    pub endpoint: Option<Endpoint<Payload>>,
    pub allowed: Allowed,
    pub events: Events,
    /// WRITEs that were copied when they were issued.
    pub copies: HashMap<u32, Box<[u8]>>,
    /// When something of the peer came.
    pub heard: Instant,
    /// When it ends, because the peer has ended it.
    pub leaves: Option<Instant>,
    /// Packets that came before the program has taken the connection.
    pub held: Vec<(Arrival, Box<[u8]>)>,
    /// The program has it.
    pub is_taken: bool,
    /// Why it has ended.
    pub ended: Option<Error>,
    /// When the engine looks at it.
    pub scheduled: Option<Instant>,
    /// Packets may be sent.
    pub is_touched: bool,
}

impl Peer {
    /// When the engine has to look at it.
    pub fn next(&self, patience: Duration) -> Option<Instant> {
        let endpoint = self.endpoint.as_ref()?;
        let asks = match self.opening.poll_timeout() {
            None => self.heard + patience / 2,
            Some(next) => next.min(self.heard + patience),
        };
        let protocol = endpoint.poll_timeout().filter(|_| self.is_taken);
        [protocol, self.leaves].into_iter().flatten().chain([asks]).min()
    }

    /// The peer is asked to show that it is there: on all links by an empty WRITE, and by a hello, which it answers even if
    /// its program has not taken the connection.
    pub fn inquire(&mut self, now: Instant) {
        let numbers = self.agreed.numbers;
        self.opening.ask(now, || numbers);
        if let Some(endpoint) = self.endpoint.as_mut().filter(|endpoint| endpoint.is_idle()) {
            let (kind, flags) = (Kind::Write, Flags::default());
            endpoint.issue(Operation { kind, remote: 0, local: 0, bytes: 0, flags });
        }
    }

    /// The peer has said goodbye.
    pub fn leave(&mut self, now: Instant) {
        self.leaves.get_or_insert(now + GRACE);
    }

    /// The program is told of what has happened. Returns whether there was something.
    pub fn collect(&mut self, mut count: impl FnMut(&Event)) -> bool {
        let Some(endpoint) = &mut self.endpoint else { return false };
        let mut any = false;
        loop {
            let event = if self.events.has_room() { endpoint.poll_event() } else { endpoint.poll_completion() };
            let Some(event) = event else { return any };
            if matches!(event, Event::Completed { operation, .. } if !self.events.has(operation)) {
                continue; // That of `inquire`.
            }
            any = true;
            count(&event);
            match event {
                Event::Completed { operation, result } => {
                    self.copies.remove(&operation);
                    let error = |failure| match failure {
                        Failure::Local => Error::Local,
                        Failure::Remote => Error::Remote,
                    };
                    self.events.complete(operation, result.map_err(error));
                }
                Event::Notified { address, bytes } => self.events.notify(address, bytes),
            }
        }
    }

    /// The connection ends; its operations fail. Nothing reads or writes memory for it any more.
    pub fn end(&mut self, error: Error) {
        self.endpoint = None;
        self.copies.clear();
        self.held.clear();
        self.allowed = Allowed::default();
        self.opening.forget();
        self.events.fail_all(&error);
        self.ended.get_or_insert(error);
    }
}
