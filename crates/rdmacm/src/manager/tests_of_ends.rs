//! The end of the process, of devices, and of its descriptors.

use super::testing::*;
use super::*;
use crate::abi::*;
use std::time::Duration;

#[test]
fn a_process_that_ends_tells_some_peers_at_a_time() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 200).unwrap();
    let count = 2 * end::BATCH + 10;
    pair.wire.lock().unwrap().more_ports = count as u16;
    for uid in 0..count as u64 {
        pair.connected(1, 10 + uid, 7471);
    }
    let sent = |pair: &Pair| pair.wire.lock().unwrap().mads.len();
    let now = pair.now;
    assert!(pair.client.manager.end(now) > Some(now));
    assert!(pair.client.manager.end(now).is_some());
    assert_eq!(sent(&pair), end::BATCH, "the others wait for the answers");
    pair.deliver();
    for _ in 0..end::BATCH {
        let ended = pair.server.event().expect("an event");
        assert_eq!(ended.event, event::DISCONNECTED);
        pair.server.run(command::DISCONNECT, Disconnect { id: ended.id }).unwrap();
    }
    pair.deliver();
    assert_eq!(pair.client.manager.end(now), Some(now + end::PATIENCE));
    // Answers that do not come do not hold it up for long.
    pair.wire.lock().unwrap().mads.clear();
    assert!(pair.client.manager.end(now).is_some() && sent(&pair) == 0);
    assert_eq!(pair.client.manager.end(now + end::PATIENCE), None);
    assert_eq!(sent(&pair), 10);
}

/// The rejected and the disconnected send no MAD any more.
#[test]
fn live_peers_do_not_wait_behind_finished_ids() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    pair.wire.lock().unwrap().more_ports = 2000;
    for uid in 2000..2990 {
        let id = pair.client.create(uid, port_space::TCP);
        pair.client.resolve(uid, id, "10.0.0.2:9");
        pair.client.connect(id, b"").unwrap();
        pair.deliver();
        pair.client.expect(uid, event::REJECTED);
    }
    for uid in 10..20 {
        let (active, _) = pair.connected(1, uid, 7471);
        pair.client.run(command::DISCONNECT, Disconnect { id: active }).unwrap();
        pair.lose();
    }
    pair.connected(1, 20, 7471);
    let now = pair.now;
    assert_eq!(pair.client.manager.end(now), None, "a single call");
    pair.deliver();
    let ended: Vec<_> = std::iter::from_fn(|| pair.server.event()).map(|event| (event.uid, event.event)).collect();
    assert_eq!(ended, [(1020, event::DISCONNECTED)]);
}

#[test]
fn a_process_that_ends_waits_only_for_answers_that_come() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 200).unwrap();
    pair.wire.lock().unwrap().more_ports = 400;
    for uid in 0..end::BATCH as u64 {
        let id = pair.client.create(uid + 1, port_space::TCP);
        pair.client.resolve(uid + 1, id, "10.0.0.2:7471");
        pair.client.connect(id, b"").unwrap();
    }
    let request = pair.wire.lock().unwrap().mads[0];
    pair.lose();
    for uid in 100..101 + end::BATCH as u64 {
        pair.connected(1, uid, 7471);
    }
    let now = pair.now;
    let later = now + end::PAUSE;
    assert_eq!(pair.client.manager.end(now), Some(later), "rejections have no answer");
    assert_eq!(pair.client.manager.end(later), Some(later + end::PATIENCE));
    let unlike = vec![request; end::BATCH];
    pair.client.manager.arrived(later, &unlike);
    assert_eq!(pair.client.manager.end(later), Some(later + end::PATIENCE), "no answers");
    assert_eq!(pair.client.manager.end(later + end::PATIENCE), None);
}

