//! In which order a peer gets packets: those to one QP as they were sent, all others at any time.

use std::collections::HashMap;
use weir_transport::edge::{Order, Seq};

/// After so many packets, QPs that get none any more are forgotten.
const FORGET_EVERY: u32 = 1 << 16;

/// The latest packet to each QP.
#[derive(Debug, Default)]
pub(super) struct Chains {
    latest: HashMap<u32, Seq>,
    /// Those to the QP of the latest packet.
    current: Option<(u32, Seq)>,
    /// The latest packet that others do not overtake.
    barrier: Option<Seq>,
    packets: u32,
}

impl Chains {
    /// The packet `seq` leaves to a QP: when it may be performed. All before `performed` have been.
    pub fn for_qp(&mut self, qpn: u32, seq: Seq, performed: Seq) -> Order {
        self.packets += 1;
        if self.packets.is_multiple_of(FORGET_EVERY) {
            self.latest.retain(|_, latest| !latest.before(performed));
            self.barrier = self.barrier.filter(|barrier| !barrier.before(performed));
        }
        let before = match &mut self.current {
            Some((current, latest)) if *current == qpn => Some(std::mem::replace(latest, seq)),
            current => {
                if let Some((qpn, latest)) = current.replace((qpn, seq)) {
                    self.latest.insert(qpn, latest);
                }
                self.latest.remove(&qpn)
            }
        };
        let before = [before, self.barrier].into_iter().flatten().filter(|before| !before.before(performed));
        before.reduce(|a, b| if a.before(b) { b } else { a }).map_or(Order::Any, Order::AfterOne)
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
        assert_eq!(chains.for_qp(5, at(0), first), Order::Any);
        assert_eq!(chains.for_qp(6, at(1), first), Order::Any);
        assert_eq!(chains.for_qp(6, at(2), first), Order::AfterOne(at(1)));
        assert_eq!(chains.for_qp(5, at(3), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(5, at(4), at(4)), Order::Any, "the one before has been performed");
    }

    #[test]
    fn nothing_overtakes_a_barrier() {
        let (mut chains, first) = (Chains::default(), Seq(7));
        let at = |n| first.plus(n);
        assert_eq!(chains.barrier(at(0), first), Order::Any);
        assert_eq!(chains.for_qp(5, at(1), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(6, at(2), first), Order::AfterOne(at(0)));
        assert_eq!(chains.for_qp(5, at(3), first), Order::AfterOne(at(1)));
        assert_eq!(chains.barrier(at(4), first), Order::AfterAll(at(3)));
        assert_eq!(chains.for_qp(5, at(5), first), Order::AfterOne(at(4)), "the barrier is after its packet");
    }

    #[test]
    fn a_qp_of_long_ago_is_forgotten() {
        let mut chains = Chains::default();
        chains.for_qp(5, Seq(0), Seq(0));
        for n in 1..=FORGET_EVERY {
            chains.for_qp(6 + n % 2, Seq(n), Seq(n - 1));
        }
        assert!(!chains.latest.contains_key(&5));
    }
}
