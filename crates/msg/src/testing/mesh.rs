//! Endpoints in one process and in virtual time, and the connections between them.

use super::memory::Memory;
use super::node::{Completion, End, Node};
use super::port::{MemoryPort, Out, What, Wqe};
use super::rng::Rng;
use crate::endpoint::Endpoint;
use crate::event::Reason;
use crate::hello::{Hello, Name, Rejection};
use crate::port::{ConnectionId, Errno, Port};
use crate::settings::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

const ECONNREFUSED: Errno = Errno(111);

/// The parameters of a mesh.
#[derive(Clone, Debug)]
pub struct Setup {
    pub nodes: usize,
    pub settings: Settings,
    /// Bytes of each node's memory.
    pub memory: u64,
    /// Requests that a send queue holds.
    pub depth: usize,
    /// Longest inline request, bytes.
    pub inline: usize,
    /// A packet takes so long.
    pub latency: Duration,
    /// And at most so much longer.
    pub jitter: Duration,
    /// How long requests are sent again to a peer that does not respond.
    pub retries: Duration,
    pub seed: u64,
}

/// Nodes, and what is on the way between them.
#[derive(Debug)]
pub struct Mesh {
    pub now: Duration,
    pub nodes: Vec<Node>,
    pub rng: Rng,
    pub(super) setup: Setup,
    happenings: BTreeMap<(Duration, u64), Happening>,
    count: u64,
}

/// What happens at some time.
#[derive(Debug)]
pub(super) enum Happening {
    /// A request for a connection arrives.
    Request { from: End, to: usize, hello: Hello },
    /// A connection is refused.
    Refusal { to: End, reason: Reason },
    /// A connection is accepted.
    Acceptance { from: End, to: End, hello: Hello },
    /// The side that has accepted may send.
    Ready { to: End },
    /// A request arrives at the peer.
    Arrival { from: End, number: u64 },
    /// The response to a request arrives, with the bytes of a READ.
    Response { to: End, number: u64, result: Result<Vec<u8>, Denied> },
    /// The other end is gone.
    Ended { to: End },
}

/// Whether a request fails because of the peer's memory.
pub(super) type Denied = bool;

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            nodes: 2,
            // Short, so that tests see the end of it.
            settings: Settings { connect_within: Duration::from_secs(10), ..Settings::default() },
            memory: 2 << 20,
            depth: 128,
            inline: 200,
            latency: Duration::from_micros(2),
            jitter: Duration::from_micros(1),
            retries: Duration::from_millis(1),
            seed: 1,
        }
    }
}

impl Setup {
    /// Settings with little of everything.
    pub fn tiny() -> Setup {
        let settings = Settings {
            slot: 256,
            receive_slots: 4,
            send_slots: 1,
            eager_limit: 600,
            unexpected: 2000,
            announced: 8,
            injected: 500,
            cache_regions: 3,
            cache_bytes: 64 << 10,
            connect_within: Duration::from_secs(10),
            ..Settings::default()
        };
        Setup { settings, depth: 4, inline: 0, ..Setup::default() }
    }

    /// Nodes without connections.
    pub fn mesh(&self) -> Mesh {
        let nodes = (0..self.nodes).map(|node| self.node(node, 0)).collect();
        Mesh {
            now: Duration::from_millis(1),
            nodes,
            rng: Rng(self.seed),
            setup: self.clone(),
            happenings: BTreeMap::new(),
            count: 0,
        }
    }

    fn node(&self, node: usize, incarnation: u64) -> Node {
        let memory = Memory::new((node as u64 + 1) << 32, self.memory);
        let seed = Rng(self.seed ^ (incarnation << 8 | node as u64) << 40).draw() >> 32;
        let port = MemoryPort::new(memory, self.settings.slot as usize, self.depth, self.inline, seed);
        Node::new(Endpoint::new(self.settings, name(node)), port)
    }
}

/// A node's name.
pub fn name(node: usize) -> Name {
    Name::new(&[node as u8 + 1; 16]).expect("a short name")
}

fn node_of(name: &Name) -> usize {
    usize::from(name.as_bytes()[0]) - 1
}

