//! Messages of all sizes, in all ways that they travel.

use std::time::Duration;
use weir_msg::testing::{Program, Receive, Send, Setup};
use weir_msg::{Failure, Rendezvous, Scheme, Settings};

fn setup(scheme: Scheme, rendezvous: Rendezvous) -> Setup {
    let settings = Settings { scheme, rendezvous, eager_limit: 3000, slot: 1024, ..Settings::default() };
    Setup { settings, ..Setup::default() }
}

/// Sizes at all limits of `setup`.
fn sizes(setup: &Setup) -> Vec<u64> {
    let Settings { eager_limit, slot, .. } = setup.settings;
    let (inline, part) = (setup.inline as u64, u64::from(slot) - 28);
    let around = |limit: u64| (limit.saturating_sub(30)..=limit + 1).collect::<Vec<u64>>();
    let mut sizes = vec![0, 1, 2, 100_000, 65_536];
    sizes.extend([inline, part, 2 * part, u64::from(slot)].into_iter().flat_map(around));
    sizes.extend([eager_limit - 1, eager_limit, eager_limit + 1]);
    sizes
}

fn all_setups() -> impl Iterator<Item = Setup> {
    let ways = [Rendezvous::Read, Rendezvous::Write];
    Scheme::ALL.into_iter().flat_map(move |scheme| ways.map(|way| setup(scheme, way))).chain([Setup::tiny()])
}

/// Sends a message of each size, tagged or not, from several pieces to several pieces.
fn each_size(setup: &Setup, receive_first: bool, matched: bool, to: usize) {
    let mut program = Program::new(Setup { memory: 4 << 20, ..setup.clone() }.mesh());
    for (at, len) in sizes(setup).into_iter().enumerate() {
        let tag = (at % 3 != 0).then_some(at as u64);
        let send = Send { from: 0, to, tag, len, pieces: 1 + at % 4, matched };
        // Exact, with room, or too short.
        let room = [len, len + 9, len / 2][at % 5 % 3];
        let receive = Receive { pieces: 1 + at / 2 % 4, tagged: tag.is_some(), ..Receive::tagged(to, at as u64, room) };
        if receive_first {
            program.receive(receive);
            program.send(send);
        } else {
            let number = program.send(send);
            program.mesh.settle();
            program.take_events();
            let small = len <= setup.settings.eager_limit && !matched;
            assert_eq!(program.send_ended(number), small.then_some(Ok(())), "{len} bytes");
            program.receive(receive);
        }
        program.mesh.settle();
        program.take_events();
        assert_eq!(program.open(), (0, 0), "{len} bytes, {:?}", setup.settings);
    }
    program.finish();
}

#[test]
fn expected_messages_of_each_size() {
    all_setups().for_each(|setup| each_size(&setup, true, false, 1));
}

#[test]
fn unexpected_messages_of_each_size() {
    all_setups().for_each(|setup| each_size(&setup, false, false, 1));
}

#[test]
fn matched_messages_of_each_size() {
    all_setups().for_each(|setup| each_size(&setup, true, true, 1));
    all_setups().for_each(|setup| each_size(&setup, false, true, 1));
}

#[test]
fn messages_to_itself_of_each_size() {
    all_setups().for_each(|setup| each_size(&setup, true, false, 0));
    all_setups().for_each(|setup| each_size(&setup, false, false, 0));
}

#[test]
fn peers_with_other_settings() {
    for (mine, theirs) in [(Setup::default(), Setup::tiny()), (Setup::tiny(), Setup::default())] {
        let mut mesh = mine.mesh();
        let other = Setup { seed: 2, ..theirs }.mesh();
        mesh.nodes[1] = other.nodes.into_iter().nth(1).expect("two nodes");
        let mut program = Program::new(mesh);
        for round in 0..40 {
            let len = [10, 3000, 400, 20_000][round % 4];
            program.receive(Receive::tagged(1, round as u64, len));
            program.send(Send::tagged(0, 1, round as u64, len));
            program.send(Send::tagged(1, 0, round as u64, len));
            program.receive(Receive::tagged(0, round as u64, len));
        }
        program.finish();
    }
}

/// Their end says that they have arrived, or matched.
#[test]
fn copied_messages_end_as_late_as_others() {
    for setup in [Setup::default(), Setup::tiny()] {
        for matched in [false, true] {
            let mut program = Program::new(setup.mesh());
            let longest = program.mesh.nodes[0].endpoint().longest_injected() as u64;
            for len in [0, 1, longest] {
                let sent = program.send_copied(Send { matched, ..Send::tagged(0, 1, 5, len) }).expect("there is room");
                program.take_events();
                assert_eq!(program.send_ended(sent), None);
                program.mesh.settle();
                program.take_events();
                assert_eq!(program.send_ended(sent), (!matched).then_some(Ok(())));
                program.receive(Receive::tagged(1, 5, longest));
                program.mesh.settle();
                program.take_events();
                assert_eq!(program.send_ended(sent), Some(Ok(())));
            }
            program.finish();
        }
    }
}

