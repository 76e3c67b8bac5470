//! Peers of which the process was killed. An adapter's driver ends the connections of such a process in its place; where there
//! is none, the caller must find out that the process is gone.

use crate::cm::Cm;
use crate::connection::{Connection, State};
use crate::{Address, ConnectionId, RejectReason};
use weir_transport::Instant;
use weir_wire::cm::{Dreq, Rej};

impl Cm {
    /// The connections that wait for the peer's program: their routes, and the peer's communication ids.
    pub fn peers(&self) -> impl Iterator<Item = (ConnectionId, &Address, u32)> {
        let awaited = self.table.connections().filter(|(_, connection)| depends_on_peer(connection));
        awaited.filter_map(|(id, connection)| Some((ConnectionId(id), &connection.address, connection.remote?.comm_id)))
    }

    /// The peer's process has ended without a message. The connection ends as if the message had come that an adapter's
    /// driver sends then: a DREQ for an established connection, a REJ for another.
    pub fn peer_vanished(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get(id.0).filter(|connection| depends_on_peer(connection)) else { return };
        let (address, local_comm_id) = (connection.address, connection.remote_comm_id());
        let remote_comm_id = id.0;
        if connection.state == State::Established {
            let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: connection.qpn, ..Dreq::default() };
            self.dreq(now, &address, self.tid(id.0), &dreq);
        } else {
            let rej = Rej { local_comm_id, remote_comm_id, reason: RejectReason::CONSUMER, ..Rej::default() };
            self.rej(now, &address, &rej);
        }
    }
}

/// The peer has a connection too, which its program has to go on with or to end.
fn depends_on_peer(connection: &Connection) -> bool {
    match connection.state {
        State::ReqReceived
        | State::ReqDelayed
        | State::RepReceived
        | State::RepDelayed
        | State::RepSent { .. }
        | State::Established => !connection.forgotten && connection.remote.is_some(),
        State::Queued(_)
        | State::ReqSent { .. }
        | State::DreqSent
        | State::DreqReceived
        | State::Timewait
        | State::SidrSent
        | State::SidrReceived
        | State::SidrAnswered
        | State::Idle => false,
    }
}
