//! One connection, or the resolution of one service.

use crate::{Address, ServiceId, Transport};
use std::time::Duration;
use weir_wire::mad::Mad;

/// Where a connection is (IBTA 12.9). The names say what the process sent or received last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The request waits: many others are under way to its host.
    Queued(Ask),
    /// REQ sent; `delayed` by an MRA.
    ReqSent {
        delayed: bool,
    },
    /// REQ received: the caller has to answer.
    ReqReceived,
    /// The caller delays its answer to the REQ.
    ReqDelayed,
    /// REP received: the caller has to answer.
    RepReceived,
    /// The caller delays its answer to the REP.
    RepDelayed,
    /// REP sent; `delayed` by an MRA.
    RepSent {
        delayed: bool,
    },
    Established,
    DreqSent,
    /// DREQ received: the caller has to answer.
    DreqReceived,
    /// Packets may still be on their way.
    Timewait,
    /// SIDR_REQ sent.
    SidrSent,
    /// SIDR_REQ received: the caller has to answer.
    SidrReceived,
    /// SIDR_REP sent: repetitions of the request get it again.
    SidrAnswered,
    /// Nothing happens any more; the caller has not forgotten it yet.
    Idle,
}

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ask {
    Connection,
    Service,
}

/// What the process knows of its peer's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remote {
    /// Communication ID, or the request ID of a SIDR_REQ.
    pub comm_id: u32,
    pub ca_guid: u64,
    pub qpn: u32,
}

pub(crate) struct Connection {
    pub address: Address,
    pub state: State,
    /// The process sent the REQ or SIDR_REQ.
    pub active: bool,
    /// Its request's place among those that wait for its host.
    pub turn: Option<u64>,
    /// Its request counts as under way to its host.
    pub under_way: bool,
    /// The caller has no interest in events any more.
    pub forgotten: bool,
    /// How many of its events the caller has not taken.
    pub events: usize,
    pub service_id: ServiceId,
    pub transport: Transport,
    /// The REQ has an alternate path.
    pub alternate: bool,
    /// The process's own node GUID and QP, as soon as the caller said them.
    pub ca_guid: u64,
    pub qpn: u32,
    /// Known since the peer's REQ or REP.
    pub remote: Option<Remote>,
    /// Transaction ID of the REQ or SIDR_REQ; of the DREQ if the peer disconnects.
    pub tid: u64,
    /// The message that is repeated without an answer, or in answer to a repeated message.
    pub last: Option<Box<Mad>>,
    /// How long to wait for the answer to `last`.
    pub interval: Duration,
    pub max_retries: u8,
    pub retries_left: u8,
    /// For how long the caller's MRA makes the peer wait.
    pub delay: Duration,
    /// How long packets may be on their way after the end.
    pub timewait: Duration,
}

impl Connection {
    /// The peer's communication ID, 0 while it is unknown.
    pub fn remote_comm_id(&self) -> u32 {
        self.remote.map_or(0, |remote| remote.comm_id)
    }

    /// Whether the peer's end has that communication ID.
    pub fn is_with(&self, remote_comm_id: u32) -> bool {
        self.remote.is_some_and(|remote| remote.comm_id == remote_comm_id)
    }
}
