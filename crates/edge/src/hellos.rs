//! Hellos: connections begin and end.

use crate::allowed::Allowed;
use crate::departures::unspecified;
use crate::engine::{Engine, Request};
use crate::error::Error;
use crate::events::Events;
use crate::peer::Peer;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use weir_link::Arrival;
use weir_links::{Ends, is_link_local};
use weir_transport::Instant;
use weir_transport::edge::{Address, Agreed, Endpoint, Opening, Own, Parameters, Setup};
use weir_wire::edge::{HEADER_LEN, Hello, PIECE_LEN};

/// The largest IP packet, bytes.
const MOST: u32 = 65_535;
/// The MTU of a path of which the kernel says none.
const ETHERNET: u32 = 1500;
/// The smallest payload of a packet that is used.
const LEAST: u32 = 64;
/// Bytes that the kernel counts beside a packet, about.
const OVERHEAD: u32 = 512;
/// The fewest packets of a window.
const LEAST_WINDOW: usize = 8;

impl Engine {
    /// What hellos say of this side. A node either listens or asks, so the two sides of a connection differ.
    pub(crate) fn own<'a>(&self, addresses: &'a [Address]) -> Own<'a> {
        Own { addresses, lists_all: self.interfaces.lists_all, pieces: true, is_first: !self.listens }
    }

    /// Asks a peer for a connection.
    pub fn request(&mut self, now: Instant, remote: SocketAddr, ifindex: u32) -> Result<(), Error> {
        if self.listens {
            return Err(Error::Invalid("a node that listens cannot request connections: open another one".into()));
        }
        if self.by_remote.contains_key(&remote) || self.requests.contains_key(&remote) {
            return Err(Error::Connected(remote));
        }
        self.requests.insert(remote, Request { opening: Opening::default(), ifindex, is_refused: false, asked: now });
        self.ask_for(now, remote);
        self.ask(now);
        Ok(())
    }

    /// What has come of a request: the number of the connection.
    pub fn requested(&mut self, remote: SocketAddr) -> Result<Option<u32>, Error> {
        if let Some(number) = self.by_remote.get(&remote).copied() {
            let peer = self.peers.get(&number);
            return Ok(peer.filter(|peer| peer.opening.is_confirmed()).map(|_| number));
        }
        match self.requests.get(&remote) {
            Some(request) if !request.is_refused => Ok(None),
            _ => Err(Error::Refused(remote)),
        }
    }

    /// A request is given up.
    pub fn forget_request(&mut self, remote: SocketAddr) {
        self.requests.remove(&remote);
        if let Some(number) = self.by_remote.get(&remote).copied() {
            self.close(number);
        }
    }

    /// A hello has come.
    pub(crate) fn hello(&mut self, now: Instant, arrival: &Arrival, bytes: &[u8]) {
        let Ok(hello) = Hello::decode(bytes) else {
            self.counters.packets_refused += 1;
            return;
        };
        let from = arrival.from;
        let known = self.by_remote.get(&from).copied();
        if let Some(number) = known
            && let Some(peer) = self.peers.get_mut(&number).filter(|peer| peer.agreed.is_farewell(&hello))
        {
            if !peer.is_taken {
                return self.end(number, Error::Ended);
            }
            peer.leave(now);
            return self.schedule(number);
        }
        if let Some(unknown) = hello.unknown_connection() {
            return self.doubt(now, known, unknown);
        }
        let addresses = self.addresses.clone();
        let own = self.own(&addresses);
        let is_full = self.backlog.len() >= self.options.backlog;
        // Before anything is taken from its place: a forged hello is to change nothing.
        let is_usable = hello.pieces || hello.refuses;
        let opening = match (known, self.requests.get_mut(&from)) {
            _ if !is_usable => None,
            (Some(number), _) => self.peers.get_mut(&number).map(|peer| std::mem::take(&mut peer.opening)),
            (None, Some(request)) => Some(std::mem::take(&mut request.opening)),
            (None, None) if !self.listens || is_full && hello.answer == 0 => None,
            (None, None) => Some(Opening::default()),
        };
        let Some(mut opening) = opening else {
            if hello.ask != 0 {
                self.answer(&own.refusal(&hello), arrival);
            }
            return;
        };
        let was_confirmed = opening.is_confirmed();
        let outcome = opening.handle(&hello, &own, |peer| self.numbers.derive(&from, peer));
        let is_confirmed = !was_confirmed && opening.is_confirmed();
        if let Some(number) = known {
            if let Some(agreed) = outcome.agreed {
                // The peer has no such connection any more. It may have agreed on another, before the program has this.
                let begins = self.listens || self.peers.get(&number).is_some_and(|peer| !peer.is_taken);
                self.end(number, Error::Ended);
                if !begins {
                    return;
                }
                self.begin(now, agreed, opening, arrival);
            } else if let Some(peer) = self.peers.get_mut(&number) {
                peer.opening = opening;
                if is_confirmed {
                    peer.heard = now;
                    self.has_news = true;
                }
                self.schedule(number);
            }
        } else if let Some(agreed) = outcome.agreed {
            self.requests.remove(&from);
            if self.listens && is_full {
                return self.answer(&agreed.farewell(&self.own(&[])), arrival);
            }
            self.begin(now, agreed, opening, arrival);
        } else if let Some(request) = self.requests.get_mut(&from) {
            request.opening = opening;
            request.is_refused |= outcome.refused;
            self.has_news |= outcome.refused;
        }
        if let Some(reply) = outcome.reply {
            self.answer(&reply, arrival);
        }
    }

    /// A peer may not have its side of a connection any more: it is asked. Another process that answers ends the connection.
    fn doubt(&mut self, now: Instant, known: Option<u32>, unknown: u32) {
        let Some(number) = known else { return };
        let Some(peer) = self.peers.get_mut(&number).filter(|peer| peer.agreed.peer == unknown) else { return };
        let numbers = peer.agreed.numbers;
        peer.opening.ask(now, || numbers);
        self.schedule(number);
    }

    /// Asks peers that are to be asked for a connection.
    pub(crate) fn ask(&mut self, now: Instant) {
        if self.requests.is_empty() {
            return;
        }
        let due = |request: &Request| request.next().is_some_and(|next| next <= now);
        let due: Vec<SocketAddr> =
            self.requests.iter().filter(|(_, request)| due(request)).map(|(to, _)| *to).collect();
        due.iter().for_each(|remote| self.ask_for(now, *remote));
        let addresses = self.addresses.clone();
        let own = self.own(&addresses);
        let question = |remote: SocketAddr| {
            let request = self.requests.get_mut(&remote)?;
            let hello = request.opening.poll(now, &own)?;
            request.asked = now;
            Some((remote, request.ifindex, hello))
        };
        let questions: Vec<_> = due.into_iter().filter_map(question).collect();
        for (remote, ifindex, hello) in questions {
            self.send_hello(&hello, remote, unspecified(remote), ifindex);
        }
    }

    /// Asks the peer of a connection, if that is due.
    pub(crate) fn ask_again(&mut self, now: Instant, number: u32) {
        let addresses = self.addresses.clone();
        let own = self.own(&addresses);
        let Some(peer) = self.peers.get_mut(&number) else { return };
        if let Some(hello) = peer.opening.poll(now, &own) {
            let (remote, local) = (peer.remote, peer.local);
            self.send_hello(&hello, remote, local, 0);
        }
    }

    /// Begins to ask, or begins again.
    fn ask_for(&mut self, now: Instant, remote: SocketAddr) {
        let Some(request) = self.requests.get_mut(&remote) else { return };
        let (numbers, peers) = (&self.numbers, &self.peers);
        let is_free = |numbers: &weir_transport::edge::Numbers| !peers.contains_key(&numbers.connection);
        let random = || std::iter::repeat_with(|| numbers.random()).find(is_free).expect("the iterator has no end");
        request.opening.ask(now, random);
    }

    fn answer(&mut self, hello: &Hello, arrival: &Arrival) {
        let ifindex = if is_link_local(arrival.from.ip()) { arrival.ifindex } else { 0 };
        self.send_hello(hello, arrival.from, arrival.to, ifindex);
    }

    /// A connection begins.
    fn begin(&mut self, now: Instant, agreed: Agreed, opening: Opening, arrival: &Arrival) {
        let number = agreed.numbers.connection;
        if self.peers.contains_key(&number) {
            return; // By chance; the peer asks again.
        }
        let Parameters { window, .. } = self.options.parameters;
        let Plan { links, weights, payload, packet } = self.plan(&agreed, arrival);
        let fitting = (self.carrier.receive_buffer() / 2 / packet as usize).max(LEAST_WINDOW);
        let parameters = Parameters { window: window.min(fitting as u32), ..self.options.parameters };
        let first = [agreed.numbers.first, agreed.first];
        let setup = Setup { parameters, scheduler: self.options.scheduler, peer: agreed.peer, first };
        let peer = Peer {
            remote: arrival.from,
            local: arrival.to,
            agreed,
            opening,
            links,
            endpoint: Some(Endpoint::new(setup, &weights, payload)),
            allowed: Allowed::default(),
            events: Events::default(),
            copies: HashMap::new(),
            heard: now,
            leaves: None,
            held: vec![],
            is_taken: false,
            ended: None,
            scheduled: None,
            is_touched: false,
        };
        self.by_remote.insert(peer.remote, number);
        self.peers.insert(number, peer);
        if self.listens {
            self.backlog.push_back(number);
        }
        self.has_news = true;
        self.schedule(number);
    }

    /// The links of a connection. Two processes of one host have one link: all their addresses lead through memory.
    fn plan(&self, agreed: &Agreed, arrival: &Arrival) -> Plan {
        let pairs = if is_here(arrival.from.ip()) { &[][..] } else { &agreed.links };
        let mut plan = Plan { links: vec![], weights: vec![], payload: u32::MAX, packet: 0 };
        let mut add = |ends: Ends, weight: u32, mtu: u32| {
            let mtu = mtu.min(MOST);
            let room = ends.room(mtu).saturating_sub((HEADER_LEN + PIECE_LEN) as u32);
            plan.payload = plan.payload.min(room).max(LEAST);
            plan.packet = plan.packet.max(mtu + OVERHEAD);
            plan.links.push(ends);
            plan.weights.push(weight);
        };
        for pair in pairs {
            add(Ends::of(pair, arrival.from.port(), &self.interfaces), pair.weight(), pair.mtu());
        }
        if pairs.is_empty() {
            let mtu = path_mtu(arrival.to, arrival.from).unwrap_or(ETHERNET);
            add(Ends { to: arrival.from, from: arrival.to, ifindex: 0 }, 1, mtu);
        }
        plan
    }
}

