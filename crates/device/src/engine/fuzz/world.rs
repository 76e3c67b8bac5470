//! Two engines with a connection, and what they promise each other.

use crate::config::Icrc;
use crate::engine::peers::connection::Link;
use crate::engine::peers::hello::MAX_LEN;
use crate::engine::testing::{Rig, address, connected};
use crate::os::clock;
use crate::shared::qp::QpShared;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use weir_link::{Arrival, Inbox};
use weir_transport::{Data, Instant, QpState, SendOp, Service, Sge, Status};
use weir_trials::Input;

/// The engines, their connection, and what a hostile peer knows.
pub struct World {
    /// The one that is attacked, and its peer.
    pub rigs: [Rig; 2],
    pub honest: [Arc<QpShared>; 2],
    /// QPs of the first engine with hostile peers.
    pub hostile: Vec<Arc<QpShared>>,
    /// Memory that hostile peers may use.
    pub open: Sge,
    /// Keys of memory that hostile peers do not know.
    pub secret_keys: Vec<u32>,
    /// What the attacked engine has sent to hostile peers lately.
    pub heard: VecDeque<(SocketAddr, Vec<u8>)>,
    /// What the peer has sent to it lately.
    pub carried: VecDeque<Vec<u8>>,
    /// Requests of hostile QPs that have not completed, by QP.
    pub posted: HashMap<u32, HashSet<u64>>,
    /// Datagrams to peers without a QP, less those from them.
    pub owed: HashMap<SocketAddr, i64>,
    pub next_id: u64,
    now: Instant,
    sides: [Side; 2],
    /// Never read after the engines are gone.
    memory: Vec<Box<[u8]>>,
}

/// What a side of the connection has posted, and what its memory must contain.
#[derive(Default)]
struct Side {
    source: Option<Sge>,
    target: Option<Sge>,
    /// What the target contains at the end.
    expected: Vec<u8>,
    /// Work requests that have not completed.
    posted: HashSet<u64>,
}

/// Bytes of each region.
const REGION: usize = 16 << 10;
/// Bytes around each region that must not change.
const CANARY: usize = 1 << 10;
const UNTOUCHED: u8 = 0xa5;
/// The most open requests of a side.
const OPEN: usize = 16;
/// Datagrams that a hostile peer remembers.
const REMEMBERED: usize = 16;
const PEERS: [usize; 2] = [1, 0];

