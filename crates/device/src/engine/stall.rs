//! What a capture with a history is written for, apart from QPs that fail: requests that have been without a response for
//! longer than they should.

use crate::engine::Engine;
use crate::os::clock;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use weir_transport::{Qp, Retransmissions};
use weir_wire::Psn;

/// A request that is repeated after so long a time without a response has stalled. Losses are repaired sooner, and usual
/// RNR waits are shorter. An ACK timeout is a stall however short it is.
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
