//! What adapters do for reasons that packets do not carry, for an observer of the simulation.

use crate::host::QpInHost;
use crate::ids::{HostId, QpId};
use crate::packet::{PacketKey, Packets};
use weir_transport::{Instant, Psn, RequesterState, ResponderState};

/// An incident of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A requester's ACK timer ran out: it goes back.
    AckTimeout { qp: QpId },
    /// A requester goes back because of a sequence NAK.
    SequenceNak { qp: QpId },
    /// A requester goes back because a response is missing, and a later one has arrived.
    ResponseMissing { qp: QpId },
    /// A requester dropped the response or the ACK with this PSN, because the page of its buffer was missing (`page`),
    /// or because it waits for a page-fault event (packet flood). It repeats the request.
    Dropped { qp: QpId, psn: Psn, page: bool },
    /// A responder sends an RNR NAK for this PSN: a page was missing (`page`), or no receive was posted.
    NotReady { qp: QpId, psn: Psn, page: bool },
    /// The page at this address came: its page fault is resolved.
    PageCame { host: HostId, addr: u64 },
}

/// Called with each incident.
pub(crate) type Watch = Box<dyn FnMut(Instant, Incident)>;

/// Passes a packet to its QP, as [`QpInHost::receive`] does, and reports what the QP's requester makes of it.
#[inline]
pub(crate) fn receive(
    now: Instant,
    at: &mut QpInHost<'_>,
    id: QpId,
    key: PacketKey,
    packets: &mut Packets,
    watch: &mut Option<Watch>,
) -> bool {
    match watch {
        None => at.receive(now, key, packets),
        Some(watch) => receive_watched(now, at, id, key, packets, watch),
    }
}

/// The incident of an RNR NAK that leaves a QP with its responder in this state.
pub(crate) fn not_ready(qp: QpId, psn: Psn, state: ResponderState) -> Incident {
    Incident::NotReady { qp, psn, page: state != ResponderState::AwaitReceive }
}

#[cold]
#[inline(never)]
fn receive_watched(
    now: Instant,
    at: &mut QpInHost<'_>,
    qp: QpId,
    key: PacketKey,
    packets: &mut Packets,
    watch: &mut Watch,
) -> bool {
    let bth = packets[key].headers.bth;
    let (psn, response) = (bth.psn, bth.opcode.is_response());
    let acknowledges = response && !packets[key].is_nak();
    let before = at.qp.qp.retransmissions();
    let (deaf, missed) = (at.qp.qp.is_deaf(), at.missed());
    // A response that comes during an RNR wait is dropped for that, and its page is only requested.
    let open = at.qp.qp.requester_state() != RequesterState::WaitReceiver;
    let taken = at.receive(now, key, packets);
    let after = at.qp.qp.retransmissions();
    if after.sequence_naks != before.sequence_naks {
        watch(now, Incident::SequenceNak { qp });
    }
    if after.implied_naks != before.implied_naks {
        watch(now, Incident::ResponseMissing { qp });
    }
    if acknowledges && open && at.qp.held[weir_transport::Side::Requester as usize].is_empty() {
        let page = at.missed() != missed;
        if deaf || page {
            watch(now, Incident::Dropped { qp, psn, page: page && !deaf });
        }
    }
    taken
}
