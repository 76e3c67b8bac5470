//! Which processes have entries, which parameters of their hellos are used, and which windows they get.

use super::hellos::ROUNDS;
use super::proof::alive;
use super::*;
use crate::engine::peers::unbound_peers::MAX_UNBOUND_PEERS;

const PORT: u16 = FIRST_PORT + 5;
const QPN: u32 = 5 << 14 | 77;

fn peers(receive_buffer: usize) -> Peers {
    Peers::new(Secret::new().unwrap(), hello(), receive_buffer).unwrap()
}

/// A hello that neither asks nor answers.
fn hello() -> Hello {
    Hello {
        ask: 0,
        answer: 0,
        alive: 0,
        icrc_auto: true,
        frames: true,
        local: false,
        boot_id: [1; 16],
        window: 1 << 20,
        patience: Duration::ZERO,
        mark: 0,
    }
}

fn asks() -> Hello {
    Hello { ask: 42, ..hello() }
}

/// The correct answer from a port of an address.
fn answers(peers: &Peers, route: Route, port: u16) -> Hello {
    Hello { answer: peers.secret.nonce(&(route.local, route.remote, port)), ..hello() }
}

fn route() -> Route {
    Route { local: "10.0.0.1".parse().unwrap(), remote: "10.0.0.2".parse().unwrap(), ifindex: 0, hops: 0 }
}

/// A peer with a QP that has asked and was answered.
fn known(peers: &mut Peers) -> PeerId {
    let id = peers.bind(route(), QPN, 0, Instant(0));
    peers.ask_soon(id, Instant(0));
    let answer = answers(peers, route(), PORT);
    assert!(peers.handle_hello(route(), PORT, &answer, Instant(0)).answers);
    id
}

#[test]
fn silence_makes_a_peer_foreign_and_an_answer_makes_it_weir_again() {
    let mut peers = peers(1 << 20);
    let id = peers.peer_of_datagram(route(), QPN, Instant(0)).unwrap();
    assert_eq!(peers.unreliable_room(id), 0);
    let mut foreign = false;
    while !foreign {
        let at = Instant(peers.next_attempt().unwrap());
        let (asked, outgoing, now_foreign) = peers.next_due_hello(at).unwrap();
        assert_eq!((asked, outgoing.to, outgoing.hello.ask), (id, "10.0.0.2:20485".parse().unwrap(), peers.nonce(id)));
        assert!(at.0 < 100_000_000);
        foreign = now_foreign;
    }
    assert_eq!((peers.get(id).state, peers.unreliable_room(id)), (State::Foreign, usize::MAX));
    let answer = answers(&peers, route(), PORT);
    assert_eq!(peers.handle_hello(route(), PORT, &answer, Instant(5)).peer, Some(id));
    assert!(matches!(peers.get(id).state, State::Weir(Weir { icrc: false, .. })));
    assert_eq!((peers.room(id, false), peers.room(id, true)), (1 << 20, FOREIGN_WINDOW));
    peers.satisfied(id);
    assert_eq!(peers.next_attempt(), None);
}

#[test]
fn a_hello_without_the_nonce_changes_nothing() {
    let mut peers = peers(1 << 20);
    let id = known(&mut peers);
    peers.proven(id, 77);
    let before = (peers.get(id).state, peers.get(id).incarnation, peers.share);
    let forged = Hello { icrc_auto: false, window: 1, patience: Duration::from_secs(9), mark: 1, ..hello() };
    for wrong in [0, 1, u64::MAX, answers(&peers, route(), PORT + 1).answer] {
        for ask in [0, 42] {
            let forged = Hello { answer: wrong, ask, alive: wrong, ..forged };
            let outcome = peers.handle_hello(route(), PORT, &forged, Instant(1));
            assert_eq!((outcome.answers, outcome.reply.is_some()), (false, ask != 0));
            assert_eq!((peers.get(id).state, peers.get(id).incarnation, peers.share), before);
        }
    }
    // A hello that asks and brings new parameters is asked in return.
    let reply = peers.handle_hello(route(), PORT, &Hello { ask: 42, ..forged }, Instant(1)).reply.unwrap().hello;
    assert_eq!((reply.answer, reply.ask), (42, peers.nonce(id)));
    let answer = Hello { answer: reply.ask, alive: alive(77, reply.ask), ..forged };
    let outcome = peers.handle_hello(route(), PORT, &answer, Instant(1));
    assert!(outcome.answers && outcome.reply.is_none());
    let window = *SHARE.start();
    assert!(
        matches!(peers.get(id).state, State::Weir(Weir { icrc: true, window: announced, .. }) if announced == window)
    );
}

