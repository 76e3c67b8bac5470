//! In which order a peer gets packets: those to one QP as they were sent, but for those within a message; all others at any
//! time.

use std::collections::HashMap;
use weir_transport::edge::{Order, Seq};

/// After so many packets, QPs that get none any more are forgotten.
const FORGET_EVERY: u32 = 1 << 16;

/// The latest packets to each QP.
#[derive(Debug, Default)]
pub(super) struct Chains {
    latest: HashMap<u32, Latest>,
    /// Those to the QP of the latest packet.
    current: Option<(u32, Latest)>,
    /// The latest packet that others do not overtake.
    barrier: Option<Seq>,
    packets: u32,
}

/// The latest packets to a QP.
#[derive(Clone, Copy, Debug)]
struct Latest {
    /// The latest one that none overtakes, if the peer may not have it.
    kept: Option<Seq>,
    /// The latest of all.
    end: Seq,
}

impl Chains {
    /// The packet `seq` leaves to a QP: when it may be performed. All before `performed` have been. `overtakes`: it and
    /// others like it may overtake each other.
    pub fn for_qp(&mut self, qpn: u32, (seq, overtakes): (Seq, bool), performed: Seq) -> Order {
        self.packets = self.packets.wrapping_add(1);
        if self.packets.is_multiple_of(FORGET_EVERY) {
            self.latest.retain(|_, latest| !latest.end.before(performed));
            self.barrier = self.barrier.filter(|barrier| !barrier.before(performed));
        }
        let is_open = |seq: &Seq| !seq.before(performed);
        let before = match self.current.take() {
            Some((current, latest)) if current == qpn => Some(latest),
            other => {
                if let Some((qpn, latest)) = other {
                    self.latest.insert(qpn, latest);
                }
                self.latest.remove(&qpn)
            }
        };
        let before = before.filter(|before| is_open(&before.end));
        let kept = before.and_then(|before| before.kept).filter(is_open);
        let latest = Latest { kept: if overtakes { kept } else { Some(seq) }, end: seq };
        self.current = Some((qpn, latest));
        // It waits for the latest that none overtakes, and, unless it may overtake them, for all behind that.
        let others = before.filter(|before| !overtakes && before.kept != Some(before.end)).map(|before| before.end);
        let one =
            [kept, self.barrier.filter(is_open)].into_iter().flatten().reduce(|a, b| if a.before(b) { b } else { a });
        match (others, one) {
            (Some(others), Some(one)) if others.before(one) => Order::AfterOne(one),
            (Some(others), _) => Order::AfterAll(others),
            (None, one) => one.map_or(Order::Any, Order::AfterOne),
        }
    }

    /// The same for a packet that overtakes no other, and that no other overtakes.
    pub fn barrier(&mut self, seq: Seq, performed: Seq) -> Order {
        self.barrier = Some(seq);
        if seq == performed { Order::Any } else { Order::AfterAll(seq.minus(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_to_one_qp_follow_each_other() {
        let (mut chains, first) = (Chains::default(), Seq(u32::MAX));
        let at = |n| first.plus(n);
        let kept = |n| (at(n), false);
        assert_eq!(chains.for_qp(5, kept(0), first), Order::Any);
        assert_eq!(chains.for_qp(6, kept(1), first), Order::Any);
        assert_eq!(chains.for_qp(6, kept(2), first), Order::AfterOne(at(1)));
        assert_eq!(chains.for_qp(5, kept(3), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(5, kept(4), at(4)), Order::Any, "the one before has been performed");
    }

    #[test]
    fn packets_within_a_message_overtake_each_other() {
        let (mut chains, first) = (Chains::default(), Seq(u32::MAX));
        let at = |n| first.plus(n);
        let (kept, within) = (|n| (at(n), false), |n| (at(n), true));
        assert_eq!(chains.for_qp(5, kept(0), first), Order::Any);
        assert_eq!(chains.for_qp(5, within(1), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(6, kept(2), first), Order::Any);
        assert_eq!(chains.for_qp(5, within(3), first), Order::AfterOne(at(0)), "and not after 1");
        assert_eq!(chains.for_qp(5, kept(4), first), Order::AfterAll(at(3)), "the last one is after all of them");
        assert_eq!(chains.for_qp(5, kept(5), first), Order::AfterOne(at(4)));
        assert_eq!(chains.for_qp(5, within(6), first), Order::AfterOne(at(5)));
        assert_eq!(chains.for_qp(5, within(7), at(6)), Order::Any, "5 has been performed");
        assert_eq!(chains.for_qp(5, kept(8), at(6)), Order::AfterAll(at(7)));
        assert_eq!(chains.for_qp(5, within(9), at(9)), Order::Any);
        assert_eq!(chains.for_qp(5, kept(10), at(10)), Order::Any, "all have been performed");
    }

    #[test]
    fn nothing_overtakes_a_barrier() {
        let (mut chains, first) = (Chains::default(), Seq(7));
        let at = |n| first.plus(n);
        let kept = |n| (at(n), false);
        assert_eq!(chains.barrier(at(0), first), Order::Any);
        assert_eq!(chains.for_qp(5, kept(1), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(6, kept(2), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(5, kept(3), first), Order::AfterOne(at(1)));
        assert_eq!(chains.barrier(at(4), first), Order::AfterAll(at(3)));
        assert_eq!(chains.for_qp(5, kept(5), first), Order::AfterOne(at(4)), "the barrier is after its packet");
        assert_eq!(chains.for_qp(5, (at(6), true), first), Order::AfterOne(at(5)));
        assert_eq!(chains.barrier(at(7), first), Order::AfterAll(at(6)));
        assert_eq!(chains.for_qp(5, (at(8), true), first), Order::AfterOne(at(7)));
        assert_eq!(chains.for_qp(5, kept(9), first), Order::AfterAll(at(8)), "which is after the barrier");
        assert_eq!(chains.for_qp(6, (at(10), true), first), Order::AfterOne(at(7)));
        assert_eq!(chains.barrier(at(11), first), Order::AfterAll(at(10)));
        assert_eq!(chains.for_qp(6, kept(12), first), Order::AfterOne(at(11)), "and so after 10");
    }

    #[test]
    fn a_qp_of_long_ago_is_forgotten() {
        let mut chains = Chains::default();
        chains.for_qp(5, (Seq(0), false), Seq(0));
        for n in 1..=FORGET_EVERY {
            chains.for_qp(6 + n % 2, (Seq(n), false), Seq(n - 1));
        }
        assert!(!chains.latest.contains_key(&5));
    }
}