#[test]
fn the_ids_of_a_device_that_goes_away_learn_it_and_end() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    let bound = pair.server.create(2, port_space::TCP);
    pair.server.listen(bound, "10.0.0.2:7472", 0).unwrap();
    let (active, _) = pair.connected(1, 10, 7471);
    let other = pair.client.create(11, port_space::TCP);
    pair.client.manager.devices_removed(pair.now, &["weir_other".into()]);
    assert!(pair.client.event().is_none());
    pair.client.manager.devices_removed(pair.now, &["weir_t0".into()]);
    pair.client.expect(10, event::DEVICE_REMOVAL);
    assert!(pair.client.event().is_none(), "an id that is bound to no device goes on");
    assert_eq!(pair.client.run(command::DISCONNECT, Disconnect { id: active }), Err(Errno(libc::ENXIO)));
    assert_eq!(pair.client.destroy(active), 4, "it can be destroyed, and all its events were reported");
    pair.client.destroy(other);
    // A listener on all addresses goes on, and the connection is over at the peer.
    pair.server.manager.devices_removed(pair.now, &["weir_t0".into()]);
    pair.server.expect(2, event::DEVICE_REMOVAL);
    pair.server.expect(1010, event::DEVICE_REMOVAL);
    assert!(pair.server.event().is_none());
    assert_eq!(pair.server.manager.ids.get(listener).map(|id| id.state), Some(State::Listen));
    let again = pair.server.create(3, port_space::TCP);
    pair.server.listen(again, "10.0.0.2:7472", 0).unwrap();
}

#[test]
fn a_listener_on_all_addresses_hears_again_when_a_device_comes_back() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    let hears = |pair: &Pair| pair.wire.lock().unwrap().ready.contains(&pair.server.address);
    let gone = |pair: &mut Pair, no_device: bool| {
        pair.wire.lock().unwrap().ready.clear();
        pair.wire.lock().unwrap().no_device = no_device;
        pair.server.manager.devices_removed(pair.now, &["weir_t0".into()]);
    };
    gone(&mut pair, false);
    assert!(hears(&pair), "another device is open at once");
    gone(&mut pair, true);
    pair.pass(10);
    assert!(!hears(&pair) && pair.server.manager.next().is_some());
    pair.wire.lock().unwrap().no_device = false;
    pair.pass(2);
    assert!(hears(&pair));
    assert_eq!(pair.server.manager.next(), None, "nothing is looked for any more");
    gone(&mut pair, true);
    pair.server.destroy(listener);
    pair.pass(2);
    assert_eq!(pair.server.manager.next(), None, "no id waits for requests");
}

/// The adapter fails when the process sends by it, and nothing else tells of that.
#[test]
fn the_ids_of_a_device_that_fails_learn_it() {
    let mut pair = Pair::new();
    let bound = pair.client.create(2, port_space::TCP);
    pair.client.bind(bound, "10.0.0.1:7472").unwrap();
    assert_eq!(pair.client.manager.next(), None);
    pair.wire.lock().unwrap().failed.push("weir_t0".into());
    assert_eq!(pair.client.manager.next(), Some(pair.now), "the agent wakes at once");
    pair.client.manager.tick(pair.now);
    pair.client.expect(2, event::DEVICE_REMOVAL);
    assert_eq!(pair.client.manager.next(), None);
}

