//! The connection of a QP: the destination of its packets, and the proof that the right process is there.

use crate::engine::peers::proof::{Demand, PairKey, Proof};
use crate::slot::{is_used, slot_of};
use std::time::Duration;
use weir_transport::{Instant, Psn};

/// The destination of a QP's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The process at the slot's port has not yet proven that it owns the QP.
    Asking { since: Instant, tries: u32 },
    /// It has proven that.
    Weir(Demand),
    /// It has not proven that in time: the packets go to port 4791.
    Foreign,
}

/// The number of hellos, and the time, after which an unproven peer is treated as a foreign adapter. The time is
/// longer if a Weir process answers, which may not have connected its QP yet.
pub const TRIES: u32 = weir_transport::attempts::TRIES;
const SILENT: Duration = Duration::from_millis(60);
const UNPROVEN: Duration = Duration::from_millis(400);

/// A connected QP's link and proofs.
#[derive(Debug)]
pub struct Connection {
    pub link: Link,
    /// The tag that packets to this QP carry in place of an omitted ICRC.
    pub tag: u32,
    /// A packet came that only the proven peer sends: it has this process's proof, and no more proofs of this QP are
    /// sent.
    confirmed: bool,
    /// The QP was reset, and goes on with the proofs from before. Its peer may have begun anew, or may do so: both prove
    /// themselves again whenever they are asked, whatever packets come.
    resumed: bool,
    /// A packet of a foreign adapter came: the peer stays foreign, and no proof changes that.
    stays_foreign: bool,
    own: u32,
    dest: u32,
    /// The first PSN from the peer, and the first PSN to it.
    first_psns: [Option<Psn>; 2],
    /// How often the QP was connected.
    pub count: u64,
}

impl Connection {
    /// The connection of the QP `own`, which is not connected yet.
    pub fn new(own: u32) -> Connection {
        let link = Link::Foreign;
        Connection {
            link,
            tag: 0,
            confirmed: false,
            resumed: false,
            stays_foreign: false,
            own,
            dest: 0,
            first_psns: [None; 2],
            count: 0,
        }
    }

    /// The QP is connected to the QP `dest`; `rq_psn` is the PSN of the peer's first packet. Packets to the QP must
    /// carry `tag`.
    pub fn begin(&mut self, dest: u32, rq_psn: Psn, tag: u32) {
        (self.dest, self.tag) = (dest, tag);
        self.first_psns = [Some(rq_psn), None];
        self.resumed = false;
    }

    /// The QP is connected again, after RESET. True: to the same peer with the same first PSN from it, so the proof of the
    /// peer still holds. If the peer's QP was reset, too, it gets a proof when it asks, and its own new proof counts.
    pub fn resume(&mut self, dest: u32, rq_psn: Psn) -> bool {
        let same = self.dest == dest && self.first_psns[0] == Some(rq_psn) && matches!(self.link, Link::Weir(_));
        if same {
            self.first_psns[1] = None;
            (self.confirmed, self.resumed, self.stays_foreign) = (false, true, false);
        }
        same
    }

    /// The peer must prove itself, or prove itself again.
    pub fn ask(&mut self, now: Instant) {
        self.link = Link::Asking { since: now, tries: 0 };
        (self.confirmed, self.stays_foreign) = (false, false);
    }

    /// An undamaged packet came for the QP, by slot ports or by port 4791. `tagged`: it carries the tag. Returns whether
    /// the peer stays foreign since this packet.
    #[inline]
    pub fn note_packet(&mut self, by_slots: bool, from_slot: bool, tagged: bool) -> bool {
        match self.link {
            _ if self.confirmed => {}
            // The peer sends by slot ports only when it has this process's proof.
            Link::Weir(_) => self.confirmed |= by_slots,
            // It has the proof, but this process may lack its own.
            _ if tagged => self.confirmed = true,
            // A Weir process always sends from its slot's port.
            Link::Foreign if !from_slot => return !std::mem::replace(&mut self.stays_foreign, true),
            Link::Foreign | Link::Asking { .. } => {}
        }
        false
    }

    /// Returns whether the peer counts as a foreign adapter, and no packet of one has come.
    pub fn is_unheard(&self) -> bool {
        self.link == Link::Foreign && !self.stays_foreign
    }

    /// Returns whether a proof of the peer would change the link.
    pub fn needs_proof(&self) -> bool {
        match self.link {
            Link::Asking { .. } => true,
            Link::Foreign => !self.stays_foreign && is_used(slot_of(self.dest)),
            Link::Weir(_) => false,
        }
    }

    /// Returns whether the peer may still be in an earlier connection and hold the proof of that one.
    pub fn is_unconfirmed(&self) -> bool {
        self.resumed || !self.confirmed
    }

    /// Returns whether the peer may lack this process's proof.
    pub fn may_prove(&self) -> bool {
        self.is_unconfirmed() && !self.stays_foreign
    }

    /// The QP will send, and its first PSN is `sq_psn`.
    pub fn send_from(&mut self, sq_psn: Psn) {
        self.first_psns[1] = Some(sq_psn);
    }

