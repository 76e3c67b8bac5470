//! How much may be sent: memory for unexpected messages is bounded, and no pattern of messages ends in a standstill.

use weir_msg::Settings;
use weir_msg::testing::{Program, Receive, Rng, Send, Setup, each_seed};

/// Checks that no node has more unexpected bytes than its peers may have there.
fn check_memory(program: &Program, setup: &Setup) {
    for node in &program.mesh.nodes {
        let most = u64::from(setup.settings.unexpected) * setup.nodes as u64;
        assert!(node.endpoint().counters().unexpected_bytes <= most);
    }
}

fn turns(program: &mut Program, setup: &Setup, turns: usize) {
    for _ in 0..turns {
        program.mesh.turn();
        check_memory(program, setup);
    }
    program.take_events();
}

/// Receives all messages that have not been received, in some order.
fn receive_all(mut program: Program, setup: &Setup, rng: &mut Rng) {
    for round in 0.. {
        program.mesh.settle();
        program.take_events();
        let mut missing = program.missing_receives();
        if missing.is_empty() {
            break;
        }
        assert!(round < 1000, "{} messages do not arrive", missing.len());
        while !missing.is_empty() {
            let receive = missing.swap_remove(rng.below(missing.len() as u64) as usize);
            program.receive(receive);
            turns(&mut program, setup, rng.below(4) as usize);
        }
    }
    program.finish();
}

#[test]
fn a_flood_of_unexpected_messages_stays_within_its_memory() {
    each_seed(30, |seed| {
        let mut rng = Rng(seed);
        let base = [Setup::tiny(), Setup::default()][seed as usize % 2].clone();
        let settings = Settings { unexpected: 5000, announced: 1000, ..base.settings };
        let setup = Setup { nodes: 3, settings, seed, memory: 16 << 20, ..base };
        let mut program = Program::new(setup.mesh());
        let len = rng.choose(&[0, 1, 500, 900, 20_000]);
        for number in 0..200 {
            program.send(Send::tagged(1 + number % 2, 0, number as u64, if rng.once_in(3) { 20 } else { len }));
            turns(&mut program, &setup, rng.below(3) as usize);
        }
        program.mesh.settle();
        check_memory(&program, &setup);
        receive_all(program, &setup, &mut rng);
    });
}

#[test]
fn nodes_that_flood_each_other_go_on() {
    each_seed(60, |seed| {
        let mut rng = Rng(seed);
        let nodes = rng.choose(&[1, 2, 4]);
        let setup = Setup { nodes, seed, ..[Setup::tiny(), Setup::default()][seed as usize % 2].clone() };
        let mut program = Program::new(setup.mesh());
        for _ in 0..200 {
            let [from, to] = [(); 2].map(|()| rng.below(nodes as u64) as usize);
            let len = rng.choose(&[0, 10, 100, 590, 3000]);
            let matched = rng.once_in(10);
            program.send(Send { matched, ..Send::tagged(from, to, rng.below(3), len) });
            if rng.once_in(3) {
                turns(&mut program, &setup, 3);
            }
        }
        receive_all(program, &setup, &mut rng);
    });
}

/// `MPI_Isend` many times with one tag, then a synchronous send with another, which the receiver takes first.
#[test]
fn a_message_behind_many_that_do_not_match_arrives() {
    for setup in [Setup::tiny(), Setup::default()] {
        let settings = Settings { announced: 1000, ..setup.settings };
        let setup = Setup { settings, ..setup };
        for matched in [true, false] {
            let mut program = Program::new(setup.mesh());
            for number in 0..500 {
                program.send(Send::tagged(0, 1, 1, [0, 100, 590, 10_000][number % 4]));
            }
            let last = program.send(Send { matched, ..Send::tagged(0, 1, 2, 10) });
            let receive = program.receive(Receive::tagged(1, 2, 10));
            program.mesh.settle();
            program.take_events();
            assert_eq!(program.matched(last), Some(receive));
            assert_eq!(program.send_ended(last), Some(Ok(())));
            receive_all(program, &setup, &mut Rng(1));
        }
    }
}

/// A message from before a connection matches while the connection is being established.
#[test]
fn messages_that_match_while_the_peer_connects_again_are_told() {
    let base = Setup::default();
    let settings = Settings { unexpected: 10_000, ..base.settings };
    let mut program = Program::new(Setup { settings, ..base }.mesh());
    for _ in 0..9 {
        program.send(Send::tagged(0, 1, 1, 1000));
    }
    program.mesh.settle();
    program.kill(0, false);
    program.mesh.restart(0);
    program.mesh.settle();
    program.may_fail.clear();
    program.send(Send::tagged(0, 1, 2, 0));
    program.receive(Receive::tagged(1, 2, 0));
    while program.mesh.nodes[1].port.connections() == 0 {
        program.mesh.step();
    }
    // Node 1 accepts, and says how much waits.
    program.mesh.poll(1, 1);
    for _ in 0..9 {
        program.receive(Receive::tagged(1, 1, 1000));
    }
    program.mesh.settle();
    program.send(Send::tagged(1, 0, 3, 1));
    program.receive(Receive::tagged(0, 3, 1));
    program.mesh.settle();
    let eager = program.mesh.nodes[0].endpoint().counters().eager;
    for _ in 0..9 {
        program.send(Send::tagged(0, 1, 1, 1000));
    }
    program.mesh.settle();
    assert_eq!(program.mesh.nodes[0].endpoint().counters().eager - eager, 9);
    for _ in 0..9 {
        program.receive(Receive::tagged(1, 1, 1000));
    }
    program.finish();
}

/// Messages of a peer's earlier process wait while the peer connects again.
#[test]
fn messages_from_before_a_connection_count_and_come_back() {
    let base = Setup::default();
    let settings = Settings { unexpected: 10_000, ..base.settings };
    let setup = Setup { settings, ..base };
    let mut program = Program::new(setup.mesh());
    for round in 0..6 {
        // 4000 bytes each time, which nothing receives.
        for number in 0..4 {
            program.send(Send::tagged(0, 1, 1, 1000));
            if number == 3 && round < 5 {
                program.mesh.settle();
                program.kill(0, round % 2 == 0);
                program.mesh.restart(0);
            }
        }
        program.mesh.settle();
        check_memory(&program, &setup);
        assert!(program.mesh.nodes[1].endpoint().counters().unexpected_bytes <= 10_000);
    }
    program.take_events();
    let waiting = program.mesh.nodes[1].endpoint().unexpected_messages();
    assert!((9..16).contains(&waiting), "{waiting} messages");
    // All are received; then the whole window is open again.
    program.may_fail.clear();
    for _ in 0..waiting {
        program.receive(Receive::tagged(1, 1, 1000));
    }
    program.mesh.settle();
    let eager = program.mesh.nodes[0].endpoint().counters().eager;
    program.send(Send::tagged(0, 1, 3, 1));
    program.receive(Receive::tagged(1, 3, 1));
    program.send(Send::tagged(1, 0, 3, 1));
    program.receive(Receive::tagged(0, 3, 1));
    program.mesh.settle();
    for _ in 0..9 {
        program.send(Send::tagged(0, 1, 2, 1000));
    }
    program.mesh.settle();
    assert_eq!(program.mesh.nodes[0].endpoint().counters().eager - eager, 10);
}
