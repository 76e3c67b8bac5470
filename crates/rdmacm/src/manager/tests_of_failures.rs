//! What the log says of connections that fail.

use super::testing::*;
use crate::abi::*;

/// The only line that was logged since the last call, which must have these parts.
fn logged(pair: &Pair, parts: &[&str]) {
    let lines = std::mem::take(&mut pair.wire.lock().unwrap().warnings);
    let [line] = &lines[..] else { panic!("{parts:?}: {lines:?}") };
    parts.iter().for_each(|part| assert!(line.contains(part), "{part} in {line}"));
}

fn connecting(pair: &mut Pair, uid: u64, port: u16) {
    let id = pair.client.create(uid, port_space::TCP);
    pair.client.resolve(uid, id, &format!("10.0.0.2:{port}"));
    pair.client.connect(id, b"").unwrap();
}

#[test]
fn a_connection_that_fails_has_a_line_with_the_device_and_what_to_do() {
    let mut pair = Pair::new();
    connecting(&mut pair, 1, 7471);
    pair.deliver();
    pair.client.expect(1, event::REJECTED);
    logged(&pair, &["weir_t0", "10.0.0.2:7471", "no program there listens on port 7471", "Start the server first"]);

    let listener = pair.server.create(2, port_space::TCP);
    pair.server.listen(listener, "10.0.0.2:7472", 0).unwrap();
    connecting(&mut pair, 3, 7472);
    pair.deliver();
    let request = pair.server.expect(2, event::CONNECT_REQUEST);
    pair.server.run(command::REJECT, Reject { id: request.id, ..Reject::default() }).unwrap();
    pair.deliver();
    pair.client.expect(3, event::REJECTED);
    logged(&pair, &["weir_t0", "10.0.0.2:7472", "is rejected by the program there"]);

    connecting(&mut pair, 4, 7472);
    pair.lose();
    while *pair.client.shown.lock().unwrap() == 0 {
        let next = pair.client.manager.next().unwrap();
        pair.client.manager.tick(next);
        pair.lose();
    }
    pair.client.expect(4, event::UNREACHABLE);
    logged(&pair, &["weir_t0", "10.0.0.2:7472", "gets no answer", "UDP port 4791 is open"]);
}

#[test]
fn an_address_that_cannot_be_bound_has_a_line_with_what_to_do() {
    let mut pair = Pair::new();
    let first = pair.client.create(1, port_space::TCP);
    let second = pair.client.create(2, port_space::TCP);
    pair.client.bind(first, "10.0.0.1:7000").unwrap();
    for (address, part) in [
        ("10.0.0.1:7000", "another rdma_cm_id has this port"),
        ("10.0.0.99:7001", "no device has this address"),
        ("10.0.0.1:80", "CAP_NET_BIND_SERVICE"),
    ] {
        pair.client.bind(second, address).unwrap_err();
        logged(&pair, &[address, part]);
    }
}
