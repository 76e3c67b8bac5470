//! What a peer gets when a connection is forgotten.

use crate::cm::Cm;
use crate::connection::State;
use crate::{ConnectionId, Transport};

/// What the peer of a connection gets when the connection is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    Nothing,
    /// A message without an answer.
    Message,
    /// A DREQ, which the peer answers by a DREP.
    Question,
}

impl Cm {
    /// What [`forget`](Self::forget) would send now.
    pub fn parting(&self, id: ConnectionId) -> Parting {
        let Some(connection) = self.table.get(id.0).filter(|connection| !connection.forgotten) else {
            return Parting::Nothing;
        };
        match connection.state {
            State::Established if !connection.active && connection.transport == Transport::Xrc => Parting::Nothing,
            State::Established => Parting::Question,
            State::ReqSent { .. }
            | State::ReqReceived
            | State::ReqDelayed
            | State::RepReceived
            | State::RepDelayed
            | State::RepSent { .. }
            | State::DreqReceived
            | State::SidrReceived => Parting::Message,
            State::Queued(_)
            | State::SidrSent
            | State::DreqSent
            | State::Timewait
            | State::SidrAnswered
            | State::Idle => Parting::Nothing,
        }
    }
}
