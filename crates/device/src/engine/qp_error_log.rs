//! The log message about a QP that went to the error state because of a request: one line, however many work requests
//! it flushes.

use crate::engine::peers::connection::{Connection, Link};
use crate::engine::peers::peer::Peer;
use crate::memory::refusal::Refusal;
use crate::slot::{FIRST_PORT, SLOTS};
use std::fmt;
use std::net::IpAddr;
use weir_link::faults::FaultSpec;
use weir_transport::{Ending, Side, Status};
use weir_wire::ROCE_PORT;

/// A QP that went to the error state because of a request.
#[derive(Clone, Copy)]
pub struct QpError {
    /// The QP.
    pub num: u32,
    /// The QP at the other end.
    pub dest: u32,
    /// Its address, if there is a route.
    pub peer: Option<IpAddr>,
    pub ending: Ending,
    /// What was refused, if that is why it failed.
    pub refusal: Option<Refusal>,
    /// Only its sends have stopped, until it is modified to RTS.
    pub sends_only: bool,
    pub hint: Hint,
}

/// What is known about the process at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    None,
    /// Neither a hello nor a packet ever came from it. The UDP port of its slot.
    Unheard(u16),
    /// A Weir process answers, but has not proven that it owns the peer. The UDP port of its slot.
    Unproven(u16),
    /// It does not answer hellos any more. The UDP port of its slot.
    Silent(u16),
}

impl Hint {
    /// Of a QP and its peer.
    pub fn of(connection: &Connection, peer: &Peer) -> Hint {
        match connection.link {
            Link::Weir(_) if peer.is_silent() => Hint::Silent(peer.slot_port),
            _ if connection.is_unheard() && peer.weir().is_none() => Hint::Unheard(peer.slot_port),
            _ if connection.is_unheard() => Hint::Unproven(peer.slot_port),
            _ => Hint::None,
        }
    }
}

impl QpError {
    /// Writes the line. `device`: the QP's. No lock of a rank above the engine's is held: a log allocates memory, and a memory hook of the
    /// program may deregister a region there.
    #[cold]
    #[inline(never)]
    pub fn log(self, device: &str, faults: Option<&FaultSpec>) {
        match faults.filter(|_| self.may_be_injected()) {
            None => tracing::warn!("{device}, {self}"),
            Some(faults) => tracing::warn!(
                "{device}, {self}. But packets are lost or changed here on purpose: WEIR_FAULTS is {faults}. Without it (the \
                 option --faults of `weir run`) the request may succeed"
            ),
        }
    }

    /// Whether injected faults may be the cause.
    fn may_be_injected(&self) -> bool {
        matches!(self.ending.status, Status::RetryExceeded | Status::BadResponse)
    }
}

impl fmt::Display for QpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ending { side, status, psn, tries, .. } = self.ending;
        if self.sends_only {
            write!(f, "QP {:#08x} is in the send queue error state: its send ended as {status:?}", self.num)?;
            return write!(f, ": {}", Cause(self));
        }
        write!(f, "QP {:#08x} is in the error state: ", self.num)?;
        if side == Side::Responder && self.peer.is_none() {
            return write!(f, "its receive ended as {status:?}: {}", Cause(self));
        }
        match side {
            Side::Requester => write!(f, "its request to QP {:#08x}", self.dest)?,
            Side::Responder => write!(f, "it refused a request of QP {:#08x}", self.dest)?,
        }
        match self.peer {
            Some(peer) => write!(f, " at {peer}")?,
            None => write!(f, " (no address yet)")?,
        }
        write!(f, ", PSN {psn:?}, ended as {status:?}")?;
        if let Some(tries) = tries {
            write!(f, " after {tries} tries")?;
        }
        write!(f, ": {}", Cause(self))
    }
}

/// The cause if it is known, otherwise the likely cause, and what to do.
struct Cause<'a>(&'a QpError);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QpError { ending, refusal, hint, .. } = self.0;
        match (refusal, ending.why) {
            (Some(refusal), _) => write!(f, "{refusal}"),
            (None, Some(why)) => f.write_str(why),
            (None, None) if ending.status == Status::RetryExceeded && ending.is_ack_timeout() => no_response(f, *hint),
            (None, None) => f.write_str(advice(ending)),
        }
    }
}

impl QpError {
    /// Whether the status of the request fits to what was refused last.
    pub fn is_about(ending: &Ending, refusal: &Refusal) -> bool {
        let own = ending.side == Side::Requester;
        match ending.status {
            Status::LocalProtection => true,
            Status::MwBind | Status::LocalQpOperation => matches!(refusal, Refusal::Window(_)),
            Status::RemoteAccess | Status::RemoteOperation => !own,
            _ => false,
        }
    }
}

