//! The state of a node, and one turn of it.

use crate::allowed::{Allow, Allowed};
use crate::clock;
use crate::counters::Counters;
use crate::error::Error;
use crate::events::MOST_OPERATIONS;
use crate::meter::{Meter, Part};
use crate::options::Options;
use crate::payload::Pool;
use crate::peer::Peer;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use weir_guarded::mask;
use weir_link::{Carrier, DisabledFeatures, Inbox, Outbox, Ports};
use weir_links::{Departures, Interfaces, NumberSource};
use weir_transport::Instant;
use weir_transport::edge::{Ack, Address, Agreed, Opening, Operation};

/// Receive buffers, of 64 KiB each: those of one call.
const SLOTS: usize = 8;
/// Calls that receive something in one turn, at most: others want the lock.
const ROUNDS: usize = 4;
/// Turns between two looks whether a connected socket is worth it.
const LOOK: u32 = 4096;
/// Tries to find a port that is free in both families.
const PORTS: usize = 32;
/// A peer that has answered none of the questions of an `Opening` is asked anew so much after the last one: its program may
/// start later.
const ANEW: Duration = Duration::from_secs(1);
/// Ended connections of which the peer may be told once more.
pub(crate) const MOST_LINGERING: usize = 64;

/// The state of a node.
pub struct Engine {
    pub(crate) options: Options,
    pub(crate) listens: bool,
    pub(crate) carrier: Ports,
    pub(crate) interfaces: Interfaces,
    /// For hellos.
    pub(crate) addresses: Arc<[Address]>,
    pub(crate) inbox: Option<Inbox>,
    pub(crate) outgoing: Departures,
    /// A hello that leaves.
    pub(crate) outbox: Outbox,
    pub(crate) ack: Ack,
    pub(crate) pool: Pool,
    pub(crate) numbers: NumberSource,
    /// By this side's numbers.
    pub(crate) peers: BTreeMap<u32, Peer>,
    /// By the addresses of the peers; only those that have not ended.
    pub(crate) by_remote: HashMap<SocketAddr, u32>,
    /// Peers that are asked for a connection.
    pub(crate) requests: HashMap<SocketAddr, Request>,
    /// Connections that the program has not taken, the oldest first.
    pub(crate) backlog: VecDeque<u32>,
    /// Connections that this side has ended lately.
    pub(crate) lingering: VecDeque<Lingering>,
    /// When a packet for an unknown connection is answered again.
    pub(crate) disowns: Instant,
    /// When to look at which connection.
    pub(crate) timers: BTreeSet<(Instant, u32)>,
    /// Connections that may have packets to send.
    pub(crate) touched: Vec<u32>,
    /// What threads may wait for has happened.
    pub(crate) has_news: bool,
    /// When the node's thread wakes.
    pub(crate) wakes: Option<Instant>,
    pub(crate) counters: Counters,
    pub(crate) meter: Meter,
    turns: u32,
}

/// A peer that is asked for a connection.
pub(crate) struct Request {
    pub opening: Opening,
    pub ifindex: u32,
    pub is_refused: bool,
    /// When the peer was asked.
    pub asked: Instant,
}

impl Request {
    /// When the peer is asked again: as long as the program wants a connection and the peer does not refuse it.
    pub fn next(&self) -> Option<Instant> {
        let next = self.opening.poll_timeout().unwrap_or(self.asked + ANEW);
        Some(next).filter(|_| !self.is_refused)
    }
}

/// A connection that this side has ended.
pub(crate) struct Lingering {
    pub agreed: Agreed,
    pub remote: SocketAddr,
    /// When the peer may be told again.
    pub again: Instant,
}

