use super::*;
use crate::config::Icrc;
use crate::engine::peers::hello::MAGIC;
use crate::engine::peers::proof::Demand;
use crate::engine::testing::{FIRST_PSN, Rig, address, exchange, exchange_some};
use crate::os::clock;
use crate::shared::qp::QpShared;
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{Data, Psn, QpAttr, QpState, SendFlags, SendOp, SendWr, Service};
use weir_wire::Operation;

type Pair = (Arc<QpShared>, Arc<QpShared>);

fn rigs() -> (Rig, Rig) {
    (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto))
}

/// Repeats that until it returns `true`.
fn until(mut done: impl FnMut() -> bool) {
    let end = clock::now() + Duration::from_secs(60);
    while !done() {
        assert!(clock::now() < end, "it does not come to that");
    }
}

fn is_proven(rig: &Rig, qp: &QpShared) -> bool {
    matches!(rig.link(qp), Link::Weir(_))
}

fn has_proofs(datagram: &[u8]) -> bool {
    datagram.starts_with(&MAGIC) && datagram[6] > 0
}

/// What a process has sent.
fn sent(rig: &Rig) -> Vec<Vec<u8>> {
    let groups = rig.take_bursts().into_iter().flat_map(|burst| burst.groups);
    groups.flat_map(|group| group.datagrams).collect()
}

/// Delivers a hello.
fn arrive(from: &Rig, to: &Rig, hello: Option<Vec<u8>>) {
    to.arrive((from.address, from.port).into(), to.address, to.port, &[hello.expect("a hello")]);
}

/// Connects many QPs of two processes as connection management does it: the passive side connects first, and no packet
/// follows. Returns the number of hellos.
fn connect_idle(active: &mut Rig, passive: &mut Rig, count: usize) -> usize {
    let mut pairs: Vec<Pair> = Vec::new();
    for _ in 0..count {
        let pair = (active.add_qp(Service::Rc), passive.add_qp(Service::Rc));
        passive.connect(&pair.1, active.address, pair.0.num);
        pairs.push(pair);
    }
    let mut hellos = exchange(active, passive);
    for (own, other) in &pairs {
        active.connect(own, passive.address, other.num);
        hellos += exchange(active, passive);
    }
    until(|| {
        hellos += exchange(active, passive);
        assert!(hellos < 20 * count, "{hellos} hellos for {count} connections");
        pairs.iter().all(|(own, other)| is_proven(active, own) && is_proven(passive, other))
    });
    active.check();
    passive.check();
    hellos
}

#[test]
fn many_idle_qps_of_one_peer_prove_themselves_by_few_hellos() {
    let (mut active, mut passive) = rigs();
    connect_idle(&mut active, &mut passive, 500);
}

#[test]
fn a_proof_that_was_lost_comes_with_the_next_answer_although_many_qps_are_idle() {
    let (mut active, mut passive) = rigs();
    connect_idle(&mut active, &mut passive, 600);
    let (own, other) = (active.add_qp(Service::Rc), passive.add_qp(Service::Rc));
    passive.connect(&other, active.address, own.num);
    exchange(&mut active, &mut passive);
    active.connect(&own, passive.address, other.num);
    arrive(&active, &passive, sent(&active).pop());
    passive.turn();
    arrive(&passive, &active, sent(&passive).into_iter().find(|datagram| has_proofs(datagram)));
    active.turn();
    assert!(sent(&active).iter().any(|datagram| has_proofs(datagram)), "the answer, which is lost");
    assert_eq!((is_proven(&active, &own), is_proven(&passive, &other)), (true, false));
    let (port, mut answers) = (active.port, 0);
    until(|| {
        exchange_some(&mut active, &mut passive, |from, datagram| {
            answers += usize::from(from == port && has_proofs(datagram));
            true
        });
        is_proven(&passive, &other)
    });
    assert!(answers < 5, "{answers} answers, the first of which had the proof");
}

