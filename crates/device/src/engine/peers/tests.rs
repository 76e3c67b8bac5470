//! Who is known, and what windows they get.

use super::*;

fn hello(kind: Kind, epoch: u64) -> Hello {
    Hello { kind, icrc_auto: true, boot_id: [1; 16], epoch, window: 1 << 20, patience: Duration::ZERO, mark: 0 }
}

fn route() -> Route {
    Route { local: "10.0.0.1".parse().unwrap(), remote: "10.0.0.2".parse().unwrap(), ifindex: 0, hops: 0 }
}

#[test]
fn silence_makes_a_peer_foreign_and_an_answer_makes_it_weir_again() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    let id = peers.bind(route(), 5 << 14 | 77, Instant(0));
    assert_eq!(peers.room(id), 0);
    let mut found = None;
    while found.is_none() {
        let at = Instant(peers.next_attempt().unwrap());
        let (note, foreign) = peers.greet(at).unwrap();
        assert_eq!(note.to, "10.0.0.2:20485".parse().unwrap());
        assert!(at.0 < 100_000_000);
        found = foreign;
    }
    assert_eq!((found, peers.get(id).to.port(), peers.room(id)), (Some(id), 4791, FOREIGN_WINDOW));
    let (same, answer) = peers.heard(route(), 20485, &hello(Kind::Hello, 9), Instant(5));
    assert_eq!((same, answer.unwrap().hello.kind), (Some(id), Kind::Welcome));
    assert_eq!((peers.get(id).to.port(), peers.room(id)), (20485, 1 << 20));
    assert!(matches!(peers.get(id).state, State::Weir(Weir { epoch: 9, icrc: false, .. })));
    assert_eq!(peers.next_attempt(), None);
}

#[test]
fn what_a_peer_sends_counts_while_it_is_greeted_anew() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    let id = peers.bind(route(), 5 << 14 | 77, Instant(0));
    let foreign = Some(Terms { icrc: true, weir: false });
    assert_eq!(peers.get(id).terms(20485, 20480, None), foreign);
    peers.heard(route(), 20485, &hello(Kind::Hello, 9), Instant(5));
    peers.unbind(id, Instant(6));
    // Its packets are without ICRC, as it was told, and may be ahead of its answer to this.
    let id = peers.bind(route(), 5 << 14 | 78, Instant(0) + 2 * FRESH);
    assert_eq!(peers.get(id).state, State::Unknown);
    let weir = Some(Terms { icrc: false, weir: true });
    assert_eq!(peers.get(id).terms(20485, 20480, None), weir);
    assert_eq!(peers.get(id).terms(20485, ROCE_PORT, None), foreign);
    assert_eq!(peers.get(id).terms(20486, 20480, None), foreign);
    peers.heard(route(), 20485, &hello(Kind::Welcome, 9), Instant(0) + 3 * FRESH);
    assert_eq!(peers.get(id).terms(20485, 20480, Some(9)), weir);
    assert_eq!(peers.get(id).terms(20485, 20480, Some(8)), None, "of another life");
    assert_eq!(peers.get(id).terms(20485, ROCE_PORT, None), None);
}

#[test]
fn the_receive_buffer_is_shared() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    let windows: Vec<u32> = (0..4)
        .map(|n| peers.heard(route(), FIRST_PORT + 1 + n, &hello(Kind::Hello, 3), Instant(0)))
        .map(|(_, answer)| answer.unwrap().hello.window)
        .collect();
    assert_eq!(windows, [524_288, 262_144, 174_762, 131_072]);
}

#[test]
fn clients_that_are_gone_take_nothing_of_it() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    let second = 1_000_000_000;
    for n in 0..1000u64 {
        let from = Route { remote: [10, 1, (n >> 8) as u8, n as u8].into(), ..route() };
        let now = Instant(n * 2 * second);
        let answer = peers.heard(from, FIRST_PORT + 1, &hello(Kind::Hello, n), now).1;
        assert_eq!(answer.unwrap().hello.window, 524_288, "client {n}");
        let id = peers.bind(from, 1 << 14 | 5, now);
        assert_eq!(peers.heard(from, FIRST_PORT + 1, &hello(Kind::Welcome, n), now).0, Some(id));
        peers.unbind(id, now + Duration::from_millis(300));
        assert_eq!((peers.peers.len(), peers.next_attempt()), (1, None));
    }
    assert!(peers.by_key.len() <= PLACES);
}

#[test]
fn datagrams_that_ended_long_ago_are_forgotten() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    for n in 0..1000u64 {
        let to = Route { remote: [10, 1, (n >> 8) as u8, n as u8].into(), ..route() };
        let now = Instant(n * 1_000_000_000);
        let id = peers.greet_datagram(to, 1 << 14 | 5, now);
        assert_eq!(peers.heard(to, FIRST_PORT + 1, &hello(Kind::Welcome, n), now).0, Some(id));
        assert_eq!(peers.share, 524_288);
    }
    assert!(peers.peers.len() <= 2 * QUIET.as_secs() as usize + FEW, "{}", peers.peers.len());
    assert!(peers.by_key.len() <= peers.peers.len() + PLACES);
}

