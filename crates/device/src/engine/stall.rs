//! What a capture with a history is written for, apart from QPs that fail: requests that have been without a response
//! for longer than they should.

use crate::engine::Engine;
use crate::os::clock;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use weir_transport::{Qp, Retransmissions};
use weir_wire::Psn;

/// A request that is repeated after so long a time without a response has stalled. Losses are repaired sooner, and
/// usual RNR waits are shorter. An ACK timeout is a stall however short it is.
const STALL: Duration = Duration::from_millis(10);

/// A request that has stalled.
struct Stall {
    num: u32,
    dest: u32,
    peer: Option<IpAddr>,
    cause: Cause,
    psn: Psn,
    /// The time without a response, the RNR wait that begins included.
    lasts: Duration,
}

enum Cause {
    AckTimeout,
    ReceiverNotReady,
    Loss,
}

impl Engine {
    /// A QP goes back: the capture learns it if its request has stalled.
    #[cold]
    pub(super) fn mark_stall(&mut self, index: u16, protocol: &Qp, before: Retransmissions, after: Retransmissions) {
        let (Some(entry), Some(oldest)) = (self.table.get(index), protocol.unanswered()) else { return };
        let lasts = oldest.until.unwrap_or_else(clock::now) - oldest.since;
        let cause = if after.ack_timeouts != before.ack_timeouts {
            Cause::AckTimeout
        } else if after.rnr_naks != before.rnr_naks {
            Cause::ReceiverNotReady
        } else {
            Cause::Loss
        };
        if lasts < STALL && !matches!(cause, Cause::AckTimeout) {
            return;
        }
        let peer = entry.peer.map(|peer| self.peers.get(peer).route.remote);
        let (num, dest) = (entry.shared.num, protocol.attr().dest_qp_num);
        self.carrier.mark(&Stall { num, dest, peer, cause, psn: oldest.psn, lasts });
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#08x} stalls: its request to QP {:#08x}", self.num, self.dest)?;
        if let Some(peer) = self.peer {
            write!(f, " at {peer}")?;
        }
        let ms = self.lasts.as_secs_f64() * 1e3;
        write!(f, ", PSN {:?}, ", self.psn)?;
        match self.cause {
            Cause::AckTimeout => write!(f, "had no response for {ms:.1} ms (ACK timeout)"),
            Cause::ReceiverNotReady => write!(f, "is repeated {ms:.1} ms after it was sent (RNR NAK)"),
            Cause::Loss => write!(f, "had no response for {ms:.1} ms (lost packets)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Icrc;
    use crate::engine::testing::{Rig, connected, exchange, exchange_some};
    use std::time::Instant;
    use weir_transport::{Access, AttrMask, Data, QpAttr, QpState, SendOp, Service};
    use weir_wire::RnrTimer;

    fn rigs() -> (Rig, Rig) {
        (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto))
    }

    fn marks(rig: &Rig) -> Vec<String> {
        std::mem::take(&mut rig.wire().marks)
    }

    /// Exchanges packets until there is a mark.
    fn wait_for_mark(here: &mut Rig, there: &mut Rig) -> String {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            exchange(here, there);
            if let Some(mark) = marks(here).pop() {
                return mark;
            }
            assert!(Instant::now() < until, "there is no mark");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_ack_timeout_is_a_stall() {
        let (mut here, mut there) = rigs();
        let qps = connected(&mut here, &mut there, Service::Rc);
        there.post_recv(&qps[1], 1, &[]);
        // 1 ms. The attribute can be changed while the send queue is drained.
        let attr = QpAttr { timeout: 8, ..QpAttr::default() };
        for (state, mask) in
            [(QpState::Sqd, AttrMask::empty()), (QpState::Sqd, AttrMask::TIMEOUT), (QpState::Rts, AttrMask::empty())]
        {
            here.modify(&qps[0], state, &attr, mask);
        }
        here.post_send(&qps[0], 1, SendOp::Send, Data::Inline(&[]));
        let mut lost = 0;
        exchange_some(&mut here, &mut there, |port, _| {
            let is_first = port == crate::slot::FIRST_PORT + 5 && lost == 0;
            lost += u32::from(is_first);
            !is_first
        });
        assert_eq!(lost, 1);
        let mark = wait_for_mark(&mut here, &mut there);
        let (num, dest) = (qps[0].num, qps[1].num);
        let start = format!("QP {num:#08x} stalls: its request to QP {dest:#08x} at 10.0.0.6, PSN 0x");
        assert!(mark.starts_with(&start) && mark.ends_with("ms (ACK timeout)"), "{mark}");
        assert_eq!(marks(&there), Vec::<String>::new(), "the other side sees no stall");
    }

    /// Posts a send for which the peer has no receive, and asks for this RNR timer.
    fn not_ready(timer: RnrTimer) -> (Rig, Rig) {
        let (mut here, mut there) = rigs();
        let qps = connected(&mut here, &mut there, Service::Rc);
        there.modify(
            &qps[1],
            QpState::Rts,
            &QpAttr { min_rnr_timer: timer, ..QpAttr::default() },
            AttrMask::MIN_RNR_TIMER,
        );
        here.post_send(&qps[0], 1, SendOp::Send, Data::Inline(&[]));
        exchange(&mut here, &mut there);
        (here, there)
    }

    #[test]
    fn a_long_rnr_wait_is_a_stall_and_a_short_one_is_not() {
        // 655.36 ms and 0.01 ms.
        let (here, _) = not_ready(RnrTimer::new(0));
        let mark = marks(&here).pop().expect("a mark");
        assert!(mark.ends_with("ms after it was sent (RNR NAK)"), "{mark}");
        let after = mark.split("is repeated ").nth(1).and_then(|text| text.split(' ').next()).map(str::parse::<f64>);
        assert!(after.is_some_and(|ms| ms.is_ok_and(|ms| (655.0..5000.0).contains(&ms))), "{mark}");
        let begun = std::time::Instant::now();
        let (mut here, mut there) = not_ready(RnrTimer::new(1));
        let seen = marks(&here);
        // A thread that was off its core for that long has really waited.
        assert!(seen.is_empty() || begun.elapsed() >= Duration::from_millis(10), "{seen:?}");
        // Many short waits become a long one.
        let mark = wait_for_mark(&mut here, &mut there);
        assert!(mark.ends_with("ms after it was sent (RNR NAK)"), "{mark}");
    }

    #[test]
    fn a_qp_that_fails_is_marked() {
        let (mut here, mut there) = rigs();
        let qps = connected(&mut here, &mut there, Service::Rc);
        let rights = QpAttr { access_flags: Access::empty(), ..QpAttr::default() };
        there.modify(&qps[1], QpState::Rts, &rights, AttrMask::ACCESS_FLAGS);
        here.post_send(&qps[0], 1, SendOp::Write { remote_addr: 4096, rkey: 77 }, Data::Inline(&[1]));
        exchange(&mut here, &mut there);
        for (rig, text) in [(&here, "its request to QP"), (&there, "it refused a request of QP")] {
            let mark = marks(rig).pop().expect("a mark");
            assert!(mark.contains("is in the error state") && mark.contains(text), "{mark}");
        }
    }

    #[test]
    fn requests_that_are_answered_leave_no_mark() {
        let (mut here, mut there) = rigs();
        let qps = connected(&mut here, &mut there, Service::Rc);
        for wr_id in 0..50 {
            there.post_recv(&qps[1], wr_id, &[]);
            here.post_send(&qps[0], wr_id, SendOp::Send, Data::Inline(&[]));
            exchange(&mut here, &mut there);
        }
        assert_eq!((marks(&here), marks(&there)), (vec![], vec![]));
        assert_eq!(here.completions().len(), 50);
    }
}