#[test]
fn the_parameters_of_another_process_are_used_for_datagrams_only_until_it_proves_itself() {
    let mut peers = peers(1 << 20);
    let id = known(&mut peers);
    peers.proven(id, 77);
    let before = peers.get(id).weir().unwrap();
    let nonce = peers.nonce(id);
    let from = |incarnation: u64, hello: Hello| Hello { answer: nonce, alive: alive(incarnation, nonce), ..hello };
    // It has other offers, a smaller window and less patience.
    let other = Hello { icrc_auto: false, frames: false, window: 1, patience: Duration::from_millis(1), ..hello() };
    let found = |peers: &Peers| peers.find(route().local, route().remote, PORT).unwrap();
    peers.handle_hello(route(), PORT, &from(78, other), Instant(7));
    assert_eq!((peers.get(id).weir(), peers.room(id, false)), (Some(before), before.window));
    let unidentified = Weir { icrc: true, frames: false, window: 64 << 10, patience: other.patience, ..before };
    assert_eq!((peers.get(id).for_datagrams(), found(&peers)), (Some(unidentified), unidentified));
    assert_eq!(peers.get(id).confirmed, Some(Instant(7)), "datagrams ask no more than before");
    // It is asked once about its parameters.
    let question = Hello { ask: 42, answer: 0, ..other };
    let reply = peers.handle_hello(route(), PORT, &question, Instant(8)).reply.unwrap().hello;
    assert_eq!((reply.answer, reply.ask), (42, 0));
    // The process of the QPs is alive: it has the port for datagrams too.
    peers.handle_hello(route(), PORT, &from(77, hello()), Instant(9));
    assert_eq!((peers.get(id).weir(), found(&peers)), (Some(before), before));
    // The other process proves that it has a QP.
    peers.handle_hello(route(), PORT, &from(78, other), Instant(10));
    peers.proven(id, 78);
    assert_eq!((peers.get(id).weir(), found(&peers)), (Some(unidentified), unidentified));
    peers.handle_hello(route(), PORT, &from(77, hello()), Instant(11));
    assert_eq!(peers.get(id).weir(), Some(unidentified));
    // The entry of the port remains when no QP is bound.
    peers.unbind(id, 0, Instant(12));
    assert_eq!((peers.id_of(&(route().local, route().remote, PORT)), found(&peers)), (None, before));
}

#[test]
fn a_flow_control_answer_counts_whatever_process_gives_it() {
    let mut peers = peers(1 << 20);
    let id = known(&mut peers);
    peers.proven(id, 77);
    let window = peers.get(id).weir().unwrap().window;
    peers.get_mut(id).flow.sent(window);
    let mark = peers.ask(id, Instant(1)).unwrap().hello.mark;
    assert_eq!(peers.unreliable_room(id), 0);
    let nonce = peers.nonce(id);
    let answer = Hello { answer: nonce, alive: alive(78, nonce), mark, ..hello() };
    peers.handle_hello(route(), PORT, &answer, Instant(2));
    assert_eq!(peers.unreliable_room(id), window);
}

#[test]
fn two_processes_that_ask_each_other_stop_after_three_hellos() {
    let (mut here, mut there) = (peers(1 << 20), peers(1 << 21));
    let back = Route { local: route().remote, remote: route().local, ..route() };
    let id = here.bind(route(), QPN, 0, Instant(0));
    here.ask_soon(id, Instant(0));
    let other = there.bind(back, 6 << 14 | 3, 0, Instant(0));
    let mut outgoing = here.next_due_hello(Instant(0)).unwrap().1;
    let mut hellos = 1;
    // Each asks back, because both have QPs without a proof.
    for turn in 0..10 {
        let (peers, route, port, id) = match turn % 2 {
            0 => (&mut there, back, 6, other),
            _ => (&mut here, route(), 5, id),
        };
        let Some(mut reply) = peers.handle_hello(route, FIRST_PORT + port, &outgoing.hello, Instant(1)).reply else {
            break;
        };
        peers.ask_back(id, &outgoing.hello, &mut reply);
        (outgoing, hellos) = (reply, hellos + 1);
    }
    assert_eq!(hellos, 3);
    assert!(here.get(id).weir().is_some() && there.get(other).weir().is_some());
}

