//! Connections between two processes in memory.

use super::testing::*;
use super::*;
use crate::abi::*;
use crate::address;
use std::sync::{Arc, Mutex};

#[test]
fn a_connection_is_made_and_ended() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 3).unwrap();
    let (active, passive) = pair.connected(1, 10, 7471);
    assert_eq!(*pair.client.shown.lock().unwrap(), 0, "no event is left");

    // What each side says of its QP fits what the other says.
    for (process, id) in [(&mut pair.client, active), (&mut pair.server, passive)] {
        let init = process.attributes(id, 1).unwrap();
        assert_eq!((init.mask, init.access, init.port), (1 | 8 | 16 | 32, 2 | 4 | 8, 1));
    }
    let (rtr, rts) = (pair.client.attributes(active, 2).unwrap(), pair.client.attributes(active, 3).unwrap());
    let (peer_rtr, peer_rts) =
        (pair.server.attributes(passive, 2).unwrap(), pair.server.attributes(passive, 3).unwrap());
    assert_eq!((rtr.dest_qp_num, peer_rtr.dest_qp_num), (0x2000 + passive, 0x1000 + active));
    assert_eq!((rtr.rq_psn, peer_rtr.rq_psn), (peer_rts.sq_psn, rts.sq_psn));
    assert_ne!(rtr.rq_psn, peer_rtr.rq_psn);
    assert_eq!((rtr.path_mtu, peer_rtr.path_mtu, rtr.mask, rts.mask), (5, 5, 0x12_9181, 0x1_2e01));
    assert_eq!((rts.retry_count, rts.rnr_retry, rts.timeout), (7, 6, 17));
    assert_eq!((peer_rts.retry_count, peer_rts.rnr_retry, peer_rts.timeout), (7, 6, 17));
    // READs: what one side accepts, the other has in flight; both have said 4 and 2.
    assert_eq!((rtr.max_dest_rd_atomic, rts.max_rd_atomic), (2, 4));
    assert_eq!((peer_rtr.max_dest_rd_atomic, peer_rts.max_rd_atomic), (4, 2));
    assert_eq!(rtr.address.grh.dgid, address::gid([10, 0, 0, 2].into()));
    assert_eq!((rtr.address.grh.sgid_index, rtr.address.is_global), (3, 1));
    assert_eq!(pair.client.attributes(active, 7).err(), Some(EINVAL));

    pair.client.run(command::DISCONNECT, Disconnect { id: active }).unwrap();
    pair.deliver();
    let looked = std::mem::take(&mut pair.wire.lock().unwrap().looked);
    assert!(looked.contains(&(pair.server.address, 0)), "before the program sees the event: {looked:?}");
    pair.server.expect(1010, event::DISCONNECTED);
    pair.server.run(command::DISCONNECT, Disconnect { id: passive }).unwrap();
    pair.deliver();
    assert_eq!(pair.client.expect(10, event::DISCONNECTED).status, 0);
    pair.pass(60);
    pair.client.expect(10, event::TIMEWAIT_EXIT);
    pair.server.expect(1010, event::TIMEWAIT_EXIT);
    assert_eq!(pair.client.destroy(active), 5);
    assert_eq!(pair.server.destroy(passive), 3);
    assert_eq!(pair.server.destroy(listener), 1);
    assert_eq!((pair.client.event().is_none(), pair.server.event().is_none()), (true, true));
    assert!(pair.wire.lock().unwrap().claims.is_empty());
}

#[test]
fn ack_timeouts_follow_from_the_ack_delays_of_the_devices() {
    // The passive side takes the time of a packet's way from the timeout in the request, which is rounded up.
    for (ack_delay, timeouts) in [(16, [18, 18]), (20, [20, 21])] {
        let mut pair = Pair::new();
        pair.wire.lock().unwrap().ack_delay = Some(ack_delay);
        let listener = pair.server.create(1, port_space::TCP);
        pair.server.listen(listener, "0.0.0.0:7471", 3).unwrap();
        let (active, passive) = pair.connected(1, 10, 7471);
        let got =
            [pair.client.attributes(active, 3).unwrap().timeout, pair.server.attributes(passive, 3).unwrap().timeout];
        assert_eq!(got, timeouts);
    }
}

