//! A hostile peer: nothing that it sends ends the process, takes unbounded memory, or disturbs other peers.

use weir_msg::Settings;
use weir_msg::testing::{Mesh, Setup, fuzz, name};

#[test]
fn random_attacks() {
    weir_trials::run("messages", fuzz);
}

/// A hostile node 1 that is connected to node 0, without further ado. Node 0 has all its receives from the first.
fn connected() -> Mesh {
    let all = Settings::default().receive_slots;
    let settings = Settings { unexpected: 1000, first_receives: all, ..Settings::default() };
    let setup = Setup { settings, ..Setup::default() };
    let mut mesh = setup.mesh();
    mesh.make_hostile(1);
    let hello = mesh.nodes[1].raw_hello(name(1));
    mesh.raw_connect(1, 0, hello);
    mesh.settle();
    mesh
}

fn is_connected(mesh: &Mesh) -> bool {
    mesh.nodes[0].port.connections() == 1
}

#[test]
fn messages_that_are_none_end_the_connection() {
    for bytes in [&[][..], &[0; 8], &[11; 8], &[2; 8], &[1, 0, 0], &[3, 0xff, 0, 0, 0, 0, 0, 0]] {
        let mut mesh = connected();
        assert!(is_connected(&mesh) && mesh.raw_send(1, bytes));
        mesh.settle();
        assert!(!is_connected(&mesh), "{bytes:?}");
    }
}

/// Eager messages of nothing, each with the credit of the last.
#[test]
fn more_unexpected_messages_than_agreed_end_the_connection() {
    let mut mesh = connected();
    let most = (0..).take_while(|_| {
        mesh.raw_send(1, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        mesh.settle();
        is_connected(&mesh)
    });
    // Each counts 64 bytes of 1000.
    assert_eq!(most.count(), 15);
    assert_eq!(mesh.nodes[0].endpoint().unexpected_messages(), 15);
}

/// Empty messages that return nothing: the adapter has receives for them, the protocol has not.
#[test]
fn more_messages_than_agreed_end_the_connection() {
    let mut mesh = connected();
    let most = (0..).take_while(|_| {
        mesh.raw_send(1, &[8, 0, 0, 0, 0, 0, 0, 0]);
        mesh.settle();
        is_connected(&mesh)
    });
    // Receives at first, and all but one of them with each message that node 0 may send.
    let receives = usize::from(Settings::default().receive_slots);
    assert_eq!(most.count(), receives + receives * (receives - 1));
}

/// A peer that says with each message that it had to wait, and returns enough to be answered.
#[test]
fn a_peer_that_always_waits_gets_no_more_receives_than_agreed() {
    let settings = Settings { receive_slots: 11, ..Settings::default() };
    let mut mesh = Setup { settings, ..Setup::default() }.mesh();
    mesh.make_hostile(1);
    let hello = mesh.nodes[1].raw_hello(name(1));
    mesh.raw_connect(1, 0, hello);
    mesh.settle();
    let mut slots = vec![mesh.nodes[0].port.slots_in_use()];
    for _ in 0..100 {
        mesh.raw_send(1, &[8, 0, 1, 0x80, 0, 0, 0, 0]);
        mesh.settle();
        slots.push(mesh.nodes[0].port.slots_in_use());
    }
    assert!(is_connected(&mesh));
    slots.dedup();
    // One is for sending.
    assert_eq!(slots, [5, 9, 12]);
}

/// A peer that connects again and again may not leave as much each time. Its name is lower, so that it may.
#[test]
fn messages_of_all_connections_of_a_peer_are_bounded() {
    let setup = Setup { settings: Settings { unexpected: 1000, ..Settings::default() }, ..Setup::default() };
    let mut mesh = setup.mesh();
    mesh.make_hostile(0);
    for _ in 0..5 {
        let hello = mesh.nodes[0].raw_hello(name(0));
        mesh.raw_connect(0, 1, hello);
        mesh.settle();
        for _ in 0..10 {
            mesh.raw_send(0, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            mesh.settle();
        }
    }
    assert_eq!(mesh.nodes[1].endpoint().unexpected_messages(), 15);
}

/// A peer that connects again and again, each time with another name, and leaves a message each second time.
#[test]
fn names_of_a_peer_are_bounded() {
    let settings = Settings { strangers: 3, ..Settings::default() };
    let mut mesh = Setup { settings, ..Setup::default() }.mesh();
    mesh.make_hostile(0);
    let mut left = 0;
    for number in 0..40 {
        let connections = mesh.nodes[1].port.connections();
        let hello = mesh.nodes[0].raw_hello(name(100 + number));
        let connection = mesh.raw_connect(0, 1, hello);
        mesh.settle();
        let accepted = mesh.nodes[1].port.connections() > connections;
        // Three that have left a message are all that there is room for.
        assert_eq!(accepted, left < 3, "{number}");
        if accepted {
            if number % 2 == 1 {
                mesh.raw_send(0, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                left += 1;
            }
            mesh.settle();
            mesh.raw_disconnect(0, connection);
            mesh.settle();
        }
        assert_eq!(mesh.nodes[1].endpoint().unexpected_messages(), left);
    }
    assert_eq!(left, 3);
}

/// Atomics, of which each has an answer, and rarely a credit to send one.
#[test]
fn a_peer_that_asks_more_than_it_lets_answer_is_slowed_down() {
    let mut mesh = connected();
    let mut atomic = vec![9, 1 << 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 10, 7, 0];
    atomic.extend([0; 8]);
    atomic.extend(8u64.to_le_bytes());
    atomic.extend([0; 4]);
    let mut most = 0;
    for sent in 0..3000u32 {
        atomic[2] = u8::from(sent.is_multiple_of(16));
        mesh.raw_send(1, &atomic);
        mesh.settle();
        most = most.max(mesh.nodes[0].most_answers());
    }
    assert!((20..100).contains(&most), "{most} answers wait");
    assert!(!is_connected(&mesh));
}
