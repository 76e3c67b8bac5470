//! Peers of which the process was killed. An adapter's driver ends the connections of such a process in its place; where
//! there is none, the caller must find out that the process is gone.

use crate::cm::Cm;
use crate::connection::{Connection, State};
use crate::{Address, ConnectionId, RejectReason};
use weir_transport::Instant;
use weir_wire::cm::{Dreq, Rej};

impl Cm {
    /// The connections that wait for the peer's program: their routes, and the peer's communication ids.
    pub fn peers(&self) -> impl Iterator<Item = (ConnectionId, &Address, u32)> {
        let connections = self.table.connections();
        connections.filter_map(|(id, connection)| Some((ConnectionId(id), &connection.address, awaited(connection)?)))
    }

    /// The peer's process has ended without a message. The connection ends as if the message had come that an adapter's
    /// driver sends then: a DREQ for an established connection, a REJ for another.
    pub fn peer_vanished(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.table.get(id.0) else { return };
        let Some(local_comm_id) = awaited(connection) else { return };
        let (address, remote_comm_id) = (connection.address, id.0);
        if connection.state == State::Established {
            let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: connection.qpn, ..Dreq::default() };
            self.dreq(now, &address, self.tid(id.0), &dreq);
        } else {
            let rej = Rej { local_comm_id, remote_comm_id, reason: RejectReason::CONSUMER, ..Rej::default() };
            self.rej(now, &address, &rej);
        }
    }
}

/// The peer's communication id, if it has a connection too, which its program has to go on with or to end.
fn awaited(connection: &Connection) -> Option<u32> {
    match connection.state {
        State::ReqReceived
        | State::ReqDelayed
        | State::RepReceived
        | State::RepDelayed
        | State::RepSent { .. }
        | State::Established => connection.remote.filter(|_| !connection.forgotten).map(|remote| remote.comm_id),
        State::Queued(_)
        | State::ReqSent { .. }
        | State::DreqSent
        | State::DreqReceived
        | State::Timewait
        | State::SidrSent
        | State::SidrReceived
        | State::SidrAnswered
        | State::Idle => None,
    }
}