#[test]
fn a_packet_of_a_peer_that_has_not_proven_itself_does_not_end_the_question() {
    let (mut here, mut there) = rigs();
    let (own, other) = (here.add_qp(Service::Rc), there.add_qp(Service::Rc));
    here.connect(&own, there.address, other.num);
    there.connect(&other, here.address, own.num);
    let loses_proofs = |from: u16, datagram: &[u8]| from == here_port() || !has_proofs(datagram);
    until(|| {
        exchange_some(&mut here, &mut there, loses_proofs);
        is_proven(&there, &other)
    });
    there.post_send(&other, 1, SendOp::Write { remote_addr: 0, rkey: 0 }, Data::Inline(&[]));
    exchange_some(&mut here, &mut there, loses_proofs);
    assert!(!here.entry(&own).connection.is_unconfirmed(), "the packet came");
    let now = clock::now();
    let peers = [(&here, &own), (&there, &other)].map(|(rig, qp)| rig.entry(qp).peer.unwrap());
    // A question, and an answer, both without the proof.
    there.engine.peers.ask_soon(peers[1], now);
    there.engine.next_due = 0;
    exchange_some(&mut here, &mut there, loses_proofs);
    here.engine.peers.ask_soon(peers[0], now);
    here.engine.next_due = 0;
    here.turn();
    let question = sent(&here).pop().unwrap();
    let (question, _) = Hello::decode(&question).unwrap();
    let route = Route { local: there.address, remote: here.address, ifindex: 0, hops: 0 };
    let outcome = there.engine.peers.handle_hello(route, here.port, &question, now);
    let mut answer = vec![0; MAX_LEN];
    let len = outcome.reply.unwrap().hello.encode(&[], &mut answer);
    answer.truncate(len);
    arrive(&there, &here, Some(answer));
    here.turn();
    assert_eq!(
        (here.engine.peers.get(peers[0]).members.asking(), is_proven(&here, &own)),
        (&[here.index(&own)][..], false)
    );
    here.check();
    until(|| {
        exchange(&mut here, &mut there);
        is_proven(&here, &own)
    });
    here.check();
}

fn here_port() -> u16 {
    crate::slot::FIRST_PORT + 5
}

#[test]
fn a_qp_whose_peer_stays_foreign_is_not_looked_at_again() {
    let (mut rig, other) = rigs();
    let qp = rig.add_qp(Service::Rc);
    let dest = other.port - crate::slot::FIRST_PORT;
    rig.connect(&qp, address(6), u32::from(dest) << crate::slot::INDEX_BITS);
    let (index, peer) = (rig.index(&qp), rig.entry(&qp).peer.unwrap());
    rig.engine.table.get_mut(index).unwrap().connection.link = Link::Foreign;
    rig.check();
    assert_eq!(rig.engine.peers.get(peer).members.asking(), [index]);
    rig.arrive_foreign(&qp, 6, Operation::Acknowledge, Psn::new(FIRST_PSN));
    rig.turn();
    assert!(rig.engine.peers.get(peer).members.asking().is_empty());
    rig.check();
}

/// A pseudo-random sequence.
fn reset(rig: &mut Rig, qp: &Arc<QpShared>) {
    rig.modify(qp, QpState::Reset, &QpAttr::default(), weir_transport::AttrMask::empty());
    rig.engine.rest(qp.num);
}

