//! A connection from its request to the end of timewait, without faults.

use weir_cm::testing::{Pair, address};
use weir_cm::{ConnectionId, Event, PortSpace, Reply, Request, ServiceId};

fn request(qpn: u32) -> Request {
    let service_id = ServiceId::ip(PortSpace::TCP, 18515);
    Request { service_id, qpn, ca_guid: 0xa, starting_psn: 7, private: b"hello".to_vec(), ..Request::default() }
}

fn reply(qpn: u32) -> Reply {
    Reply { qpn, ca_guid: 0xb, starting_psn: 9, private: b"welcome".to_vec(), ..Reply::default() }
}

/// A connection between the two processes, established.
fn connected(pair: &mut Pair) -> (ConnectionId, ConnectionId) {
    let active = pair.cms[0].connect(pair.now, &address(0), &request(11)).unwrap();
    pair.settle();
    let Event::Request { id: passive, .. } = pair.event(1) else { panic!("no request") };
    pair.cms[1].accept(pair.now, passive, &reply(12)).unwrap();
    pair.settle();
    assert!(matches!(pair.event(0), Event::Reply { .. }));
    pair.cms[0].ready(active, b"").unwrap();
    pair.settle();
    assert!(matches!(pair.event(1), Event::Established { .. }));
    (active, passive)
}

#[test]
fn a_connection_is_established() {
    let mut pair = Pair::quiet();
    connected(&mut pair);
}