/// Why no response came, and what to do.
fn no_response(f: &mut fmt::Formatter<'_>, hint: Hint) -> fmt::Result {
    match hint {
        Hint::Unheard(port) => write!(
            f,
            "nothing ever came from the peer, neither from UDP port {port}, which a Weir process would have, nor from an \
             adapter. Check that the peer process runs, that its QP is in RTR or RTS with this QP's number, and that \
             firewalls let UDP ports {ROCE_PORT} and {FIRST_PORT} to {} pass, both ways; NAT between the two \
             cannot work",
            FIRST_PORT + SLOTS - 1
        ),
        Hint::Unproven(port) => write!(
            f,
            "the process at UDP port {port} answers, but has not shown that it has this QP's peer. Check that the peer QP \
             is in RTR or RTS, that dest_qp_num is its number and its dest_qp_num this QP's number, and that sq_psn of \
             each is rq_psn of the other"
        ),
        Hint::Silent(port) => write!(
            f,
            "the process at UDP port {port} does not answer any more: it has ended or is stopped, or the network to it \
             is down"
        ),
        Hint::None => f.write_str(
            "no response came. Check that the peer process runs, that its QP is in RTR or RTS with this QP's number, \
             and that no firewall drops UDP between the two; a slow peer needs a larger timeout or retry_cnt. If long \
             messages fail and short ones do not, something on the way drops packets of the path MTU",
        ),
    }
}

/// The likely cause, and what to do.
fn advice(ending: &Ending) -> &'static str {
    let own = ending.side == Side::Requester;
    match ending.status {
        Status::RetryExceeded => {
            "the peer missed packets repeatedly. Look for a path that loses packets, or an MTU on the way that is \
             smaller than the path MTU"
        }
        Status::RnrRetryExceeded => {
            "the peer had no receive posted. Post receives before the peer sends, or set rnr_retry to 7 (unlimited)"
        }
        Status::RemoteAccess if own => {
            "the peer refused the key. Look at rkey, remote address, length and the access flags of the peer's region"
        }
        Status::RemoteAccess => "the key, the address, the length or the access flags of the region did not allow it",
        Status::RemoteInvalidRequest if own => {
            "the peer found it invalid. Check that its receives are long enough, its QP's access flags allow the \
             operation, and max_rd_atomic is not above its max_dest_rd_atomic"
        }
        Status::RemoteInvalidRequest => {
            "a receive was too short, the QP's access flags do not allow the operation, there were more READs than \
             max_dest_rd_atomic, or the packet was malformed"
        }
        Status::RemoteOperation if own => {
            "the peer failed on its own side. Its memory may be unmapped, or the lkey of its receive may be wrong"
        }
        Status::RemoteOperation => "memory of a region or a receive is unmapped, or the lkey of a receive is wrong",
        Status::LocalProtection => {
            "memory of the work request is not registered as it is used. Look at lkey, address, length and access \
             flags, and whether the memory is still mapped"
        }
        Status::LocalQpOperation => "the QP does not allow it. READs and atomics need max_rd_atomic above 0",
        Status::BadResponse => "the response does not fit the request: the peer violates the protocol",
        _ => "see the status of the completion",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::Psn;

    fn error(side: Side, status: Status, peer: Option<IpAddr>) -> QpError {
        let ending = Ending { side, status, vendor_err: 0, psn: Psn::new(7), tries: None, why: None };
        QpError { num: 1, dest: 2, peer, ending, refusal: None, sends_only: false, hint: Hint::None }
    }

    #[test]
    fn a_receive_that_fails_without_a_peer_is_named() {
        let line = error(Side::Responder, Status::LocalProtection, None).to_string();
        assert!(line.contains("its receive ended as LocalProtection: memory of the work request"), "{line}");
    }

    #[test]
    fn each_end_that_the_line_has_no_reason_for_has_its_advice() {
        let (own, peer) = (Side::Requester, Side::Responder);
        for (side, status, advice) in [
            (own, Status::RetryExceeded, "the peer missed packets repeatedly"),
            (own, Status::RnrRetryExceeded, "the peer had no receive posted"),
            (own, Status::RemoteAccess, "Look at rkey, remote address, length"),
            (
                peer,
                Status::RemoteAccess,
                "the key, the address, the length or the access flags of the region did not allow it",
            ),
            (own, Status::RemoteInvalidRequest, "Check that its receives are long enough"),
            (
                peer,
                Status::RemoteInvalidRequest,
                "a receive was too short, the QP's access flags do not allow the operation",
            ),
            (own, Status::RemoteOperation, "the peer failed on its own side"),
            (peer, Status::RemoteOperation, "memory of a region or a receive is unmapped"),
            (own, Status::LocalProtection, "memory of the work request is not registered as it is used"),
            (own, Status::LocalQpOperation, "READs and atomics need max_rd_atomic above 0"),
            (own, Status::BadResponse, "the response does not fit the request"),
            (own, Status::MwBind, "see the status of the completion"),
        ] {
            let line = error(side, status, Some([127, 0, 0, 1].into())).to_string();
            assert!(line.contains(advice) && line.contains(&format!("ended as {status:?}")), "{line}");
        }
    }
}