#[test]
fn injected_messages_leave_or_are_tried_again() {
    for setup in [Setup::default(), Setup::tiny()] {
        let mut program = Program::new(setup.mesh());
        let longest = program.mesh.nodes[0].endpoint().longest_injected() as u64;
        let (mut sent, mut refused) = (0, 0);
        while sent < 60 {
            let len = [0, 1, longest][sent % 3];
            if program.inject(Send::tagged(0, 1, 5, len)) {
                sent += 1;
                program.receive(Receive::tagged(1, 5, longest));
            } else {
                refused += 1;
                program.mesh.step();
                program.mesh.poll(0, 100);
                program.mesh.poll(1, 100);
            }
        }
        assert_eq!(refused > 0, setup.settings.injected < 1000);
        program.finish();
    }
}

#[test]
fn a_receive_for_several_messages() {
    let lens = [100, 0, 3000, 5000, 300, 1, 20_000];
    for setup in all_setups() {
        for first in [true, false] {
            let mut program = Program::new(setup.mesh());
            let multi = Receive { multi: Some(200), ..Receive::tagged(1, 7, 8500) };
            if first {
                program.receive(multi);
            }
            for len in lens {
                program.send(Send::tagged(0, 1, 7, len));
            }
            if !first {
                program.mesh.settle();
                program.receive(multi);
            }
            program.mesh.settle();
            program.take_events();
            // 100 bytes are left after 300 more than 8100, so the next messages take the next receive.
            assert_eq!(program.open().1, 0);
            assert_eq!(program.matched(4), Some(0));
            assert_eq!(program.matched(5), None);
            program.receive(Receive::tagged(1, 7, 1));
            program.receive(Receive::tagged(1, 7, 20_000));
            program.finish();
        }
    }
}

#[test]
fn a_cancelled_receive_for_several_messages_ends_after_them() {
    let mut program = Program::new(setup(Scheme::OdpOptimal, Rendezvous::Write).mesh());
    let receive = program.receive(Receive { multi: Some(1), ..Receive::tagged(1, 7, 50_000) });
    program.send(Send::tagged(0, 1, 7, 20_000));
    while program.mesh.nodes[1].endpoint().open_operations() < 2 {
        program.mesh.step();
        program.mesh.poll(0, 100);
        program.mesh.poll(1, 100);
    }
    assert!(program.cancel(receive));
    program.take_events();
    assert_eq!(program.receive_ended(receive), None);
    program.receive(Receive { multi: Some(1), ..Receive::tagged(1, 8, 50_000) });
    program.mesh.settle();
    program.take_events();
    assert_eq!(program.matched(0), Some(receive));
    assert_eq!(program.receive_ended(receive), Some(Err(Failure::Cancelled)));
    program.send(Send::tagged(0, 1, 8, 50_000));
    program.finish();
}

#[test]
fn a_receive_is_cancelled_once_and_only_before_it_matches() {
    let mut program = Program::new(Setup::default().mesh());
    let receive = program.receive(Receive::tagged(1, 7, 100));
    let other = program.receive(Receive::tagged(1, 7, 100));
    assert!(program.cancel(receive) && !program.cancel(receive));
    program.send(Send::tagged(0, 1, 7, 100));
    program.mesh.settle();
    program.take_events();
    assert_eq!(program.matched(0), Some(other));
    assert!(!program.cancel(other));
    program.finish();
}

#[test]
fn messages_are_claimed_and_discarded() {
    for setup in all_setups() {
        let mut program = Program::new(Setup { latency: Duration::from_micros(20), ..setup }.mesh());
        let lens = [0, 10, 2900, 590, 5000];
        for round in 0..20 {
            let len = lens[round % lens.len()];
            program.send(Send::tagged(0, 1, 7, len));
            let receive = Receive::tagged(1, 7, [len, len / 3][round % 2]);
            // As early as possible, so that messages are incomplete.
            loop {
                let done = match round % 3 {
                    0 => program.discard(receive),
                    way => program.claim(receive, way == 1),
                };
                if done {
                    break;
                }
                program.mesh.step();
                program.mesh.poll(0, 1);
                program.mesh.poll(1, 1);
            }
        }
        program.finish();
    }
}