#[test]
fn a_request_has_the_addresses_and_the_private_data_of_its_sender() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "10.0.0.2:7471", 0).unwrap();
    let id = pair.client.create(2, port_space::TCP);
    pair.client.bind(id, "10.0.0.1:5555").unwrap();
    pair.client.resolve(2, id, "10.0.0.2:7471");
    assert_eq!(pair.client.connect(id, &[7; 57]), Err(EINVAL), "56 bytes fit");
    pair.client.connect(id, &[7; 56]).unwrap();
    pair.deliver();
    let request = pair.server.expect(1, event::CONNECT_REQUEST);
    let parameters = connection(&request);
    assert_eq!((parameters.private_data_len, &parameters.private_data[..56]), (56, &[7; 56][..]));
    assert_eq!((parameters.responder_resources, parameters.initiator_depth), (2, 4), "as seen from this side");
    assert_eq!((parameters.qp_num, parameters.retry_count, parameters.rnr_retry_count), (0x1000 + id, 7, 6));
    let query = Query { response: SOMEWHERE, id: request.id, option: 0 };
    let route: RouteResponse = pair.server.ask(command::QUERY_ROUTE, query).unwrap();
    assert_eq!(address::parse(&route.source), Ok(Some("10.0.0.2:7471".parse().unwrap())));
    assert_eq!(address::parse(&route.destination), Ok(Some("10.0.0.1:5555".parse().unwrap())));
    assert_eq!((route.path_count, route.port, route.device_index), (1, 1, 4));
    assert_eq!(route.node_guid.to_ne_bytes(), [2, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(route.paths[0].dgid, address::gid([10, 0, 0, 1].into()));
    let addresses: AddressResponse = pair.server.ask(command::QUERY, query).unwrap();
    assert_eq!((addresses.source_size, addresses.destination_size, addresses.pkey), (16, 16, 0xffff));
    let gids: AddressResponse = pair.server.ask(command::QUERY, Query { option: 2, ..query }).unwrap();
    assert_eq!((gids.source_size, &gids.source[8..24]), (48, &address::gid([10, 0, 0, 2].into())[..]));
}

/// qperf tells its client the port before it listens: opening a device takes longer than the client's request.
#[test]
fn a_process_that_has_bound_a_port_is_ready_for_requests() {
    let mut pair = Pair::new();
    for (uid, address) in [(1, "0.0.0.0:0"), (2, "10.0.0.2:0")] {
        let listener = pair.server.create(uid, port_space::TCP);
        pair.wire.lock().unwrap().ready.clear();
        pair.server.bind(listener, address).unwrap();
        assert!(pair.wire.lock().unwrap().ready.contains(&pair.server.address), "{address}");
    }
}

#[test]
fn rejections_come_with_their_reason() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    let id = pair.client.create(2, port_space::TCP);
    pair.client.resolve(2, id, "10.0.0.2:7471");
    pair.client.connect(id, b"").unwrap();
    pair.deliver();
    let request = pair.server.expect(1, event::CONNECT_REQUEST);
    let mut reject = Reject { id: request.id, private_data_len: 4, ..Reject::default() };
    reject.private_data[..4].copy_from_slice(b"busy");
    assert_eq!(pair.server.run(command::REJECT, Reject { reason: 3, ..reject }), Err(EINVAL));
    pair.server.run(command::REJECT, reject).unwrap();
    pair.deliver();
    let rejected = pair.client.expect(2, event::REJECTED);
    assert_eq!((rejected.status, &connection(&rejected).private_data[..4]), (28, &b"busy"[..]));

    // No listener for the port; a listener for datagrams.
    let other = pair.server.create(3, port_space::UDP);
    pair.server.listen(other, "0.0.0.0:7472", 0).unwrap();
    for port in [7472, 7473] {
        let id = pair.client.create(4, port_space::TCP);
        pair.client.resolve(4, id, &format!("10.0.0.2:{port}"));
        pair.client.connect(id, b"").unwrap();
        pair.deliver();
        assert_eq!(pair.client.expect(4, event::REJECTED).status, 8, "invalid service id");
    }
}