/// Its peer's QP is not reset, and would prove nothing again.
#[test]
fn a_qp_that_is_reset_alone_goes_on_and_learns_if_its_peer_begins_anew() {
    let (mut here, mut there) = rigs();
    let (own, other) = (here.add_qp(Service::Rc), there.add_qp(Service::Rc));
    here.connect(&own, there.address, other.num);
    there.connect(&other, here.address, own.num);
    until(|| {
        exchange(&mut here, &mut there);
        is_proven(&here, &own) && is_proven(&there, &other)
    });
    let write = SendOp::Write { remote_addr: 0, rkey: 0 };
    there.post_send(&other, 1, write, Data::Inline(&[]));
    here.post_send(&own, 1, write, Data::Inline(&[]));
    exchange(&mut here, &mut there);
    assert!(![(&here, &own), (&there, &other)].iter().any(|(rig, qp)| rig.entry(qp).connection.is_unconfirmed()));
    let tag_of = |rig: &Rig, qp: &QpShared| rig.entry(qp).connection.tag;
    let (tag, link) = (tag_of(&here, &own), here.link(&own));
    reset(&mut here, &own);
    here.connect(&own, there.address, other.num);
    assert_eq!((tag_of(&here, &own), here.link(&own)), (tag, link), "it goes on");
    exchange(&mut here, &mut there);
    assert!(is_proven(&there, &other) && here.link(&own) == link);
    // The peer is connected to another QP meanwhile, and then to this one again.
    let third = here.add_qp(Service::Rc);
    reset(&mut there, &other);
    there.connect(&other, here.address, third.num);
    reset(&mut there, &other);
    there.connect(&other, here.address, own.num);
    assert_ne!(Link::Weir(Demand { tag: tag_of(&there, &other), ..demand(link) }), link, "a new connection");
    until(|| {
        exchange(&mut here, &mut there);
        is_proven(&there, &other) && here.link(&own) != link
    });
    assert_eq!(demand(here.link(&own)).tag, tag_of(&there, &other));
    here.check();
    there.check();
}

fn demand(link: Link) -> Demand {
    let Link::Weir(demand) = link else { panic!("{link:?}") };
    demand
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % end
    }
}

#[test]
fn what_hellos_look_at_agrees_with_the_table_whatever_happens() {
    let seed = getrandom::u64().unwrap();
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut rigs = [Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto)];
    let mut pairs: Vec<[Arc<QpShared>; 2]> = Vec::new();
    for _ in 0..600 {
        let (step, side) = (random.below(12), random.below(2));
        if pairs.is_empty() || step == 0 {
            pairs.push([0, 1].map(|side| rigs[side].add_qp(Service::Rc)));
        }
        let at = random.below(pairs.len());
        let (qp, other) = (pairs[at][side].clone(), pairs[at][1 - side].num);
        let to = rigs[1 - side].address;
        let rig = &mut rigs[side];
        match step {
            1..4 => {
                match random.below(2) {
                    0 => rig.engine.disconnect(qp.num),
                    _ => rig.engine.rest(qp.num),
                }
                rig.modify(&qp, QpState::Reset, &QpAttr::default(), weir_transport::AttrMask::empty());
                rig.connect(&qp, to, other);
            }
            4 => rig.engine.disconnect(qp.num),
            5 => {
                let op = SendOp::Write { remote_addr: 0, rkey: 0 };
                let wr = SendWr { wr_id: 1, op, flags: SendFlags::empty(), data: Data::Inline(&[]) };
                if qp.lock().post_send(&wr).is_ok() {
                    rig.state.doorbells.ring(&qp.bell, qp.num);
                }
            }
            6 => {
                let index = rig.index(&qp);
                let connection = &mut rig.engine.table.get_mut(index).unwrap().connection;
                if matches!(connection.link, Link::Asking { .. }) {
                    connection.link = Link::Foreign;
                }
            }
            7 => rig.arrive_foreign(&qp, 6 - side as u16, Operation::Acknowledge, Psn::new(FIRST_PSN)),
            8 => {
                let pair = pairs.swap_remove(at);
                for (rig, qp) in rigs.iter_mut().zip(pair) {
                    let index = rig.index(&qp);
                    rig.engine.remove_qp(&rig.state, qp.num, Arc::new(()));
                    if random.below(2) == 0 {
                        rig.engine.evict_retired(index);
                    }
                }
            }
            _ => {
                let [a, b] = &mut rigs;
                exchange_some(a, b, |_, _| random.below(4) > 0);
            }
        }
        rigs.iter().for_each(Rig::check);
    }
}