impl Engine {
    /// Opens the sockets of a node.
    pub fn open(options: Options, listens: bool) -> Result<Engine, Error> {
        options.check()?;
        let interfaces = Interfaces::find(&options.links()?)?;
        let carrier = bind(if listens { options.port } else { 0 })?;
        let numbers = NumberSource::new().map_err(|error| Error::Invalid(format!("no random numbers: {error}")))?;
        Ok(Engine {
            listens,
            carrier,
            addresses: interfaces.addresses().into(),
            interfaces,
            inbox: Some(Inbox::new(SLOTS)),
            outgoing: Departures::default(),
            outbox: Outbox::new(weir_wire::edge::MAX_HELLO_LEN, 1),
            ack: Ack::default(),
            pool: Pool::default(),
            numbers,
            peers: BTreeMap::new(),
            by_remote: HashMap::new(),
            requests: HashMap::new(),
            backlog: VecDeque::new(),
            lingering: VecDeque::new(),
            disowns: Instant::default(),
            timers: BTreeSet::new(),
            touched: vec![],
            has_news: false,
            wakes: None,
            counters: Counters::default(),
            meter: Meter::new(options.measure),
            turns: 0,
            options,
        })
    }

    /// One turn: what has come, what is due, what leaves. Returns whether something has come.
    pub fn turn(&mut self) -> bool {
        let meter = self.meter.clone();
        let _packet = meter.during(Part::Packet);
        mask::turn_begins();
        let mut any = false;
        for _ in 0..ROUNDS {
            let now = clock::now();
            let got = self.receive(now);
            self.look_at_due(now);
            self.send_touched(now);
            if got == 0 {
                break;
            }
            any = true;
        }
        mask::turn_ends();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK) && self.carrier.wants_socket() {
            // Without it, sends are dearer and nothing else.
            let _ = self.carrier.add_socket();
        }
        any
    }

    /// When a turn is to be taken although nothing comes.
    pub fn next_turn(&self) -> Option<Instant> {
        let asks = self.requests.values().filter_map(Request::next);
        self.timers.first().map(|(at, _)| *at).into_iter().chain(asks).min()
    }

    /// Begins an operation; `copies`: bytes that it writes, if they are not those of the program; `is_claimed`: its end is
    /// for a call that waits for it, and is no event.
    pub fn issue(
        &mut self,
        number: u32,
        operation: Operation,
        copies: Option<Box<[u8]>>,
        is_claimed: bool,
    ) -> Result<u32, Error> {
        let peer = self.open_peer(number)?;
        if peer.events.operations() >= MOST_OPERATIONS {
            return Err(Error::TooMany(MOST_OPERATIONS));
        }
        let Some(endpoint) = &mut peer.endpoint else { return Err(Error::Closed) };
        let local = copies.as_ref().map_or(operation.local, |bytes| bytes.as_ptr().expose_provenance() as u64);
        let handle = endpoint.issue(Operation { local, ..operation });
        peer.copies.extend(copies.map(|bytes| (handle, bytes)));
        peer.events.begin(handle);
        if is_claimed {
            peer.events.claim(handle);
        }
        self.touch(number);
        let meter = self.meter.clone();
        let _packet = meter.during(Part::Packet);
        mask::turn_begins();
        self.send_touched(clock::now());
        mask::turn_ends();
        Ok(handle)
    }

    /// A connection that has not ended.
    pub fn open_peer(&mut self, number: u32) -> Result<&mut Peer, Error> {
        let peer = self.peers.get_mut(&number).ok_or(Error::Closed)?;
        match &peer.ended {
            Some(error) => Err(error.clone()),
            None => Ok(peer),
        }
    }

    /// The program takes the oldest connection that waits.
    pub fn take(&mut self, allow: &Allow) -> Result<Option<u32>, Error> {
        if self.backlog.is_empty() {
            return Ok(None);
        }
        let allowed = Allowed::new(allow)?;
        let Some(number) = self.backlog.pop_front() else { return Ok(None) };
        self.give(number, allowed);
        Ok(Some(number))
    }

    /// The program has the connection from now on.
    pub(crate) fn give(&mut self, number: u32, allowed: Allowed) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        (peer.is_taken, peer.allowed) = (true, allowed);
        let held = std::mem::take(&mut peer.held);
        mask::turn_begins();
        let now = clock::now();
        for (arrival, bytes) in held {
            self.packet(now, &arrival, &bytes);
        }
        self.send_touched(now);
        mask::turn_ends();
    }

    /// A connection may have packets to send.
    pub(crate) fn touch(&mut self, number: u32) {
        if let Some(peer) = self.peers.get_mut(&number).filter(|peer| !peer.is_touched) {
            peer.is_touched = true;
            self.touched.push(number);
        }
    }

    /// A connection is looked at when it has to be.
    pub(crate) fn schedule(&mut self, number: u32) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let next = peer.next(self.options.patience);
        if next != peer.scheduled {
            if let Some(before) = peer.scheduled {
                self.timers.remove(&(before, number));
            }
            if let Some(next) = next {
                self.timers.insert((next, number));
            }
            peer.scheduled = next;
        }
    }

    /// A connection ends. The program learns why, if it has it.
    pub(crate) fn end(&mut self, number: u32, error: Error) {
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.end(error);
        let (remote, is_taken) = (peer.remote, peer.is_taken);
        self.numbers.ended(&remote);
        if self.by_remote.get(&remote) == Some(&number) {
            self.by_remote.remove(&remote);
        }
        self.schedule(number);
        if !is_taken {
            self.backlog.retain(|waiting| *waiting != number);
            self.peers.remove(&number);
        }
        self.has_news = true;
    }

    /// The program ends a connection: the peer is told what has been performed, and then that it ends.
    pub fn close(&mut self, number: u32) {
        let now = clock::now();
        if self.open_peer(number).is_ok() {
            self.acknowledge(now, number);
            self.say_goodbye(now, number);
            self.end(number, Error::Closed);
        }
        if self.peers.get(&number).is_some_and(|peer| peer.is_taken) {
            self.peers.remove(&number);
        }
    }

    /// Ends all connections.
    pub fn close_all(&mut self) {
        let all: Vec<u32> = self.peers.keys().copied().collect();
        all.into_iter().for_each(|number| self.close(number));
    }

    /// All connections end for this reason.
    pub fn fail_all(&mut self, error: &Error) {
        let all: Vec<u32> = self.peers.keys().copied().collect();
        all.into_iter().for_each(|number| self.end(number, error.clone()));
    }

    /// Looks at connections and requests that have to be looked at.
    fn look_at_due(&mut self, now: Instant) {
        let later = self.timers.split_off(&(Instant(now.0 + 1), 0));
        for (_, number) in std::mem::replace(&mut self.timers, later) {
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.scheduled = None;
                // It is scheduled again when its packets have left.
                self.look_at(now, number);
            }
        }
        self.ask(now);
    }

    fn look_at(&mut self, now: Instant, number: u32) {
        let patience = self.options.patience;
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if peer.leaves.is_some_and(|leaves| leaves <= now) {
            return self.end(number, Error::Ended);
        }
        if peer.heard + patience <= now {
            return self.end(number, Error::Silent(patience));
        }
        if peer.heard + patience / 2 <= now {
            peer.inquire(now);
        }
        if let Some(endpoint) = &mut peer.endpoint {
            endpoint.handle_timeout(now);
        }
        self.ask_again(now, number);
        self.touch(number);
    }
}