/// The links of a connection.
struct Plan {
    links: Vec<Ends>,
    weights: Vec<u32>,
    /// Bytes of a packet for operations.
    payload: u32,
    /// Bytes that the kernel counts for a packet in a receive buffer, at most.
    packet: u32,
}

/// Whether an address is one of this host's.
fn is_here(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The largest IP packet from here to there, bytes.
fn path_mtu(from: IpAddr, to: SocketAddr) -> Option<u32> {
    let socket = UdpSocket::bind((from, 0)).ok()?;
    socket.connect(to).ok()?;
    let (level, name) =
        if from.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let (mut mtu, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: an integer on the stack, and its size.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut mtu).cast(), &raw mut len) };
    u32::try_from(mtu).ok().filter(|_| result == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use std::time::Duration;
    use weir_transport::edge::Numbers;
    use weir_wire::edge::Seq;

    /// A process that answers when the test wants it, and the engine that asks it. Time is the test's.
    struct Peers {
        engine: Engine,
        socket: UdpSocket,
        opening: Opening,
    }

    impl Peers {
        fn new() -> Peers {
            let options = Options { links: Some("lo".parse().unwrap()), ..Options::default() };
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            Peers { engine: Engine::open(options, false).unwrap(), socket, opening: Opening::default() }
        }

        fn remote(&self) -> SocketAddr {
            self.socket.local_addr().unwrap()
        }

        /// The oldest hello that has come to the process.
        fn received(&self) -> Option<Hello> {
            let mut bytes = [0; 65_536];
            let len = self.socket.recv(&mut bytes).ok()?;
            Hello::decode(&bytes[..len]).ok()
        }

        /// What the process answers.
        fn answer(&mut self, hello: &Hello) -> Option<Hello> {
            let own = Own { addresses: &[], lists_all: false, pieces: true, is_first: false };
            self.opening.handle(hello, &own, |_| Numbers { nonce: 7, connection: 8, first: Seq(9) }).reply
        }

        /// A hello comes from the address of the process.
        fn give(&mut self, now: Instant, hello: &Hello) {
            let (bytes, to_port) = (hello.encode(), self.engine.carrier.port());
            let to = IpAddr::from([127, 0, 0, 1]);
            let arrival = Arrival { to, ..Arrival::new(self.remote(), to_port, 0, bytes.len()) };
            self.engine.hello(now, &arrival, &bytes);
        }

        /// A connection that both have agreed on.
        fn connect(&mut self, now: Instant) -> u32 {
            self.engine.request(now, self.remote(), 0).unwrap();
            let question = self.received().unwrap();
            let answer = self.answer(&question).unwrap();
            self.give(now, &answer);
            let last = self.received().unwrap();
            self.answer(&last);
            // The engine asks again until the process shows that it has agreed.
            let number = self.engine.by_remote[&self.remote()];
            let next = self.engine.peers[&number].opening.poll_timeout().unwrap();
            self.engine.ask_again(next, number);
            let again = self.received().unwrap();
            let answer = self.answer(&again).unwrap();
            self.give(next, &answer);
            assert_eq!(self.engine.requested(self.remote()), Ok(Some(number)));
            number
        }
    }

    #[test]
    fn a_forged_hello_without_pieces_changes_nothing() {
        let mut peers = Peers::new();
        let now = Instant(1_000_000_000);
        // While the peer is asked.
        peers.engine.request(now, peers.remote(), 0).unwrap();
        let next = peers.engine.next_turn();
        let forged = Hello { unknown: false, ..Hello::unknown(3) };
        assert!(!forged.pieces && !forged.refuses && forged.ask == 0);
        peers.give(now, &forged);
        assert_eq!(peers.engine.next_turn(), next);
        peers.engine.forget_request(peers.remote());
        peers.received().unwrap();
        // And when there is a connection.
        let number = peers.connect(now);
        peers.give(now, &forged);
        assert!(peers.engine.peers[&number].opening.has_agreed());
        // An inquiry, and the answer of the true peer.
        peers.engine.peers.get_mut(&number).unwrap().inquire(now);
        peers.engine.ask_again(now, number);
        let question = peers.received().unwrap();
        let answer = peers.answer(&question).unwrap();
        peers.give(now, &answer);
        assert_eq!(peers.engine.requested(peers.remote()), Ok(Some(number)));
    }

    #[test]
    fn a_peer_that_starts_late_is_asked_still() {
        let mut peers = Peers::new();
        let (begin, end) = (Instant(1_000_000_000), Instant(61_000_000_000));
        peers.engine.request(begin, peers.remote(), 0).unwrap();
        let (mut asked, mut last) = (1, begin);
        while let Some(next) = peers.engine.next_turn().filter(|next| *next <= end) {
            assert!(next > last && next - last <= Duration::from_secs(4), "{next:?} after {last:?}");
            assert!(peers.received().is_some(), "no question at {last:?}");
            peers.engine.ask(next);
            (asked, last) = (asked + 1, next);
        }
        assert!(asked < 200 && end - last < Duration::from_secs(4), "{asked} questions, the last at {last:?}");
        // It is there now.
        let question = peers.received().unwrap();
        let answer = peers.answer(&question).unwrap();
        peers.give(last, &answer);
        assert!(peers.engine.by_remote.contains_key(&peers.remote()));
    }

    #[test]
    fn a_peer_that_refuses_is_asked_no_more() {
        let mut peers = Peers::new();
        let now = Instant(1_000_000_000);
        peers.engine.request(now, peers.remote(), 0).unwrap();
        let question = peers.received().unwrap();
        let own = Own { addresses: &[], lists_all: false, pieces: true, is_first: false };
        peers.give(now, &own.refusal(&question));
        assert_eq!(peers.engine.requested(peers.remote()), Err(Error::Refused(peers.remote())));
        assert_eq!(peers.engine.next_turn(), None);
    }

    #[test]
    fn questions_without_answers_are_no_agreement() {
        let mut peers = Peers::new();
        let now = Instant(1_000_000_000);
        peers.engine.request(now, peers.remote(), 0).unwrap();
        let question = peers.received().unwrap();
        let answer = peers.answer(&question).unwrap();
        peers.give(now, &answer);
        let number = peers.engine.by_remote[&peers.remote()];
        while let Some(next) = peers.engine.peers[&number].opening.poll_timeout() {
            peers.engine.ask_again(next, number);
        }
        assert_eq!(peers.engine.requested(peers.remote()), Ok(None));
        // The answer to the first of them comes late.
        let last = peers.received().unwrap();
        peers.answer(&last);
        let question = peers.received().unwrap();
        let answer = peers.answer(&question).unwrap();
        peers.engine.has_news = false;
        peers.give(now, &answer);
        assert_eq!(peers.engine.requested(peers.remote()), Ok(Some(number)));
        assert!(peers.engine.has_news, "a thread waits for that");
    }
}
