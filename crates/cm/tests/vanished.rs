//! A killed peer: the connection ends as if its adapter's driver had said so.

use weir_cm::testing::Pair;
use weir_cm::{ConnectionId, Event, RejectReason};

/// The peer of this process vanishes; returns the event.
fn vanished(pair: &mut Pair, process: usize, id: ConnectionId) -> Event {
    pair.events.iter_mut().for_each(|events| events.clear());
    let cm = &mut pair.cms[process];
    assert_eq!(cm.peers().map(|(id, ..)| id).collect::<Vec<_>>(), [id]);
    cm.peer_vanished(pair.now, id);
    assert_eq!(cm.peers().count(), 0, "its peer is not expected to say anything");
    cm.check();
    let event = cm.poll_event().expect("an event");
    assert!(cm.poll_event().is_none() && cm.poll_transmit().is_none());
    event
}

#[test]
fn an_established_connection_is_disconnected() {
    for process in [0, 1] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.connected((1, 2));
        let ids = [active, passive];
        let peers: Vec<u32> = pair.cms[process].peers().map(|(.., id)| id).collect();
        assert_eq!(peers, [ids[1 - process].0]);
        let event = vanished(&mut pair, process, ids[process]);
        assert!(matches!(event, Event::DisconnectRequest { id, .. } if id == ids[process]), "{event:?}");
        // It happens once.
        pair.cms[process].peer_vanished(pair.now, ids[process]);
        assert!(pair.cms[process].poll_event().is_none());
        pair.cms[process].disconnect(pair.now, ids[process], &[]).unwrap();
    }
}

#[test]
fn a_connection_that_is_set_up_is_rejected() {
    let mut pair = Pair::quiet();
    let (_, passive) = pair.requested(1);
    let mut events = vec![(passive, vanished(&mut pair, 1, passive))];
    for process in [0, 1] {
        let mut pair = Pair::quiet();
        let (active, passive) = pair.replied((1, 2));
        let id = [active, passive][process];
        events.push((id, vanished(&mut pair, process, id)));
    }
    for (id, event) in events {
        let Event::Rejected { id: of, reason, .. } = event else { panic!("{event:?}") };
        assert_eq!((of, reason), (id, RejectReason::CONSUMER));
    }
}

#[test]
fn without_an_answer_the_peer_is_unknown() {
    let mut pair = Pair::quiet();
    let (active, _) = pair.requested(1);
    assert_eq!(pair.cms[0].peers().count(), 0);
    pair.cms[0].peer_vanished(pair.now, active);
    assert!(pair.cms[0].poll_event().is_none());
}