/// Binds a port in both families; 0: one that is free.
fn bind(port: u16) -> Result<Ports, Error> {
    let list = std::env::var_os("WEIR_ALLOW").unwrap_or_default();
    // A list that is no Unicode is wrong, not unset.
    let hosts: weir_link::Allowed = match &*list.to_string_lossy() {
        "" => weir_link::Allowed::default(),
        list => {
            let invalid = io::Error::from_raw_os_error(libc::EINVAL);
            list.parse().map_err(|_| Error::system("WEIR_ALLOW is not a list of prefixes", &invalid))?
        }
    };
    let bind = |port| Ports::bind_for(port, DisabledFeatures::default(), hosts.clone());
    let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
    if port != 0 {
        return bind(port).map_err(|error| match is_taken(&error) {
            true => Error::PortInUse(port),
            false => Error::system("the UDP port cannot be bound", &error),
        });
    }
    let mut failed = None;
    for _ in 0..PORTS {
        // Which port is free, the kernel says; that another process takes it now is rare.
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))
            .or_else(|_| std::net::UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, 0)));
        let port = socket.and_then(|socket| socket.local_addr()).map(|address| address.port());
        match port.and_then(bind) {
            Ok(ports) => return Ok(ports),
            Err(error) => failed = Some(error),
        }
    }
    let failed = failed.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(Error::system("no UDP port can be bound", &failed))
}