#[test]
fn without_free_descriptors_calls_are_emfile_and_requests_come_again() {
    let mut pair = Pair::new();
    for (uid, space) in [(1, port_space::TCP), (2, port_space::UDP)] {
        let listener = pair.server.create(uid, space);
        pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
        let id = pair.client.create(uid, space);
        pair.client.resolve(uid, id, "10.0.0.2:7471");
        pair.wire.lock().unwrap().full = Some(pair.server.address);
        pair.client.connect(id, b"").unwrap();
        pair.deliver();
        assert!(pair.server.event().is_none() && pair.client.event().is_none(), "the request is not refused");
        pair.wire.lock().unwrap().full = None;
        pair.pass(10);
        pair.server.expect(uid, event::CONNECT_REQUEST);
    }

    pair.wire.lock().unwrap().full = Some(pair.client.address);
    let full = Err(Errno(libc::EMFILE));
    let id = pair.client.create(3, port_space::TCP);
    assert_eq!(pair.client.bind(id, "10.0.0.1:0"), full);
    let mut command = ResolveIp { id, timeout_ms: 2000, ..ResolveIp::default() };
    for to in ["10.0.0.2:7471", "127.0.0.1:7471"] {
        crate::address::write(Some(to.parse().unwrap()), &mut command.destination);
        assert_eq!(pair.client.run(command::RESOLVE_IP, command), full, "{to}");
    }
    pair.wire.lock().unwrap().full = None;
    pair.client.run(command::RESOLVE_IP, command).unwrap();
    pair.client.expect(3, event::ADDR_RESOLVED);
}

#[test]
fn a_killed_process_of_this_host_ends_its_connections() {
    let mut pair = Pair::new();
    pair.wire.lock().unwrap().one_host = Some([1, 2].into());
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    let (_, passive) = pair.connected(1, 10, 7471);
    pair.pass(10);
    assert_eq!(pair.server.event().map(|event| event.event), None);
    // The client asks for another connection, and is gone before the program of the server answers.
    let asking = pair.client.create(11, port_space::TCP);
    pair.client.resolve(11, asking, "10.0.0.2:7471");
    pair.client.connect(asking, b"").unwrap();
    pair.deliver();
    let request = pair.server.expect(1, event::CONNECT_REQUEST).id;
    let accept = Accept { uid: 12, id: request, parameters: parameters(0x2000, b""), ..Accept::default() };
    pair.server.run(command::ACCEPT, accept).unwrap();
    pair.lose();
    pair.wire.lock().unwrap().one_host = Some([2].into());
    let now = Instant(pair.now.0 + vanished::LOOK.as_nanos() as u64);
    pair.server.manager.tick(now);
    assert_eq!(pair.server.event().map(|event| event.event), None, "its last messages may be on their way");
    let now = Instant(now.0 + vanished::LOOK_AGAIN.as_nanos() as u64);
    pair.server.manager.tick(now);
    let mut ended: Vec<_> = std::iter::from_fn(|| pair.server.event()).map(|event| (event.uid, event.event)).collect();
    ended.sort_unstable();
    assert_eq!(ended, [(12, event::REJECTED), (1010, event::DISCONNECTED)]);
    pair.server.run(command::DISCONNECT, Disconnect { id: passive }).unwrap();
    pair.server.manager.tick(Instant(now.0 + vanished::LOOK.as_nanos() as u64));
    assert_eq!(pair.server.manager.peers_at, None, "no peer is left");
}

#[test]
fn processes_of_other_hosts_are_looked_for_seldom() {
    let mut pair = Pair::new();
    let listener = pair.server.create(1, port_space::TCP);
    pair.server.listen(listener, "0.0.0.0:7471", 0).unwrap();
    pair.connected(1, 10, 7471);
    let after = |now: Instant, time: Duration| Instant(now.0 + time.as_nanos() as u64);
    // An address of this host may be missing for a moment: then its processes count as those of another host.
    let now = after(pair.now, vanished::LOOK);
    pair.server.manager.tick(now);
    assert_eq!(pair.server.manager.peers_at, Some(after(now, vanished::LOOK_SELDOM)));
    assert_eq!(pair.server.event().map(|event| event.event), None);
    // The address is back, and the client gone.
    pair.wire.lock().unwrap().one_host = Some([2].into());
    let now = after(now, vanished::LOOK_SELDOM);
    pair.server.manager.tick(now);
    pair.server.manager.tick(after(now, vanished::LOOK_AGAIN));
    assert_eq!(pair.server.event().map(|event| event.event), Some(event::DISCONNECTED));
}