impl Mesh {
    /// Calls a node's endpoint.
    ///
    /// # Panics
    /// If the node is dead.
    pub fn with<T>(&mut self, node: usize, call: impl FnOnce(&mut Endpoint, &mut MemoryPort, Duration) -> T) -> T {
        let Node { endpoint, port, .. } = &mut self.nodes[node];
        port.now = self.now;
        let result = call(endpoint.as_mut().expect("the node is alive"), port, self.now);
        self.take_out(node);
        result
    }

    /// A node's program calls, and learns of at most `most` completions.
    pub fn poll(&mut self, node: usize, most: usize) {
        if self.nodes[node].endpoint.is_none() {
            self.poll_raw(node);
            return;
        }
        self.with(node, |endpoint, port, now| endpoint.awaits(port, now));
        for _ in 0..most {
            let Some((end, completion)) = self.nodes[node].completions.pop_front() else { break };
            self.complete(end, completion);
        }
        self.with(node, |endpoint, port, now| endpoint.progress(port, now));
        let Node { endpoint: Some(endpoint), events, .. } = &mut self.nodes[node] else { return };
        events.extend(std::iter::from_fn(|| endpoint.take_event()));
    }

    /// Time passes until the next event, which happens. False: there is none.
    pub fn step(&mut self) -> bool {
        let Some(((at, _), happening)) = self.happenings.pop_first() else { return false };
        self.now = self.now.max(at);
        self.happen(happening);
        true
    }

    /// One event or one call, by chance.
    pub fn turn(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let (call, most) = (self.rng.once_in(3), self.rng.choose(&[0, 1, 1, 2, 100]));
        if call || !self.step() {
            self.poll(node, most);
        }
    }

