//! Connections: on demand, crossing, refused, lost and established again.

use std::time::Duration;
use weir_msg::testing::{Program, Receive, Remotes, Rng, Send, Setup, Window, audit, close, each_seed};
use weir_msg::{ConnectionId, Errno, Failure, Reason, Rejection, Settings};

/// Sends a message and receives it.
fn exchange(program: &mut Program, from: usize, to: usize) {
    let len = 100 + 10_000 * (from as u64 % 2);
    let receive = program.receive(Receive { from: Some(from), ..Receive::tagged(to, 99, len) });
    let send = program.send(Send::tagged(from, to, 99, len));
    program.mesh.settle();
    program.take_events();
    assert_eq!(program.send_ended(send), Some(Ok(())), "from {from} to {to}");
    assert_eq!(program.receive_ended(receive), Some(Ok(())), "from {from} to {to}");
}

#[test]
fn connections_are_made_when_something_is_sent() {
    let mut program = Program::new(Setup { nodes: 3, ..Setup::default() }.mesh());
    program.receive(Receive::tagged(1, 1, 10));
    program.mesh.settle();
    let connections = |program: &Program| [0, 1, 2].map(|node| program.mesh.nodes[node].port.connections());
    assert_eq!(connections(&program), [0, 0, 0]);
    program.send(Send::tagged(2, 1, 1, 10));
    program.mesh.settle();
    assert_eq!(connections(&program), [0, 1, 1]);
    exchange(&mut program, 1, 2);
    assert_eq!(connections(&program), [0, 1, 1]);
    exchange(&mut program, 1, 1);
    assert_eq!(connections(&program), [0, 2, 1]);
    program.finish();
}

#[test]
fn connections_that_cross_become_one() {
    each_seed(150, |seed| {
        let mut rng = Rng(seed);
        let nodes = rng.choose(&[2, 2, 4]);
        let jitter = Duration::from_micros(rng.choose(&[0, 5, 1000]));
        let setup = Setup { nodes, jitter, seed, ..[Setup::default(), Setup::tiny()][seed as usize % 2].clone() };
        let mut program = Program::new(setup.mesh());
        for from in 0..nodes {
            for to in 0..nodes {
                program.receive(Receive { from: Some(from), ..Receive::tagged(to, 1, 5000) });
                program.send(Send::tagged(from, to, 1, rng.choose(&[0, 100, 5000])));
                for _ in 0..rng.below(4) {
                    program.mesh.turn();
                }
            }
        }
        program.mesh.settle();
        program.take_events();
        assert_eq!(program.open(), (0, 0));
        assert!(program.mesh.nodes.iter().all(|node| node.port.connections() == nodes));
        program.finish();
    });
}

#[test]
fn a_refusal_ends_what_waits_and_nothing_else() {
    let mut program = Program::new(Setup { nodes: 3, ..Setup::default() }.mesh());
    program.mesh.nodes[1].refuses = true;
    program.may_fail = vec![1];
    let receive = program.receive(Receive { from: Some(1), ..Receive::tagged(0, 1, 10) });
    let other = program.receive(Receive::tagged(0, 1, 10));
    let sends: Vec<usize> = (0..5).map(|_| program.send(Send::tagged(0, 1, 1, 10_000))).collect();
    program.mesh.settle();
    program.take_events();
    let refused = Some(Err(Failure::Unreachable(Reason::Rejected(Rejection::Resources))));
    assert!(sends.iter().all(|&send| program.send_ended(send) == refused));
    assert_eq!((program.receive_ended(receive), program.receive_ended(other)), (refused, None));
    program.mesh.nodes[1].refuses = false;
    exchange(&mut program, 0, 1);
    program.send(Send::tagged(2, 0, 1, 10));
    program.finish();
}

#[test]
fn a_peer_that_is_not_there_is_tried_for_a_while() {
    let mut program = Program::new(Setup::default().mesh());
    program.mesh.kill(1, false);
    program.may_fail = vec![1];
    let send = program.send(Send::tagged(0, 1, 1, 10));
    program.mesh.settle();
    program.take_events();
    let refused = Some(Err(Failure::Unreachable(Reason::System(Errno(111)))));
    assert_eq!(program.send_ended(send), refused);
    // Ten seconds, and not twice as long.
    assert!((9..12).contains(&program.mesh.now.as_secs()), "{:?}", program.mesh.now);
    program.send(Send::tagged(0, 1, 2, 10));
    program.mesh.compute(Duration::from_secs(2));
    program.mesh.poll(0, 100);
    program.mesh.restart(1);
    program.receive(Receive::tagged(1, 2, 10));
    program.finish();
}