#[test]
fn a_listener_with_a_full_backlog_ignores_requests_until_there_is_room() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 2).unwrap();
    for uid in 10..13 {
        let id = pair.client.create(uid, port_space::TCP);
        pair.client.resolve(uid, id, "10.0.0.2:7471");
        pair.client.connect(id, b"").unwrap();
    }
    pair.deliver();
    assert_eq!(*pair.server.shown.lock().unwrap(), 2);
    pair.server.expect(1, event::CONNECT_REQUEST);
    pair.pass(10);
    assert_eq!(*pair.server.shown.lock().unwrap(), 2, "the third request came again");
    assert!(pair.client.event().is_none());
}

#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut pair = Pair::new();
    let id = pair.client.create(2, port_space::TCP);
    pair.client.resolve(2, id, "10.0.0.2:7471");
    pair.client.connect(id, b"").unwrap();
    let (mut requests, mut last) = (pair.lose(), Instant(0));
    while *pair.client.shown.lock().unwrap() == 0 {
        last = pair.client.manager.next().unwrap();
        pair.client.manager.tick(last);
        requests += pair.lose();
    }
    assert_eq!(requests, 16);
    assert!((60..120).contains(&(last.0 / 1_000_000_000)), "{last:?}");
    assert_eq!(pair.client.expect(2, event::UNREACHABLE).status, -libc::ETIMEDOUT as u32);
}

#[test]
fn datagrams_resolve_the_qp_of_their_peer() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::UDP);
    pair.server.listen(listener, "0.0.0.0:7174", 0).unwrap();
    let id = pair.client.create(2, port_space::UDP);
    pair.client.resolve(2, id, "10.0.0.2:7174");
    pair.client.connect(id, b"name?").unwrap();
    pair.deliver();
    let request = pair.server.expect(1, event::CONNECT_REQUEST);
    assert_eq!(&datagram(&request).private_data[..5], b"name?");
    let accept = Accept { uid: 3, id: request.id, parameters: parameters(0x3333, b"me"), ..Accept::default() };
    pair.server.run(command::ACCEPT, accept).unwrap();
    pair.deliver();
    let found = pair.client.expect(2, event::ESTABLISHED);
    let parameters = datagram(&found);
    assert_eq!((parameters.qp_num, parameters.qkey), (0x3333, 0x0123_4567));
    assert_eq!(parameters.address.grh.dgid, address::gid([10, 0, 0, 2].into()));
    assert_eq!(&parameters.private_data[..2], b"me");
    let attributes = pair.client.attributes(id, 1).unwrap();
    assert_eq!((attributes.mask, attributes.qkey), (1 | 16 | 32 | 64, 0x0123_4567));

    let id = pair.client.create(4, port_space::UDP);
    pair.client.resolve(4, id, "10.0.0.2:7174");
    pair.client.connect(id, b"").unwrap();
    pair.deliver();
    let request = pair.server.expect(1, event::CONNECT_REQUEST);
    pair.server.run(command::REJECT, Reject { id: request.id, ..Reject::default() }).unwrap();
    pair.deliver();
    assert_eq!(pair.client.expect(4, event::UNREACHABLE).status, 2, "rejected by the service");
}