    /// The programs compute: time passes, and packets travel, but no endpoint is called.
    pub fn compute(&mut self, time: Duration) {
        let until = self.now + time;
        while self.happenings.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// All programs wait until nothing happens any more, or no longer than some seconds. As blocked programs do, they wake only
    /// when something happens, or at a time that an endpoint names.
    pub fn settle(&mut self) {
        let until = self.now + Duration::from_secs(30);
        let mut quiet = 0;
        while quiet < 3 {
            let happened = self.step();
            let waits = self.nodes.iter().any(|node| !node.completions.is_empty());
            (0..self.nodes.len()).for_each(|node| self.poll(node, usize::MAX));
            let next = self.nodes.iter().filter_map(|node| node.endpoint.as_ref()?.next_time()).min();
            match next.filter(|&next| next > self.now && next < until) {
                _ if happened || waits || !self.happenings.is_empty() => quiet = 0,
                Some(next) => self.now = next,
                None => quiet += 1,
            }
        }
    }

    /// A process ends. `silently`: its peers do not hear of it before they send.
    pub fn kill(&mut self, node: usize, silently: bool) {
        let qps: Vec<_> = self.nodes[node].port.qps.drain().map(|(_, qp)| qp).collect();
        for qp in qps.into_iter().filter(|_| !silently) {
            if let Some(to) = qp.peer {
                self.end_later(to);
            }
        }
        self.nodes[node].endpoint = None;
        self.nodes[node].completions.clear();
        self.nodes[node].dead = true;
    }

    /// Another process takes the place of a dead one.
    pub fn restart(&mut self, node: usize) {
        self.count += 1;
        self.nodes[node] = self.setup.node(node, self.count);
    }

    /// A node gets no endpoint, but a program that sends what it likes.
    pub fn make_hostile(&mut self, node: usize) {
        (self.nodes[node].endpoint, self.nodes[node].hostile) = (None, true);
    }

    /// A hostile node connects.
    pub fn raw_connect(&mut self, node: usize, to: usize, hello: Hello) -> ConnectionId {
        let receives = self.nodes[node].raw_receives();
        let port = &mut self.nodes[node].port;
        let connection = port.connect(&name(to), &hello, &receives).expect("the port connects");
        self.take_out(node);
        connection
    }

    /// A hostile node ends a connection.
    pub fn raw_disconnect(&mut self, node: usize, connection: ConnectionId) {
        self.nodes[node].port.disconnect(connection);
        self.take_out(node);
    }

    /// A hostile node sends bytes as a message. False: it has no connection.
    pub fn raw_send(&mut self, node: usize, bytes: &[u8]) -> bool {
        self.raw_post(node, What::Send, bytes)
    }

    /// A hostile node writes bytes.
    pub fn raw_write(&mut self, node: usize, bytes: &[u8], addr: u64, rkey: u32, immediate: Option<u32>) -> bool {
        self.raw_post(node, What::Write { addr, rkey, immediate }, bytes)
    }

    fn raw_post(&mut self, node: usize, what: What, bytes: &[u8]) -> bool {
        let port = &mut self.nodes[node].port;
        let Some((&connection, qp)) = port.qps.iter_mut().find(|(_, qp)| qp.peer.is_some() && !qp.failed) else {
            return false;
        };
        let number = qp.next;
        qp.next += 1;
        let local = super::port::Bytes::Inline(bytes.to_vec());
        qp.queue.push_back(Wqe { number, signaled: true, what, local });
        port.out.push(Out::Posted { connection, number });
        self.take_out(node);
        true
    }

    fn poll_raw(&mut self, node: usize) {
        while let Some(((_, connection, uid), completion)) = self.nodes[node].completions.pop_front() {
            if self.nodes[node].qp((node, connection, uid)).is_none() {
                continue;
            }
            let port = &mut self.nodes[node].port;
            match completion {
                Completion::Incoming(_) => {
                    let receives = self.nodes[node].raw_receives();
                    let hello = self.nodes[node].raw_hello(name(node));
                    self.nodes[node].port.accept(connection, &hello, &receives).expect("the port accepts");
                }
                Completion::Received { slot, .. } | Completion::Written { slot, .. } => {
                    port.post_receive(connection, slot).expect("room for a receive");
                }
                Completion::Failed { .. } | Completion::Refused(_) | Completion::Lost => port.disconnect(connection),
                Completion::Established(_) | Completion::Sent { .. } => {}
            }
            self.take_out(node);
        }
    }

    fn complete(&mut self, end: End, completion: Completion) {
        let (node, connection, _) = end;
        let Some(qp) = self.nodes[node].qp(end) else { return };
        if let Completion::Sent { number } = completion {
            while qp.queue.front().is_some_and(|wqe| wqe.number <= number) {
                qp.queue.pop_front();
            }
        }
        let MemoryPort { depth, inline, .. } = self.nodes[node].port;
        let depth = crate::Depth { requests: depth, inline };
        let verdict = self.with(node, |endpoint, port, now| {
            match completion {
                Completion::Incoming(hello) => return Some(endpoint.incoming(port, connection, Some(&hello))),
                Completion::Established(hello) => endpoint.established(port, now, connection, hello.as_ref(), depth),
                Completion::Refused(reason) => endpoint.refused(port, now, connection, reason),
                Completion::Lost => endpoint.lost(port, connection),
                Completion::Sent { number } => endpoint.sent(port, now, connection, number),
                Completion::Failed { number, denied } => endpoint.send_failed(port, connection, number, denied),
                Completion::Received { slot, len } => endpoint.received(port, now, connection, slot, len),
                Completion::Written { slot, len, immediate } => {
                    endpoint.written(port, now, connection, slot, len, immediate);
                }
            }
            None
        });
        if let Some(crate::Verdict::Rejected(rejection)) = verdict {
            let qp = self.nodes[node].port.qps.remove(&connection).expect("the QP of the request");
            self.refuse(qp.peer, Reason::Rejected(rejection));
        }
    }

    fn refuse(&mut self, to: Option<End>, reason: Reason) {
        if let Some(to) = to {
            self.later(Happening::Refusal { to, reason });
        }
    }

    /// A packet's way.
    pub(super) fn delay(&mut self) -> Duration {
        self.setup.latency + Duration::from_nanos(self.rng.below(self.setup.jitter.as_nanos() as u64 + 1))
    }

    fn later(&mut self, happening: Happening) {
        let at = self.now + self.delay();
        self.at(at, happening);
    }

    pub(super) fn at(&mut self, at: Duration, happening: Happening) {
        self.count += 1;
        self.happenings.insert((at, self.count), happening);
    }

    /// The other end hears that a connection has ended, after the responses of its adapter.
    fn end_later(&mut self, to: End) {
        let at = self.now + self.delay();
        let responds_until = self.nodes[to.0].qp(to).map_or(at, |qp| qp.responds_until);
        self.at(at.max(responds_until), Happening::Ended { to });
    }

    /// Behind all that has left on a connection in this direction.
    fn behind(&mut self, from: End, happening: Happening) {
        let at = self.now + self.delay();
        let Some(qp) = self.nodes[from.0].qp(from) else { return };
        let at = at.max(qp.busy_until);
        qp.busy_until = at;
        self.at(at, happening);
    }

    fn take_out(&mut self, node: usize) {
        for out in std::mem::take(&mut self.nodes[node].port.out) {
            let end = |nodes: &Vec<Node>, connection: ConnectionId| {
                (node, connection, nodes[node].port.qps.get(&connection).map_or(0, |qp| qp.uid))
            };
            match out {
                Out::Connect { connection, to, hello } => {
                    let from = end(&self.nodes, connection);
                    self.later(Happening::Request { from, to: node_of(&to), hello });
                }
                Out::Accept { connection, hello } => {
                    let from = end(&self.nodes, connection);
                    let to = self.nodes[node].qp(from).and_then(|qp| qp.peer);
                    if let Some(to) = to {
                        self.later(Happening::Acceptance { from, to, hello });
                    }
                }
                Out::Disconnect { qp } => {
                    if let Some(to) = qp.peer {
                        self.end_later(to);
                    }
                }
                Out::Posted { connection, number } => {
                    let from = end(&self.nodes, connection);
                    self.behind(from, Happening::Arrival { from, number });
                }
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Request { from, to, hello } => self.requested(from, to, hello),
            Happening::Refusal { to, reason } => self.tell(to, Completion::Refused(reason)),
            Happening::Acceptance { from, to, hello } => self.accepted(from, to, hello),
            Happening::Ready { to } => self.tell(to, Completion::Established(None)),
            Happening::Arrival { from, number } => self.arrive(from, number),
            Happening::Response { to, number, result } => self.respond(to, number, result),
            Happening::Ended { to } => {
                if let Some(qp) = self.nodes[to.0].qp(to) {
                    qp.failed = true;
                }
                self.tell(to, Completion::Lost);
            }
        }
    }

    pub(super) fn tell(&mut self, to: End, completion: Completion) {
        if self.nodes[to.0].qp(to).is_some() {
            self.nodes[to.0].completions.push_back((to, completion));
        }
    }

    fn requested(&mut self, from: End, to: usize, hello: Hello) {
        if self.nodes[to].unreachable {
            return;
        }
        if self.nodes[to].dead {
            self.refuse(Some(from), Reason::System(ECONNREFUSED));
            return;
        }
        if self.nodes[to].refuses {
            self.refuse(Some(from), Reason::Rejected(Rejection::Resources));
            return;
        }
        let hello = Hello::parse(&hello.emit()).expect("a hello is as it was");
        if from.0 == to {
            // The connection of an endpoint to itself has one QP.
            if let Some(qp) = self.nodes[to].qp(from) {
                qp.peer = Some(from);
                self.tell(from, Completion::Established(Some(hello)));
            }
            return;
        }
        let connection = self.nodes[to].port.new_qp();
        let qp = self.nodes[to].port.qps.get_mut(&connection).expect("a new QP");
        qp.peer = Some(from);
        let uid = qp.uid;
        self.tell((to, connection, uid), Completion::Incoming(hello));
    }

    fn accepted(&mut self, from: End, to: End, hello: Hello) {
        let Some(qp) = self.nodes[to.0].qp(to) else {
            self.later(Happening::Ended { to: from });
            return;
        };
        qp.peer = Some(from);
        self.behind(to, Happening::Ready { to: from });
        self.tell(to, Completion::Established(Some(hello)));
    }
}