#[test]
fn another_process_at_the_port_is_not_the_one_that_was_proven() {
    let mut peers = peers(1 << 20);
    let id = known(&mut peers);
    peers.proven(id, 77);
    let nonce = peers.nonce(id);
    let from = |incarnation: u64| Hello { answer: nonce, alive: alive(incarnation, nonce), ..hello() };
    peers.handle_hello(route(), PORT, &from(77), Instant(1));
    assert_eq!(peers.get(id).incarnation, Some(77));
    peers.handle_hello(route(), PORT, &from(78), Instant(2));
    assert!(peers.get(id).is_suspected() && peers.get(id).incarnation == Some(77));
    // The first process may have been alive all the time.
    peers.handle_hello(route(), PORT, &from(77), Instant(3));
    assert!(!peers.get(id).is_suspected());
    // It is dead when another process has proven itself.
    peers.proven(id, 78);
    assert_eq!(peers.get(id).incarnation, Some(78));
    peers.handle_hello(route(), PORT, &from(77), Instant(3));
    assert_eq!(peers.get(id).incarnation, Some(78));
}

#[test]
fn a_suspected_peer_is_asked_until_it_shows_that_it_is_alive() {
    let mut peers = peers(1 << 20);
    let id = known(&mut peers);
    peers.proven(id, 77);
    peers.satisfied(id);
    assert_eq!(peers.next_attempt(), None);
    peers.suspect(id, Instant(10));
    assert!(peers.get(id).is_suspected());
    let nonce = peers.nonce(id);
    while !peers.get(id).is_silent() {
        assert!(peers.get(id).is_suspected());
        let at = Instant(peers.next_attempt().unwrap());
        assert_eq!(peers.next_due_hello(at).unwrap().1.hello.ask, nonce);
        assert!(at.0 < 100_000_000);
    }
    // The last hello was long ago, and the peer misses another ACK: it is asked again.
    while let Some(at) = peers.next_attempt() {
        peers.next_due_hello(Instant(at));
    }
    peers.suspect(id, Instant(9_000_000_000));
    assert_eq!(peers.next_attempt(), Some(9_000_000_000));
    peers.handle_hello(route(), PORT, &Hello { answer: nonce, alive: alive(77, nonce), ..hello() }, Instant(2));
    assert!(!peers.get(id).is_suspected() && !peers.get(id).is_silent());
}

#[test]
fn datagrams_to_qpns_outside_of_weir_slots_send_no_hello() {
    let mut peers = peers(1 << 20);
    let id = peers.peer_of_datagram(route(), 17, Instant(0)).unwrap();
    assert_eq!((peers.get(id).state, peers.next_attempt()), (State::Foreign, None));
}

#[test]
fn full_answers_that_prove_nothing_are_followed_up_a_limited_time() {
    let mut peers = peers(1 << 20);
    let id = known(&mut peers);
    peers.satisfied(id);
    let asked = (1..)
        .take_while(|at| {
            peers.ask_for_more(id, false, Instant(*at));
            peers.satisfied(id);
            peers.get(id).rounds <= ROUNDS
        })
        .count();
    assert_eq!(asked as u32, ROUNDS);
    peers.ask_for_more(id, true, Instant(9));
    assert_eq!(peers.next_attempt(), Some(9));
}

#[test]
fn the_receive_buffer_is_shared() {
    let mut peers = peers(1 << 20);
    let windows: Vec<u32> = (0..4)
        .map(|n| peers.handle_hello(route(), FIRST_PORT + 1 + n, &asks(), Instant(0)).reply)
        .map(|reply| reply.unwrap().hello.window)
        .collect();
    assert_eq!(windows, [524_288, 262_144, 174_762, 131_072]);
}

#[test]
fn clients_that_left_keep_no_share_of_the_receive_buffer() {
    let mut peers = peers(1 << 20);
    let second = 1_000_000_000;
    for n in 0..1000u64 {
        let from = Route { remote: [10, 1, (n >> 8) as u8, n as u8].into(), ..route() };
        let now = Instant(n * 2 * second);
        let reply = peers.handle_hello(from, FIRST_PORT + 1, &asks(), now).reply;
        assert_eq!(reply.unwrap().hello.window, 524_288, "client {n}");
        let id = peers.bind(from, 1 << 14 | 5, 0, now);
        let answer = answers(&peers, from, FIRST_PORT + 1);
        assert_eq!(peers.handle_hello(from, FIRST_PORT + 1, &answer, now).peer, Some(id));
        peers.unbind(id, 0, now + Duration::from_millis(300));
        assert_eq!((peers.lists.peers.len(), peers.next_attempt()), (1, None));
    }
    assert!(peers.lists.by_key.len() <= MAX_UNBOUND_PEERS);
}