/// Libraries bind 127.0.0.1 to find a device (libfabric), and programs of one host connect to it.
#[test]
fn a_loopback_address_without_a_device_stands_for_this_host() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "127.0.0.1:7471", 0).unwrap();
    pair.connected(1, 10, 7471);
    let id = pair.server.create(3, port_space::TCP);
    pair.server.resolve(3, id, "127.0.0.1:7471");
    pair.server.connect(id, b"").unwrap();
    let sent = pair.wire.lock().unwrap().mads.back().unwrap().0;
    assert_eq!((sent.local, sent.remote), ([10, 0, 0, 2].into(), [10, 0, 0, 2].into()));
}

/// A request that a listener cannot take leaves nothing behind: many of them do not silence it.
#[test]
fn refused_requests_leave_nothing_behind() {
    let mut pair = Pair::new();
    let datagrams = pair.server.create(1, port_space::UDP);
    pair.server.listen(datagrams, "10.0.0.2:7000", 0).unwrap();
    for uid in 100..1400 {
        let id = pair.client.create(uid, port_space::TCP);
        pair.client.resolve(uid, id, "10.0.0.2:7001");
        pair.client.connect(id, b"").unwrap();
        pair.deliver();
        assert_eq!(pair.client.expect(uid, event::REJECTED).status, 8, "{uid}");
        pair.client.destroy(id);
    }
    assert_eq!(pair.server.manager.cm.len(), 0);
}

#[test]
fn ports_are_bound_as_those_of_sockets() {
    let mut pair = Pair::new();
    let (a, b) = (&mut pair.client, Errno(libc::EADDRINUSE));
    let ids: Vec<u32> = (1..12).map(|uid| a.create(uid, port_space::TCP)).collect();
    assert_eq!(a.bind(ids[0], "10.0.0.1:80"), Err(Errno(libc::EACCES)));
    a.bind(ids[0], "10.0.0.1:7000").unwrap();
    assert_eq!(a.bind(ids[0], "10.0.0.1:7001"), Err(EINVAL), "bound already");
    assert_eq!(a.bind(ids[1], "10.0.0.1:7000"), Err(b));
    assert_eq!(a.bind(ids[1], "0.0.0.0:7000"), Err(Errno(libc::EADDRNOTAVAIL)));
    assert_eq!(a.bind(ids[1], "10.0.0.99:7001"), Err(Errno(libc::EADDRNOTAVAIL)), "no own address");
    assert_eq!(a.bind(ids[1], "[fe80::1]:7001"), Err(EINVAL), "no interface");
    // Other port spaces have other ports.
    let other = a.create(50, port_space::UDP);
    a.bind(other, "10.0.0.1:7000").unwrap();
    // Four ports are free to choose; the kernel's error when none is.
    for id in &ids[2..6] {
        a.bind(*id, "10.0.0.1:0").unwrap();
    }
    assert_eq!(a.bind(ids[6], "10.0.0.1:0"), Err(Errno(libc::EADDRNOTAVAIL)));
    a.destroy(ids[2]);
    a.bind(ids[6], "0.0.0.0:0").unwrap();
    // Another process of the host.
    let mut c = Process::new([10, 0, 0, 1], 3 << 20, &pair.wire);
    let id = c.create(1, port_space::TCP);
    assert_eq!(c.bind(id, "10.0.0.1:7000"), Err(b));
    pair.client.destroy(ids[0]);
    c.bind(id, "10.0.0.1:7000").unwrap();
    drop(c);
}

#[test]
fn reuse_ends_where_a_listener_begins() {
    let mut pair = Pair::new();
    let server = &mut pair.server;
    let (a, b) = (server.create(1, port_space::TCP), server.create(2, port_space::TCP));
    *server.option.borrow_mut() = 1i32.to_ne_bytes().to_vec();
    for id in [a, b] {
        let option = SetOption { value: 1, id, level: 0, name: 1, len: 4 };
        server.run(command::SET_OPTION, option).unwrap();
        server.bind(id, "0.0.0.0:7471").unwrap();
    }
    assert_eq!(server.run(command::LISTEN, Listen { id: a, backlog: 1 }), Err(Errno(libc::EADDRNOTAVAIL)));
    server.destroy(b);
    server.run(command::LISTEN, Listen { id: a, backlog: 1 }).unwrap();
    assert_eq!(server.run(command::LISTEN, Listen { id: a, backlog: 1 }), Err(EINVAL));
}