    /// The proof that this process owns the QP, for an asker's nonce. `None` when the peer has shown that it has the
    /// proof, and before a PSN is set.
    pub fn prove(&self, nonce: u64, incarnation: u64) -> Option<Proof> {
        if !self.may_prove() {
            return None;
        }
        // A connected peer has the first PSN from here; it has the other PSN only if it sends itself.
        let [incoming, outgoing] = self.keys();
        let key = outgoing.or(incoming)?;
        Some(key.prove(self.own, nonce, Demand { tag: self.tag, incarnation }))
    }

    /// What a proof demands, if it is the peer's.
    pub fn verify(&self, nonce: u64, proof: Proof) -> Option<Demand> {
        self.keys().into_iter().flatten().find_map(|key| key.open(self.dest, nonce, proof))
    }

    /// The IDs of the proofs by which the peer can prove itself.
    pub fn expected(&self, nonce: u64) -> impl Iterator<Item = u64> + use<> {
        let dest = self.dest;
        self.keys().into_iter().flatten().map(move |key| key.expected(dest, nonce))
    }

    /// A hello was sent; `answers`: a process answers, but has proven nothing. Returns whether that makes the peer
    /// foreign.
    pub fn asked(&mut self, now: Instant, answers: bool) -> bool {
        let Link::Asking { since, tries } = &mut self.link else { return false };
        *tries += 1;
        let foreign = *tries > TRIES && now - *since >= if answers { UNPROVEN } else { SILENT };
        if foreign {
            self.link = Link::Foreign;
        }
        foreign
    }

    /// The keys of both directions, if their PSNs are known.
    fn keys(&self) -> [Option<PairKey>; 2] {
        let [incoming, outgoing] = self.first_psns;
        [
            incoming.map(|psn| PairKey::new(self.dest, self.own, psn.get())),
            outgoing.map(|psn| PairKey::new(self.own, self.dest, psn.get())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(own: u32, dest: u32, rq_psn: u32, sq_psn: Option<u32>) -> Connection {
        let mut connection = Connection::new(own);
        connection.begin(dest, Psn::new(rq_psn), own + 1000);
        if let Some(psn) = sq_psn {
            connection.send_from(Psn::new(psn));
        }
        connection
    }

    #[test]
    fn both_sides_prove_themselves_whatever_their_states() {
        // Both send; only one sends, and the other is in RTR.
        for (a, b) in [(Some(7), Some(8)), (Some(7), None), (None, Some(8))] {
            let (a, b) = (connected(1, 2, 8, a), connected(2, 1, 7, b));
            for (prover, verifier) in [(&a, &b), (&b, &a)] {
                let proof = prover.prove(5, 99).expect("a PSN is known");
                let demand = Some(Demand { tag: prover.tag, incarnation: 99 });
                assert_eq!(verifier.verify(5, proof), demand);
                assert_eq!(verifier.verify(6, proof), None, "another nonce");
                assert_eq!(prover.verify(5, proof), None, "its own proof comes back");
            }
        }
        let other = connected(2, 1, 9, Some(8));
        assert_eq!(
            connected(1, 2, 8, Some(7)).verify(5, other.prove(5, 99).unwrap()),
            Some(Demand { tag: 1002, incarnation: 99 }),
            "one PSN is enough"
        );
        let other = connected(2, 1, 9, Some(9));
        assert_eq!(connected(1, 2, 8, Some(7)).verify(5, other.prove(5, 99).unwrap()), None, "other PSNs");
    }

    #[test]
    fn a_confirmed_peer_gets_no_more_proofs() {
        let mut connection = connected(1, 2, 8, Some(7));
        connection.ask(Instant(0));
        connection.note_packet(true, true, true);
        assert_eq!(connection.prove(5, 99), None);
    }

    #[test]
    fn a_peer_that_sent_as_a_foreign_adapter_stays_foreign() {
        let mut connection = connected(1, 5 << 14, 8, Some(7));
        connection.ask(Instant(0));
        assert!(!connection.note_packet(false, false, false) && connection.needs_proof(), "it is still asked");
        connection.link = Link::Foreign;
        assert!(!connection.note_packet(false, true, false));
        assert!(connection.needs_proof() && connection.prove(5, 99).is_some(), "a Weir process without our proof");
        assert!(connection.note_packet(false, false, false) && !connection.note_packet(false, false, false));
        assert!(!connection.needs_proof() && connection.prove(5, 99).is_none());
    }

    #[test]
    fn a_peer_is_foreign_after_tries_and_time() {
        let mut connection = connected(1, 2, 8, Some(7));
        connection.link = Link::Asking { since: Instant(0), tries: 0 };
        let ms = |n: u64| Instant(n * 1_000_000);
        assert!((0..20).all(|n| !connection.asked(ms(n), false)), "too early");
        assert!(connection.asked(ms(60), false));
        assert_eq!(connection.link, Link::Foreign);
        connection.link = Link::Asking { since: Instant(0), tries: 0 };
        assert!((0..20).all(|n| !connection.asked(ms(n * 10 + 10), true)), "a process answers");
        assert!(connection.asked(ms(400), true));
        connection.link = Link::Asking { since: Instant(0), tries: 0 };
        assert!((0..6).all(|n| !connection.asked(ms(500 + n), true)), "too few tries");
    }
}