#[test]
fn peers_without_recent_datagrams_are_forgotten() {
    let mut peers = peers(1 << 20);
    for n in 0..1000u64 {
        let to = Route { remote: [10, 1, (n >> 8) as u8, n as u8].into(), ..route() };
        let now = Instant(n * 1_000_000_000);
        let id = peers.peer_of_datagram(to, 1 << 14 | 5, now).unwrap();
        let answer = answers(&peers, to, FIRST_PORT + 1);
        assert_eq!(peers.handle_hello(to, FIRST_PORT + 1, &answer, now).peer, Some(id));
        peers.satisfied(id);
        assert_eq!(peers.share, 524_288);
    }
    assert!(peers.lists.peers.len() <= 2 * QUIET.as_secs() as usize + FEW, "{}", peers.lists.peers.len());
    assert!(peers.lists.by_key.len() <= peers.lists.peers.len() + MAX_UNBOUND_PEERS);
}

#[test]
fn a_flood_of_hellos_costs_neither_memory_nor_windows() {
    let mut peers = peers(1 << 20);
    let ours = known(&mut peers);
    let sender = Route { remote: [10, 0, 0, 3].into(), ..route() };
    let late = Route { remote: [10, 0, 0, 4].into(), ..route() };
    let mut now = Instant(0);
    for n in 0..200_000u32 {
        // A flood of 30 s; meanwhile a genuine sender of datagrams sends a hello every 100 ms.
        now = Instant(u64::from(n) * 150_000);
        if n % 666 == 0 {
            let reply = peers.handle_hello(sender, FIRST_PORT + 1, &asks(), now).reply.unwrap().hello;
            assert!(reply.icrc_auto && reply.window >= 64 << 10);
            let answer = answers(&peers, sender, FIRST_PORT + 1);
            peers.handle_hello(sender, FIRST_PORT + 1, &answer, now);
            assert!(peers.find(sender.local, sender.remote, FIRST_PORT + 1).is_some());
        }
        let forged_route = Route { remote: IpAddr::from((0x0b00_0000 + n).to_be_bytes()), ..route() };
        let outcome = peers.handle_hello(forged_route, FIRST_PORT + 9, &asks(), now);
        assert!(outcome.reply.is_some() && !outcome.answers);
        assert_eq!(peers.find(forged_route.local, forged_route.remote, FIRST_PORT + 9), None, "it never answered");
        let forged = Hello { answer: u64::from(n), ..hello() };
        assert!(peers.handle_hello(forged_route, FIRST_PORT + 10, &forged, now).peer.is_none());
    }
    assert_eq!((peers.lists.peers.len(), peers.read_room(ours)), (1, 524_288));
    assert!(peers.lists.by_key.len() <= MAX_UNBOUND_PEERS + 1);
    let reply = peers.handle_hello(route(), PORT, &asks(), now).reply;
    assert_eq!(reply.unwrap().hello.window, 524_288);
    // An unbound peer without an entry sends with ICRC, until a QP here is bound to it: its next hello allows more.
    let reply = peers.handle_hello(late, FIRST_PORT + 1, &asks(), now).reply.unwrap().hello;
    assert_eq!((reply.icrc_auto, reply.window), (false, 64 << 10));
    let id = peers.bind(late, 1 << 14 | 5, 1, now);
    peers.ask_soon(id, now);
    assert!(peers.next_due_hello(now).unwrap().1.hello.icrc_auto);
    let answer = answers(&peers, late, FIRST_PORT + 1);
    peers.handle_hello(late, FIRST_PORT + 1, &answer, now);
    assert_eq!(peers.share, 262_144);
}