#[test]
fn listeners_on_an_address_come_before_those_on_all() {
    let mut pair = Pair::new();
    let (any, exact) = (pair.server.create(1, port_space::TCP), pair.server.create(2, port_space::TCP));
    *pair.server.option.borrow_mut() = 1i32.to_ne_bytes().to_vec();
    pair.server.listen(any, "0.0.0.0:7471", 0).unwrap();
    assert_eq!(pair.server.bind(exact, "10.0.0.2:7471"), Err(Errno(libc::EADDRNOTAVAIL)));
    pair.connected(1, 10, 7471);
    pair.server.destroy(any);
    pair.server.listen(exact, "10.0.0.2:7471", 0).unwrap();
    pair.connected(2, 11, 7471);
}

#[test]
fn destroying_a_listener_rejects_what_waits_for_it() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    let id = pair.client.create(2, port_space::TCP);
    pair.client.resolve(2, id, "10.0.0.2:7471");
    pair.client.connect(id, b"").unwrap();
    pair.deliver();
    assert_eq!(pair.server.destroy(listener), 0, "the program has not seen the request");
    pair.deliver();
    assert_eq!(pair.client.expect(2, event::REJECTED).status, 28);
    assert!(pair.server.event().is_none());
}

#[test]
fn a_closed_file_ends_its_connections() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    let (active, _) = pair.connected(1, 10, 7471);
    let (now, file) = (pair.now, pair.server.file);
    pair.server.manager.close(now, file);
    pair.deliver();
    pair.client.expect(10, event::DISCONNECTED);
    assert!(pair.server.manager.is_unused());
    pair.client.run(command::DISCONNECT, Disconnect { id: active }).unwrap();
    pair.pass(100);
    pair.client.expect(10, event::TIMEWAIT_EXIT);
    assert!(pair.wire.lock().unwrap().opened.is_empty());
}

#[test]
fn an_id_moves_to_another_file_with_its_events() {
    let mut pair = Pair::new();
    let id = pair.client.create(2, port_space::TCP);
    let mut command = ResolveIp { id, timeout_ms: 2000, ..ResolveIp::default() };
    address::write(Some("10.0.0.2:7471".parse().unwrap()), &mut command.destination);
    pair.client.run(command::RESOLVE_IP, command).unwrap();
    let first = pair.client.file;
    *pair.client.other.borrow_mut() = Some(first);
    let shown = Arc::new(Mutex::new(0));
    pair.client.file = pair.client.manager.open(Box::new(Shown(shown.clone())));
    assert_eq!(pair.client.run(command::RESOLVE_ROUTE, ResolveRoute { id, timeout_ms: 1 }), Err(EINVAL));
    let moved: Reported = pair.client.ask(command::MIGRATE_ID, MigrateId { response: SOMEWHERE, id, fd: 5 }).unwrap();
    assert_eq!((moved.events, *shown.lock().unwrap(), *pair.client.shown.lock().unwrap()), (0, 1, 0));
    pair.client.expect(2, event::ADDR_RESOLVED);
    pair.client.run(command::RESOLVE_ROUTE, ResolveRoute { id, timeout_ms: 1 }).unwrap();
}