#[test]
fn a_flood_of_hellos_costs_neither_memory_nor_windows() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    let ours = peers.bind(route(), 1 << 14 | 5, Instant(0));
    peers.heard(route(), FIRST_PORT + 1, &hello(Kind::Welcome, 2), Instant(0));
    let known = Route { remote: [10, 0, 0, 3].into(), ..route() };
    let late = Route { remote: [10, 0, 0, 4].into(), ..route() };
    let mut now = Instant(0);
    for n in 0..200_000u32 {
        // Half a minute of it; an honest sender of datagrams says hello every 100 ms meanwhile.
        now = Instant(u64::from(n) * 150_000);
        if n % 666 == 0 {
            let welcome = peers.heard(known, FIRST_PORT + 1, &hello(Kind::Hello, 3), now).1.unwrap().hello;
            assert!(welcome.icrc_auto && welcome.window >= 64 << 10);
            assert!(peers.find(known.local, known.remote, FIRST_PORT + 1).is_some());
        }
        let made_up = Route { remote: IpAddr::from((0x0b00_0000 + n).to_be_bytes()), ..route() };
        assert!(peers.heard(made_up, FIRST_PORT + 9, &hello(Kind::Hello, 9), now).1.is_some());
        assert_eq!(peers.heard(made_up, FIRST_PORT + 10, &hello(Kind::Welcome, 9), now).0, None);
    }
    assert_eq!((peers.peers.len(), peers.read_room(ours)), (1, 524_288));
    assert!(peers.by_key.len() <= PLACES + 1);
    let answer = peers.heard(route(), FIRST_PORT + 1, &hello(Kind::Hello, 2), now).1;
    assert_eq!(answer.unwrap().hello.window, 524_288);
    // Who is not remembered sends with ICRC, until a QP of ours goes there: then he hears the better news.
    let answer = peers.heard(late, FIRST_PORT + 1, &hello(Kind::Hello, 4), now).1.unwrap().hello;
    assert_eq!((answer.icrc_auto, answer.window), (false, 64 << 10));
    peers.bind(late, 1 << 14 | 5, now);
    let note = peers.greet(now).unwrap().0.hello;
    assert_eq!((note.icrc_auto, note.kind), (true, Kind::Hello));
    peers.heard(late, FIRST_PORT + 1, &hello(Kind::Welcome, 4), now);
    assert_eq!(peers.share, 262_144);
}

#[test]
fn a_stranger_that_becomes_a_peer_hears_of_a_larger_window() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 2 << 20);
    for n in 0..7 {
        peers.heard(route(), FIRST_PORT + 1 + n, &hello(Kind::Hello, 3), Instant(0));
    }
    let told = |answer: Option<Note>| answer.unwrap().hello.window;
    assert_eq!(told(peers.heard(route(), FIRST_PORT + 8, &hello(Kind::Hello, 3), Instant(0)).1), 131_072);
    peers.bind(route(), 8 << 14 | 5, Instant(1));
    assert_eq!(peers.greet(Instant(1)).unwrap().0.hello.window, 524_288);
    // Alone it was told that at once.
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    assert_eq!(told(peers.heard(route(), FIRST_PORT + 8, &hello(Kind::Hello, 3), Instant(0)).1), 524_288);
    peers.bind(route(), 8 << 14 | 5, Instant(1));
    assert!(peers.greet(Instant(1)).is_none());
}

#[test]
fn other_machines_and_wishes_keep_the_icrc() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 1 << 20);
    for change in [|h: &mut Hello| h.boot_id = [2; 16], |h: &mut Hello| h.icrc_auto = false] {
        let mut other = hello(Kind::Hello, 3);
        change(&mut other);
        peers.heard(route(), FIRST_PORT + 1, &other, Instant(0));
        let found = peers.find(route().local, route().remote, FIRST_PORT + 1);
        assert!(matches!(found, Some(Weir { icrc: true, .. })));
    }
    assert!(peers.heard(route(), 4791, &hello(Kind::Hello, 3), Instant(0)).1.is_none());
}

#[test]
fn a_wide_window_is_the_whole_budget_and_is_divided_all_the_same() {
    let mut peers = Peers::new(hello(Kind::Hello, 1), 8 << 20);
    peers.widen();
    let window = |peers: &mut Peers, port| {
        let (_, answer) = peers.heard(route(), FIRST_PORT + port, &hello(Kind::Hello, 3), Instant(0));
        answer.unwrap().hello.window as usize
    };
    assert_eq!([window(&mut peers, 1), window(&mut peers, 2)], [4 << 20, 2 << 20]);
    let id = peers.bind(route(), 5 << 14 | 77, Instant(0));
    assert_eq!(peers.read_room(id), *SHARE.end(), "what we ask for is as ever");
}