#[test]
fn an_unbound_peer_that_answers_is_proven_and_stays_so_when_bound() {
    let mut peers = peers(2 << 20);
    let reply = peers.handle_hello(route(), PORT, &asks(), Instant(0)).reply.unwrap().hello;
    assert_eq!((reply.ask, reply.answer), (answers(&peers, route(), PORT).answer, 42));
    assert_eq!(peers.find(route().local, route().remote, PORT), None);
    let answer = answers(&peers, route(), PORT);
    assert!(peers.handle_hello(route(), PORT, &answer, Instant(0)).reply.is_none());
    assert!(peers.find(route().local, route().remote, PORT).is_some());
    // A forged question from the same address is answered, and asked in return; the parameters stay.
    let forged = Hello { icrc_auto: false, ..asks() };
    let reply = peers.handle_hello(route(), PORT, &forged, Instant(1)).reply.unwrap().hello;
    assert_ne!(reply.ask, 0);
    assert!(peers.find(route().local, route().remote, PORT).is_some_and(|weir| !weir.icrc));
    let id = peers.bind(route(), QPN, 0, Instant(1));
    assert!(peers.get(id).weir().is_some());
    peers.ask_soon(id, Instant(1));
    assert_eq!(peers.next_due_hello(Instant(1)).unwrap().1.hello.window, 1 << 20);
}

#[test]
fn another_machine_or_setting_keeps_the_icrc() {
    let mut peers = peers(1 << 20);
    for change in [|h: &mut Hello| h.boot_id = [2; 16], |h: &mut Hello| h.icrc_auto = false] {
        let mut other = answers(&peers, route(), FIRST_PORT + 1);
        change(&mut other);
        peers.handle_hello(route(), FIRST_PORT + 1, &other, Instant(0));
        let found = peers.find(route().local, route().remote, FIRST_PORT + 1);
        assert!(matches!(found, Some(Weir { icrc: true, .. })));
    }
    for port in [4791, FIRST_PORT, FIRST_PORT + 1023] {
        assert!(
            peers.handle_hello(route(), port, &asks(), Instant(0)).reply.is_none(),
            "{port} is the port of no slot"
        );
    }
}

#[test]
fn frames_need_the_offer_of_both_sides() {
    let mut other = answers(&peers(1 << 20), route(), PORT);
    for (own, offered) in [(true, true), (true, false), (false, true)] {
        let mut peers = peers(1 << 20);
        peers.own.frames = own;
        other = Hello { frames: offered, ..answers(&peers, route(), PORT) };
        peers.handle_hello(route(), PORT, &other, Instant(0));
        let found = peers.find(route().local, route().remote, PORT).unwrap();
        assert_eq!((found.frames, peers.accepts_frames()), (own && offered, own));
    }
    // Offers of a later version are ignored.
    let mut bytes = [0; hello::MAX_LEN];
    let len = other.encode(&[], &mut bytes);
    let sum = len - 8;
    bytes[5] |= 0xf8;
    let checked = crate::engine::peers::proof::checksum(&bytes[..sum]).to_be_bytes();
    bytes[sum..len].copy_from_slice(&checked);
    assert_eq!(Hello::decode(&bytes[..len]).map(|(hello, _)| hello), Some(other));
}

#[test]
fn a_widened_window_is_the_whole_budget_and_is_still_divided() {
    let mut peers = peers(8 << 20);
    peers.widen();
    let window = |peers: &mut Peers, port| {
        let reply = peers.handle_hello(route(), FIRST_PORT + port, &asks(), Instant(0)).reply;
        reply.unwrap().hello.window as usize
    };
    assert_eq!([window(&mut peers, 1), window(&mut peers, 2)], [4 << 20, 2 << 20]);
    let id = peers.bind(route(), QPN, 0, Instant(0));
    assert_eq!(peers.read_room(id), *SHARE.end(), "the limit of READs is unchanged");
}

#[test]
fn a_question_of_the_peer_begins_no_new_rounds_of_full_answers() {
    let mut peers = peers(1 << 20);
    let (id, now) = (peers.bind(route(), QPN, 0, Instant(0)), Instant(0));
    let rounds = |peers: &mut Peers| {
        let asks_at_once = |_: &u32| {
            while peers.next_due_hello(now).is_some() {}
            peers.ask_for_more(id, false, now);
            peers.get(id).next_attempt == Some(now)
        };
        (0..).take_while(asks_at_once).count() as u32
    };
    peers.ask_soon(id, now);
    assert_eq!(rounds(&mut peers), hellos::ROUNDS);
    peers.ask_because_asked(id, now);
    assert_eq!((peers.get(id).next_attempt, rounds(&mut peers)), (Some(now), 0));
    peers.ask_soon(id, now);
    assert_eq!(rounds(&mut peers), hellos::ROUNDS);
}