#[test]
fn multicast_groups_are_joined_and_left() {
    let mut pair = Pair::new();
    let client = &mut pair.client;
    let id = client.create(2, port_space::UDP);
    let mut join = JoinIpMulticast { response: SOMEWHERE, uid: 77, id, ..JoinIpMulticast::default() };
    address::write(Some("239.1.2.3:0".parse().unwrap()), &mut join.address);
    assert_eq!(client.ask::<_, Created>(command::JOIN_IP_MCAST, join).map(|_| ()), Err(EINVAL), "no device yet");
    client.bind(id, "10.0.0.1:0").unwrap();
    let group: Created = client.ask(command::JOIN_IP_MCAST, join).unwrap();
    let joined = client.expect(77, event::MULTICAST_JOIN);
    let parameters = datagram(&joined);
    assert_eq!((joined.id, parameters.qp_num, parameters.qkey), (group.id, 0xff_ffff, 0x0123_4567));
    assert_eq!(parameters.address.grh.dgid, address::gid([239, 1, 2, 3].into()));
    let leave = DestroyId { response: SOMEWHERE, id: group.id, reserved: 0 };
    assert_eq!(client.ask::<_, Reported>(command::LEAVE_MCAST, leave).unwrap().events, 1);
    assert_eq!(client.ask::<_, Reported>(command::LEAVE_MCAST, leave).map(|_| ()), Err(Errno(libc::ENOENT)));
    client.destroy(id);
}

#[test]
fn a_connection_that_is_established_is_not_established_again() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "10.0.0.2:7471", 0).unwrap();
    let (_, passive) = pair.connected(1, 10, 7471);
    let notify = Notify { id: passive, event: 4 };
    assert_eq!(pair.server.run(command::NOTIFY, notify), Err(Errno(libc::EISCONN)));
}

/// A listener's program that has connected no QP accepts a request as if it were a reply.
#[test]
fn an_accept_that_fails_rejects_the_request() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "10.0.0.2:7471", 0).unwrap();
    let id = pair.client.create(2, port_space::TCP);
    pair.client.resolve(2, id, "10.0.0.2:7471");
    pair.client.connect(id, b"").unwrap();
    pair.deliver();
    let request = pair.server.expect(1, event::CONNECT_REQUEST);
    let accept = Accept { uid: 3, id: request.id, ..Accept::default() };
    assert_eq!(pair.server.run(command::ACCEPT, accept), Err(EINVAL));
    pair.deliver();
    assert_eq!(pair.client.expect(2, event::REJECTED).status, 28, "rejected by the consumer");
}

#[test]
fn wrong_commands_fail_as_in_the_kernel() {
    let mut pair = Pair::new();
    let client = &mut pair.client;
    let id = client.create(2, port_space::TCP);
    let now = Instant(0);
    let no_route = {
        let mut command = ResolveIp { id, ..ResolveIp::default() };
        address::write(Some("[2001:db8::1]:1".parse().unwrap()), &mut command.destination);
        client.run(command::RESOLVE_IP, command)
    };
    assert_eq!(no_route, Err(Errno(libc::ENETUNREACH)));
    assert_eq!(client.raw(now, 13, &[], 0), Err(Errno(libc::ENOSYS)), "GET_OPTION");
    assert_eq!(client.raw(now, command::COUNT, &[], 0), Err(EINVAL));
    assert_eq!(client.raw(now, command::CREATE_ID, CreateId::default().as_bytes(), 0), Err(Errno(libc::ENOSPC)));
    assert_eq!(client.raw(now, command::GET_EVENT, &[0; 8], 319), Err(Errno(libc::ENOSPC)));
    assert_eq!(client.raw(now, command::CONNECT, &[0; 10], 0), Err(EINVAL));
    assert_eq!(client.run(command::LISTEN, Listen { id: 99, backlog: 0 }), Err(Errno(libc::ENOENT)));
    assert_eq!(client.connect(id, b""), Err(EINVAL), "no route");
    assert_eq!(client.run(command::DISCONNECT, Disconnect { id }), Err(EINVAL));
    assert_eq!(client.run(command::NOTIFY, Notify { id, event: 4 }), Err(EINVAL));
    assert_eq!(
        client.run(command::SET_OPTION, SetOption { id, level: 9, ..SetOption::default() }),
        Err(Errno(libc::ENOSYS))
    );
    *client.option.borrow_mut() = vec![0; 8];
    assert_eq!(client.run(command::SET_OPTION, SetOption { id, len: 2, ..SetOption::default() }), Err(EINVAL));
    // Any bytes: no panic, and never a connection.
    let mut seed = 1u32;
    for _ in 0..20_000 {
        let mut bytes = [0u8; 300];
        for byte in &mut bytes {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = if seed >> 30 == 0 { (seed >> 16) as u8 } else { 0 };
        }
        let (file, len) = (client.file, (seed >> 8) as usize % 300);
        bytes[0] %= 25;
        bytes[1..4].fill(0);
        *client.option.borrow_mut() = vec![0; 4096];
        if bytes[0] != command::MIGRATE_ID as u8 {
            let _ = client.manager.command(now, file, &bytes[..len], &Reads(&client.option, None));
        }
    }
}