impl World {
    pub fn new() -> World {
        let now = Instant(1 << 40);
        clock::fixed::set(Some(now));
        let mut rigs = [Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto)];
        let [a, b] = &mut rigs;
        let honest = connected(a, b, Service::Rc);
        let mut memory: Vec<Box<[u8]>> = vec![];
        let mut region = |rig: &Rig, fill: u8| {
            let mut bytes = vec![UNTOUCHED; REGION + 2 * CANARY].into_boxed_slice();
            bytes[CANARY..][..REGION].fill(fill);
            let sge = rig.register(&mut bytes[CANARY..][..REGION]);
            memory.push(bytes);
            sge
        };
        let open = region(&rigs[0], 0);
        let mut side = |rig: &Rig, fill| Side {
            source: Some(region(rig, fill)),
            target: Some(region(rig, 0)),
            expected: vec![0; REGION],
            posted: HashSet::new(),
        };
        let sides = [side(&rigs[0], 0x11), side(&rigs[1], 0x22)];
        let secret_keys = sides.iter().flat_map(|side| [side.source, side.target]).flatten().map(|sge| sge.lkey);
        let mut world = World {
            rigs,
            honest,
            hostile: vec![],
            open,
            secret_keys: secret_keys.collect(),
            heard: VecDeque::new(),
            carried: VecDeque::new(),
            posted: HashMap::new(),
            owed: HashMap::new(),
            next_id: 1000,
            now,
            sides,
            memory,
        };
        world.carry();
        world
    }

    /// Time passes, and the engines' packets are carried.
    pub fn pass(&mut self, input: &mut Input<'_>) {
        let byte = input.byte();
        self.wait(Duration::from_micros(1 << (byte % 17)));
    }

    fn wait(&mut self, time: Duration) {
        self.carry();
        self.now = self.now + time;
        clock::fixed::set(Some(self.now));
        self.carry();
    }

    /// What an engine has sent arrives; what goes to other addresses a hostile peer gets.
    pub fn carry(&mut self) {
        for _ in 0..1000 {
            let mut quiet = true;
            for (from, to) in [(0, 1), (1, 0)] {
                self.rigs[from].turn();
                for sent in self.rigs[from].take_bursts().into_iter().flat_map(|burst| burst.groups) {
                    let (sender, receiver) = (&self.rigs[from], &self.rigs[to]);
                    if sent.to == SocketAddr::from((receiver.address, receiver.port)) {
                        quiet = false;
                        if from == 1 {
                            sent.datagrams.iter().for_each(|datagram| remember(&mut self.carried, datagram.clone()));
                        }
                        let source = (sender.address, sender.port).into();
                        receiver.arrive(source, sent.to.ip(), sent.to.port(), &sent.datagrams);
                        continue;
                    }
                    assert_eq!(from, 0, "the peer has no reason to send to {}", sent.to);
                    *self.owed.entry(sent.to).or_default() += sent.datagrams.len() as i64;
                    for datagram in sent.datagrams {
                        assert!(!datagram.starts_with(b"WEIR") || datagram.len() <= MAX_LEN);
                        remember(&mut self.heard, (sent.to, datagram));
                    }
                }
            }
            self.reap();
            if quiet && self.rigs.iter().all(|rig| rig.wire().arrivals.is_empty()) {
                return;
            }
        }
        panic!("the engines exchange packets without an end");
    }

    /// A datagram of a hostile peer is a reason for one to it.
    pub fn arrive(&mut self, from: SocketAddr, to: IpAddr, to_port: u16, datagrams: &[Vec<u8>]) {
        *self.owed.entry(from).or_default() -= datagrams.len() as i64;
        self.rigs[0].arrive(from, to, to_port, datagrams);
        self.rigs[0].turn();
    }

    /// Another process has handed a packet over.
    pub fn deliver(&mut self, inbox: &Inbox, arrival: &Arrival) {
        let Rig { engine, state, .. } = &mut self.rigs[0];
        engine.deliver(state, inbox, arrival, self.now);
        self.carry();
    }

    /// One side of the connection posts a request.
    pub fn transfer(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        let from = usize::from(what & 1);
        let to = PEERS[from];
        let len = match input.byte() {
            byte @ 0..=0xbf => usize::from(byte),
            byte => usize::from(byte - 0xbf) * 200,
        };
        let at = usize::from(input.byte()) * ((REGION - len) / 256);
        if self.sides[from].posted.len() >= OPEN {
            return;
        }
        let part = |sge: Option<Sge>| {
            let sge = sge.expect("a region");
            Sge { addr: sge.addr + at as u64, length: len as u32, lkey: sge.lkey }
        };
        let [source, target] = [self.sides[from].source, self.sides[from].target].map(part);
        let [far_source, far_target] = [self.sides[to].source, self.sides[to].target].map(part);
        let remote = |sge: Sge| (sge.addr, sge.lkey);
        let (op, local, changed, fill) = match what >> 1 & 3 {
            0 => {
                let (remote_addr, rkey) = remote(far_source);
                (SendOp::Read { remote_addr, rkey }, target, from, [0x22, 0x11][from])
            }
            1 => {
                self.rigs[to].post_recv(&self.honest[to], 0, &[far_target]);
                (SendOp::Send, source, to, [0x11, 0x22][from])
            }
            _ => {
                let (remote_addr, rkey) = remote(far_target);
                (SendOp::Write { remote_addr, rkey }, source, to, [0x11, 0x22][from])
            }
        };
        let wr_id = 1 + self.next_id;
        self.next_id = wr_id;
        self.sides[from].posted.insert(wr_id);
        self.sides[changed].expected[at..at + len].fill(fill);
        self.rigs[from].post_send(&self.honest[from], wr_id, op, Data::Gather(&[local]));
        self.rigs[from].turn();
    }

    /// No peer without a QP gets more than it has sent.
    pub fn check_answers(&self) {
        for (to, owed) in &self.owed {
            let bound = is_bound(to.ip());
            assert!(bound || *owed <= 0, "{owed} datagrams more to {to} than from there");
        }
    }

    /// All transfers end as if there were no hostile peer.
    pub fn finish(mut self) {
        for _ in 0..200 {
            self.carry();
            if self.sides.iter().all(|side| side.posted.is_empty()) {
                break;
            }
            self.wait(Duration::from_millis(5));
        }
        for (n, side) in self.sides.iter().enumerate() {
            assert!(side.posted.is_empty(), "side {n}: {} requests do not end", side.posted.len());
            let target = &self.memory[2 + 2 * n];
            assert!(target[CANARY..][..REGION] == side.expected, "side {n} has wrong bytes");
            let source = &self.memory[1 + 2 * n][CANARY..][..REGION];
            assert!(source.iter().all(|byte| *byte == source[0]), "side {n}: its source has changed");
            let link = self.rigs[n].link(&self.honest[n]);
            assert!(matches!(link, Link::Weir(_)), "side {n}: {link:?}");
            assert_eq!(self.honest[n].lock().state(), QpState::Rts);
            self.rigs[n].check();
        }
        for bytes in &self.memory {
            let around = bytes[..CANARY].iter().chain(&bytes[CANARY + REGION..]);
            assert!(around.into_iter().all(|byte| *byte == UNTOUCHED), "a byte outside of the regions has changed");
        }
        assert!(self.rigs.iter().all(|rig| rig.state.condition.works()), "an engine has failed");
    }

    /// Takes completions: each request completes once, and those of the connection with success.
    fn reap(&mut self) {
        for (n, rig) in self.rigs.iter().enumerate() {
            for completion in rig.completions() {
                if completion.qp_num != self.honest[n].num {
                    let own = self.posted.get_mut(&completion.qp_num);
                    let known = own.is_some_and(|posted| posted.remove(&completion.wr_id));
                    assert!(known, "{completion:?} has no request, or completes again");
                    continue;
                }
                assert_eq!(completion.status, Status::Success, "{completion:?}");
                assert!(completion.wr_id == 0 || self.sides[n].posted.remove(&completion.wr_id), "{completion:?}");
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        clock::fixed::set(None);
    }
}

/// The address of a hostile peer, by its number from 0 on: the first ones may have QPs, the others have none.
pub fn hostile_address(n: usize) -> IpAddr {
    address(7 + n as u16 % 8)
}

/// Whether QPs may be bound to the peer with this address.
fn is_bound(ip: IpAddr) -> bool {
    (0..2).any(|n| hostile_address(n) == ip)
}

fn remember<T>(list: &mut VecDeque<T>, new: T) {
    if list.len() == REMEMBERED {
        list.pop_front();
    }
    list.push_back(new);
}
