//! Thousands of connections of one process.

use std::time::Duration;
use weir_cm::testing::{Pair, address, reply, request};
use weir_cm::{Address, Cm, Config, Event, RejectReason};
use weir_transport::Instant;
use weir_wire::cm::Message;

const MANY: u32 = 10_000;
/// Requests under way to one host.
const UNDER_WAY: usize = 256;

#[test]
fn ten_thousand_connections_are_set_up_at_once_and_end() {
    let mut pair = Pair::quiet();
    let start = pair.now;
    for qpn in 0..MANY {
        pair.cms[0].connect(pair.now, &address(0), &request(qpn)).unwrap();
    }
    let (mut active, mut passive, mut requests) = (Vec::new(), Vec::new(), 0);
    while passive.len() < MANY as usize {
        assert!(pair.step(start + Duration::from_secs(60)), "{} of {MANY}", passive.len());
        let mut under_way = 0;
        while let Some(event) = pair.events[1].pop_front() {
            match event {
                Event::Request { id, request, .. } => {
                    (requests, under_way) = (requests + 1, under_way + 1);
                    pair.cms[1].accept(pair.now, id, &reply(request.qpn + MANY)).unwrap();
                }
                Event::Established { id, .. } => passive.push(id),
                event => panic!("{event:?}"),
            }
        }
        assert!(under_way <= UNDER_WAY);
        while let Some(event) = pair.events[0].pop_front() {
            let Event::Reply { id, .. } = event else { panic!("{event:?}") };
            pair.cms[0].ready(id, &[]).unwrap();
            active.push(id);
        }
    }
    assert_eq!((active.len(), requests, pair.sent.len()), (MANY as usize, MANY as usize, 3 * MANY as usize));
    assert!(pair.now - start < Duration::from_secs(1), "no request is lost and repeated");
    active.iter().for_each(|id| pair.cms[0].forget(pair.now, *id));
    passive.iter().for_each(|id| pair.cms[1].forget(pair.now, *id));
    pair.run(Duration::from_secs(300));
    assert!(pair.cms.iter().all(Cm::is_empty));
}

/// The QPNs in the requests that a process has sent since the last call.
fn sent(cm: &mut Cm) -> Vec<u32> {
    let sent = std::iter::from_fn(|| cm.poll_transmit());
    sent.filter_map(|(_, mad)| match Message::parse(&mad) {
        Ok((_, Message::Req(req))) => Some(req.qpn),
        _ => None,
    })
    .collect()
}

#[test]
fn a_silent_host_delays_requests_to_it_for_half_a_second_each_and_no_others() {
    let mut cm = Cm::new(Config { id_prefix: 1 << 20, id_bits: 20, ..Config::default() });
    let silent = address(0);
    let other = Address { remote: "10.0.0.3".parse().unwrap(), ..silent };
    let ids: Vec<_> = (0..1000).map(|qpn| cm.connect(Instant(0), &silent, &request(qpn)).unwrap()).collect();
    assert_eq!(sent(&mut cm), (0..256).collect::<Vec<_>>());
    cm.connect(Instant(0), &other, &request(5000)).unwrap();
    assert_eq!(sent(&mut cm), [5000]);
    // One that waits is rejected, another forgotten: nothing is said of them.
    cm.reject(Instant(0), ids[300], RejectReason::CONSUMER, &[], &[]).unwrap();
    cm.forget(Instant(0), ids[301]);
    assert_eq!(cm.poll_transmit(), None);
    cm.check();
    let next = cm.poll_timeout().unwrap();
    assert_eq!(next, Instant(0) + Duration::from_millis(500));
    cm.handle_timeout(next);
    assert_eq!(sent(&mut cm), (256..300).chain(302..514).collect::<Vec<_>>());
    // One that ends makes room for one.
    cm.forget(next, ids[256]);
    assert_eq!(sent(&mut cm), [514]);
    // Each is repeated from its own first time on.
    let repeated = loop {
        let now = cm.poll_timeout().unwrap();
        cm.handle_timeout(now);
        let sent = sent(&mut cm);
        if sent.contains(&0) {
            break now;
        }
        assert!(sent.iter().all(|qpn| *qpn > 514), "{sent:?}");
    };
    assert!(repeated > Instant(0) + Duration::from_secs(4));
}

#[test]
fn connections_that_are_forgotten_together_do_not_make_room_for_each_other() {
    let mut cm = Cm::new(Config { id_prefix: 1 << 20, id_bits: 20, ..Config::default() });
    let connect =
        |cm: &mut Cm| (0..1000).map(|qpn| cm.connect(Instant(0), &address(0), &request(qpn)).unwrap()).collect();
    let ids: Vec<_> = connect(&mut cm);
    assert_eq!(sent(&mut cm).len(), UNDER_WAY);
    for id in &ids[..300] {
        cm.forget(Instant(1), *id);
        cm.check();
    }
    assert_eq!(sent(&mut cm), (300..556).collect::<Vec<_>>());
    ids[300..].iter().for_each(|id| cm.forget(Instant(2), *id));
    assert!(sent(&mut cm).is_empty());
    cm.check();
    assert!(cm.is_empty() && cm.poll_timeout().is_none());
    // Nothing is left of them: others have their places.
    connect(&mut cm);
    assert_eq!(sent(&mut cm).len(), UNDER_WAY);
}