/// librdmacm of rdma-core 60 and later reports by such an event that `rdma_resolve_addrinfo` is done.
#[test]
fn an_event_that_the_program_writes_comes_back_with_its_number() {
    let mut pair = Pair::new();
    let id = pair.client.create(5, port_space::TCP);
    let mut command = WriteEvent { id, event: event::USER, status: -3_i32 as u32, ..WriteEvent::default() };
    command.parameters[..8].copy_from_slice(&0x1122_3344_5566_7788_u64.to_ne_bytes());
    for kind in [event::USER, event::INTERNAL] {
        pair.client.run(command::WRITE_CM_EVENT, WriteEvent { event: kind, ..command }).unwrap();
        let written = pair.client.expect(5, kind);
        assert_eq!((written.id, written.status as i32), (id, -3));
        assert_eq!(written.parameters[..8], command.parameters[..8]);
    }
    let other = WriteEvent { event: event::ESTABLISHED, ..command };
    assert_eq!(pair.client.run(command::WRITE_CM_EVENT, other), Err(EINVAL));
    let unknown = WriteEvent { id: id + 1, ..command };
    assert_eq!(pair.client.run(command::WRITE_CM_EVENT, unknown), Err(Errno(libc::ENOENT)));
    assert!(pair.client.event().is_none());

    let services = ResolveIbService { id, ..ResolveIbService::default() };
    assert_eq!(pair.client.run(command::RESOLVE_IB_SERVICE, services), Err(EINVAL), "the id has no device");
    pair.client.bind(id, "10.0.0.1:0").unwrap();
    assert_eq!(pair.client.run(command::RESOLVE_IB_SERVICE, services), Err(Errno(libc::EOPNOTSUPP)));
}

#[test]
fn packets_are_taken_once_for_all_connections_that_end_together() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "10.0.0.2:7471", 0).unwrap();
    let _ = [10, 11, 12].map(|uid| pair.connected(1, uid, 7471));
    pair.wire.lock().unwrap().looked.clear();
    pair.client.manager.close(pair.now, pair.client.file);
    pair.deliver();
    assert_eq!(pair.wire.lock().unwrap().looked, [(pair.server.address, 0)], "before the program sees an event");
    for uid in 10..13 {
        pair.server.expect(uid + 1000, event::DISCONNECTED);
    }
}

#[test]
fn the_end_of_a_file_sends_none_of_the_requests_that_wait() {
    let mut pair = Pair::new();
    for number in 1..=1000 {
        let id = pair.client.create(number, port_space::TCP);
        pair.client.bind(id, &format!("10.0.0.1:{}", 10_000 + number)).unwrap();
        pair.client.resolve(number, id, "10.0.0.2:7471");
        pair.client.connect(id, b"").unwrap();
    }
    assert_eq!(pair.lose(), 256);
    pair.client.manager.close(pair.now, pair.client.file);
    assert_eq!(pair.lose(), 0);
    assert_eq!(pair.client.manager.next(), None);
}
