//! Panics where the lists that hellos look at do not agree with the table of QPs.

use super::Rig;
use crate::engine::peers::connection::Link;
use std::collections::HashMap;

impl Rig {
    /// Panics unless the members of the peers, and the proofs that are expected, are those of the QPs in the table.
    pub fn check(&self) {
        let (table, peers) = (&self.engine.table, &self.engine.peers);
        let mut expected = HashMap::new();
        for index in table.indices() {
            let Some((entry, peer)) = table.get(index).and_then(|entry| Some((entry, entry.peer?))) else { continue };
            let (connection, members) = (&entry.connection, &peers.get(peer).members);
            let nonce = peers.nonce(peer);
            expected.extend(connection.expected(nonce).map(|id| ((peer, id), index)));
            let times = |list: &mut dyn Iterator<Item = u16>| list.filter(|member| *member == index).count();
            let asking = times(&mut members.asking().iter().copied());
            let unconfirmed = times(&mut members.unconfirmed());
            assert_eq!(times(&mut members.all().iter().copied()), 1, "QP {index} is a member once");
            assert!(asking + unconfirmed <= 1, "QP {index} is in one list");
            assert!(asking == 1 || !connection.needs_proof(), "QP {index} still asks");
            let (proven, lacks) = (matches!(connection.link, Link::Weir(_)), connection.may_prove());
            assert!(unconfirmed == 1 || !proven || !lacks, "QP {index}: the peer may lack its proof");
            assert!(unconfirmed == 0 || proven, "QP {index} is not proven");
        }
        for peer in peers.ids() {
            for index in peers.get(peer).members.all() {
                assert_eq!(table.get(*index).and_then(|entry| entry.peer), Some(peer), "QP {index} is bound elsewhere");
            }
        }
        assert_eq!(*self.engine.expected.all(), expected);
    }
}