/// A program that computes does not answer. Its peer waits for it, longer than connection managers repeat a request.
#[test]
fn a_peer_that_computes_for_long_is_waited_for() {
    let settings = Settings { connect_within: Duration::from_secs(120), ..Setup::default().settings };
    let mut program = Program::new(Setup { settings, ..Setup::default() }.mesh());
    program.send(Send::tagged(0, 1, 1, 10));
    for _ in 0..100 {
        program.mesh.compute(Duration::from_secs(1));
        program.mesh.poll(0, 10);
    }
    program.receive(Receive::tagged(1, 1, 10));
    program.finish();
}

#[test]
fn a_connection_is_established_in_time_or_not() {
    let mut program = Program::new(Setup::default().mesh());
    program.mesh.nodes[1].unreachable = true;
    program.may_fail = vec![1];
    let send = program.send(Send::tagged(0, 1, 1, 10));
    program.mesh.settle();
    program.take_events();
    assert_eq!(program.send_ended(send), Some(Err(Failure::Unreachable(Reason::Timeout))));
    assert!((10..11).contains(&program.mesh.now.as_secs()));
    program.mesh.nodes[1].unreachable = false;
    exchange(&mut program, 0, 1);
    program.finish();
}

/// Node 2 ends at some moment. What has to do with it ends once; the others go on; its next process is a peer again.
#[test]
fn a_peer_that_ends_disturbs_no_others() {
    each_seed(150, |seed| {
        let mut rng = Rng(seed);
        let setup = Setup { nodes: 3, seed, ..[Setup::default(), Setup::tiny()][seed as usize % 2].clone() };
        let setup = Setup { settings: Settings { announced: 1000, ..setup.settings }, memory: 8 << 20, ..setup };
        let mut program = Program::new(setup.mesh());
        let mut remotes = Remotes::default();
        let mut windows = [0, 1, 2].map(|node| Window::new(&mut program, node, 512 << 10));
        let dies = rng.below(100);
        for call in 0..100 {
            if call == dies {
                program.kill(2, rng.once_in(2));
            }
            let alive = if call < dies { 3 } else { 2 };
            let (from, to) = (rng.below(alive) as usize, rng.below(3) as usize);
            let len = rng.choose(&[0, 50, 400, 5000]);
            match rng.below(5) {
                0 if from != 2 && to != 2 => {
                    let addr = windows[to].take(len).expect("room in the window");
                    remotes.start(&mut program, from, rng.once_in(2), (windows[to], addr), len);
                }
                1 | 2 if to < alive as usize => {
                    let from = (!rng.once_in(4)).then_some(from);
                    program.receive(Receive { from, ..Receive::tagged(to, rng.below(2), 5000) });
                }
                _ => {
                    let matched = rng.once_in(4);
                    program.send(Send { matched, ..Send::tagged(from, to, rng.below(2), len) });
                }
            }
            for _ in 0..rng.below(4) {
                program.mesh.turn();
            }
            remotes.take_events(&mut program);
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        for receive in program.missing_receives() {
            program.receive(receive);
        }
        // Without anything to send, peers learn of a silent end only when they probe.
        program.mesh.settle();
        program.mesh.compute(Duration::from_secs(2));
        program.mesh.settle();
        remotes.take_events(&mut program);
        remotes.check();
        assert_eq!(program.open().0, 0, "messages that have not ended");
        for receive in program.open_receives() {
            program.cancel(receive);
        }
        program.mesh.settle();
        program.take_events();
        assert_eq!(program.open(), (0, 0));
        // The next process. Receives for the earlier one would end as soon as its end is noticed.
        for from in 0..2 {
            program.send(Send::tagged(from, 2, 0, 0));
        }
        program.mesh.settle();
        program.mesh.restart(2);
        for (from, to) in [(2, 0), (0, 2), (1, 2), (2, 1), (2, 2), (0, 1)] {
            exchange(&mut program, from, to);
        }
        audit(&mut program.mesh);
        for node in &mut program.mesh.nodes[..2] {
            assert_eq!(node.endpoint().open_operations(), 0);
        }
        program.kill(2, false);
        program.mesh.settle();
        close(&mut program.mesh);
    });
}

/// The peer of the lower name does not know that the connection has ended, and has nothing to send.
#[test]
fn a_restarted_peer_connects_although_its_old_connection_seems_to_be_there() {
    for (from, to) in [(0, 1), (1, 0)] {
        let mut program = Program::new(Setup::default().mesh());
        exchange(&mut program, from, to);
        exchange(&mut program, to, from);
        program.kill(from, true);
        program.mesh.restart(from);
        let sent = program.send(Send::tagged(from, to, 1, 10));
        program.mesh.settle();
        program.take_events();
        assert_eq!(program.send_ended(sent), Some(Ok(())));
        assert!(program.mesh.now < Duration::from_secs(2));
        program.receive(Receive::tagged(to, 1, 10));
        program.finish();
    }
}

/// Node 1 ends silently, while node 0 has nothing to send and waits.
#[test]
fn the_end_of_a_peer_is_found_out_by_those_that_wait() {
    let mut program = Program::new(Setup::tiny().mesh());
    exchange(&mut program, 0, 1);
    exchange(&mut program, 1, 0);
    let receive = program.receive(Receive { from: Some(1), ..Receive::tagged(0, 1, 10) });
    let sends: Vec<usize> = (0..20).map(|_| program.send(Send::tagged(0, 1, 1, 5000))).collect();
    program.mesh.settle();
    program.kill(1, true);
    // A blocked program wakes by the time that its endpoint names.
    let since = program.mesh.now;
    program.mesh.settle();
    program.take_events();
    assert!(sends.iter().all(|&send| program.send_ended(send) == Some(Err(Failure::Disconnected))));
    assert_eq!(program.receive_ended(receive), Some(Err(Failure::Disconnected)));
    let took = program.mesh.now - since;
    assert!(took < Duration::from_secs(32), "{took:?}");
    program.finish();
}

/// The adapter refuses a request and the connection ends; before the program waits, it connects again, and the connection
/// has the same number.
#[test]
fn a_failed_connection_does_not_end_its_successor() {
    let mut program = Program::new(Setup::default().mesh());
    exchange(&mut program, 0, 1);
    program.mesh.nodes[0].port.post_fails = 1;
    let refused = program.send(Send::tagged(0, 1, 1, 10));
    program.mesh.nodes[0].port.post_fails = 0;
    program.mesh.with(0, |endpoint, port, _| endpoint.lost(port, ConnectionId(0)));
    let next = program.send(Send::tagged(0, 1, 2, 10));
    program.receive(Receive::tagged(1, 2, 10));
    program.may_fail = vec![0, 1];
    program.mesh.settle();
    program.take_events();
    assert_eq!(program.send_ended(refused), Some(Err(Failure::Disconnected)));
    assert_eq!(program.send_ended(next), Some(Ok(())));
    program.finish();
}

/// The adapter refuses requests: connections end at any moment, and nothing leaks.
#[test]
fn connections_that_fail_at_any_moment() {
    each_seed(150, |seed| {
        let mut rng = Rng(seed);
        let setup = Setup { nodes: 3, seed, ..[Setup::default(), Setup::tiny()][seed as usize % 2].clone() };
        let mut program = Program::new(setup.mesh());
        let mut remotes = Remotes::default();
        let mut windows = [0, 1, 2].map(|node| Window::new(&mut program, node, 512 << 10));
        program.may_fail = vec![0, 1, 2];
        for node in 0..3 {
            program.mesh.nodes[node].port.post_fails = 30;
        }
        for _ in 0..100 {
            let (from, to) = (rng.below(3) as usize, rng.below(3) as usize);
            let len = rng.choose(&[0, 50, 400, 5000]);
            match rng.below(6) {
                0 | 1 => {
                    let addr = windows[to].take(len).expect("room in the window");
                    remotes.start(&mut program, from, rng.once_in(2), (windows[to], addr), len);
                }
                2 => {
                    let multi = rng.once_in(2).then_some(1000);
                    program.receive(Receive { multi, ..Receive::tagged(to, rng.below(2), 6000) });
                }
                3 => {
                    let longest = program.mesh.nodes[from].endpoint().longest_injected() as u64;
                    program.inject(Send::tagged(from, to, rng.below(2), len.min(longest)));
                }
                _ => {
                    let matched = rng.once_in(4);
                    program.send(Send { matched, ..Send::tagged(from, to, rng.below(2), len) });
                }
            }
            for _ in 0..rng.below(4) {
                program.mesh.turn();
            }
            remotes.take_events(&mut program);
        }
        for node in 0..3 {
            program.mesh.nodes[node].port.post_fails = 0;
        }
        program.mesh.settle();
        // All connections end.
        for node in 1..3 {
            program.kill(node, false);
        }
        program.mesh.settle();
        for receive in program.open_receives() {
            program.cancel(receive);
        }
        while program.mesh.nodes[0].endpoint().unexpected_messages() > 0 {
            program.receive(Receive { ignore: 1, ..Receive::tagged(0, 0, 6000) });
        }
        program.mesh.settle();
        remotes.take_events(&mut program);
        program.take_events();
        assert_eq!(program.open(), (0, 0));
        assert_eq!(program.mesh.nodes[0].endpoint().open_operations(), 0);
        close(&mut program.mesh);
    });
}

#[test]
fn bounce_buffers_for_a_connection_that_cannot_be_had() {
    let setup = Setup { settings: Settings { first_receives: 8, ..Settings::default() }, ..Setup::default() };
    for limited in [0, 1] {
        let mut program = Program::new(setup.mesh());
        program.mesh.nodes[limited].port.most_slots = 5;
        program.may_fail = vec![0, 1];
        for _ in 0..10 {
            let send = program.send(Send::tagged(0, 1, 1, 10));
            program.mesh.settle();
            program.take_events();
            assert!(matches!(program.send_ended(send), Some(Err(Failure::Unreachable(_)))));
            // One to send, which stays.
            assert!(program.mesh.nodes.iter().all(|node| node.port.slots_in_use() <= 1));
        }
        program.mesh.nodes[limited].port.most_slots = 100;
        exchange(&mut program, 0, 1);
        program.finish();
    }
}

/// Node 1 takes nothing any more, and node 0 sends it more than there are bounce buffers for.
#[test]
fn a_peer_that_takes_nothing_does_not_stop_messages_to_others() {
    for send_slots in [2, 5, 64] {
        let settings = Settings { send_slots, ..Settings::default() };
        let mut program = Program::new(Setup { nodes: 3, settings, ..Setup::default() }.mesh());
        exchange(&mut program, 0, 1);
        exchange(&mut program, 0, 2);
        program.kill(1, true);
        for _ in 0..2 * send_slots {
            program.send(Send::tagged(0, 1, 1, 1000));
        }
        let sent = program.send(Send::tagged(0, 2, 1, 1000));
        let since = program.mesh.now;
        while program.send_ended(sent).is_none() {
            program.mesh.step();
            (0..3).for_each(|node| program.mesh.poll(node, 100));
            program.take_events();
        }
        assert_eq!(program.send_ended(sent), Some(Ok(())));
        assert!(program.mesh.now - since < Duration::from_millis(1), "{:?}", program.mesh.now - since);
        program.receive(Receive::tagged(2, 1, 1000));
        program.finish();
    }
}

#[test]
fn a_peer_that_sends_much_gets_more_bounce_buffers_unless_there_are_none() {
    for most in [100, 6] {
        let mut program = Program::new(Setup::default().mesh());
        program.mesh.nodes[1].port.most_slots = most;
        for _ in 0..10 {
            program.receive(Receive::tagged(1, 1, 10));
            program.send(Send::tagged(0, 1, 1, 10));
            program.mesh.settle();
        }
        let few = program.mesh.nodes[1].port.slots_in_use();
        assert!(few <= 6, "{few} bounce buffers for one message at a time");
        let receives: Vec<_> = (0..200).map(|_| program.receive(Receive::tagged(1, 1, 10))).collect();
        let sends: Vec<_> = (0..200).map(|_| program.send(Send::tagged(0, 1, 1, 10))).collect();
        program.mesh.settle();
        let many = program.mesh.nodes[1].port.slots_in_use();
        assert!(if most == 100 { many >= 32 } else { many <= 6 }, "{many} bounce buffers of {most}");
        assert_eq!(receives.len(), sends.len());
        program.finish();
    }
}
