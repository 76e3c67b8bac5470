//! What the caller does with its connections.

use crate::cm::Cm;
use crate::connection::{Ask, Connection, State};
use crate::request::padded;
use crate::times::{interval, service_time, timewait};
use crate::{Address, ConnectionId, Error, RejectReason, Reply, Request, SidrReply, SidrStatus, Transport};
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::cm::{Dreq, Message, Mra, Rej, Rtu};

/// `message` of MRA and REJ (IBTA 12.6.6, 12.6.7).
pub(crate) const REQ: u8 = 0;
pub(crate) const REP: u8 = 1;
const NONE_OF_THEM: u8 = 2;

/// The bits of a QP number.
const QPN: u32 = 0xff_ffff;

/// REP's `failover`: the passive side has no alternate path (IBTA 12.6.8).
const FAILOVER_UNSUPPORTED: u8 = 1;

impl Cm {
    /// Asks for a connection: sends a REQ, and repeats it until a REP, REJ or MRA comes (IBTA 12.9). The events that
    /// follow are `Reply`, `Rejected` or `Unreachable`, and `Delayed` before.
    pub fn connect(&mut self, now: Instant, to: &Address, request: &Request) -> Result<ConnectionId, Error> {
        if to.local.is_ipv4() != to.remote.is_ipv4() {
            return Err(Error::Families);
        }
        let mut message = request.message(0, to)?;
        let id = self.table.insert(Connection {
            address: *to,
            state: State::Queued(Ask::Connection),
            active: true,
            turn: None,
            under_way: false,
            forgotten: false,
            events: 0,
            service_id: request.service_id,
            transport: request.transport,
            alternate: false,
            ca_guid: request.ca_guid,
            qpn: request.qpn & QPN,
            remote: None,
            tid: 0,
            last: None,
            interval: interval(request.remote_response_timeout, request.ack_timeout),
            max_retries: request.max_retries.min(15),
            retries_left: 0,
            delay: Duration::ZERO,
            timewait: timewait(request.ack_timeout, 0),
        })?;
        let tid = self.tid(id);
        self.table.at(id).tid = tid;
        message.local_comm_id = id;
        self.keep(id, &message.into(), tid, request.ece.options);
        self.begin(now, id);
        Ok(ConnectionId(id))
    }

    /// Accepts a request: sends a REP, and repeats it until an RTU, REJ or MRA comes (IBTA 12.9). The events that
    /// follow are `Established`, `Rejected`, `DisconnectRequest` (if the RTU was lost) or `Unreachable`, and `Delayed`
    /// before.
    pub fn accept(&mut self, now: Instant, id: ConnectionId, reply: &Reply) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        let (State::ReqReceived | State::ReqDelayed) = state else { return Err(Error::WrongState) };
        let connection = self.table.at(id);
        let mut message = reply.message((id, connection.remote_comm_id()), connection.transport)?;
        if connection.alternate {
            message.failover = FAILOVER_UNSUPPORTED;
        }
        connection.state = State::RepSent { delayed: false };
        connection.ca_guid = reply.ca_guid;
        connection.qpn = reply.qpn & QPN;
        let tid = connection.tid;
        // The caller has decided about it: from now on its own limits count.
        self.table.opened(id);
        self.ask(now, id, &message.into(), tid, reply.ece.options);
        Ok(())
    }

    /// Rejects the peer's request or reply, or gives up the process's own (IBTA 12.9).
    pub fn reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: RejectReason,
        ari: &[u8],
        private: &[u8],
    ) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        match state {
            // The peer has not heard of it.
            State::Queued(Ask::Connection) => {
                self.end(id);
                return Ok(());
            }
            State::ReqSent { .. } | State::ReqReceived | State::ReqDelayed => (),
            State::RepSent { .. } | State::RepReceived | State::RepDelayed => (),
            _ => return Err(Error::WrongState),
        }
        self.send_rejection(id, reason, ari, private)?;
        self.end_rejected(now, id, state);
        self.send_waiting(now);
        Ok(())
    }

    /// Forgets a request without an answer: the peer repeats it. So does a listener with a full backlog.
    pub fn ignore(&mut self, id: ConnectionId) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        let (State::ReqReceived | State::ReqDelayed | State::SidrReceived) = state else {
            return Err(Error::WrongState);
        };
        self.drop_events(id);
        self.table.remove(id);
        Ok(())
    }

    /// Says that the QP is connected as the peer's reply asks: sends an RTU. The connection is established.
    pub fn ready(&mut self, id: ConnectionId, private: &[u8]) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        let (State::RepReceived | State::RepDelayed) = state else { return Err(Error::WrongState) };
        let private = padded(private)?;
        let connection = self.table.at(id);
        connection.state = State::Established;
        let (remote_comm_id, tid) = (connection.remote_comm_id(), connection.tid);
        self.send(id, &Rtu { local_comm_id: id, remote_comm_id, private }.into(), tid, 0);
        Ok(())
    }

    /// Says that the first packet of the connection came: the connection that the caller accepted is established, even
    /// if the RTU is lost (IBTA 12.9).
    pub fn established(&mut self, id: ConnectionId) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        match state {
            State::RepSent { .. } => self.establish(id, Vec::new()),
            State::Established => return Err(Error::Connected),
            _ => return Err(Error::WrongState),
        }
        Ok(())
    }

    /// Asks the peer to wait up to 4.096 µs · 2^`service_timeout` for the answer to its request or reply: sends an MRA
    /// (IBTA 12.9).
    pub fn delay(&mut self, now: Instant, id: ConnectionId, service_timeout: u8, private: &[u8]) -> Result<(), Error> {
        self.delay_duplicates(now, id, service_timeout, private)?;
        self.repeat(id.0);
        Ok(())
    }

    /// As `delay`, but the MRA is sent only when the peer repeats its message.
    pub fn delay_duplicates(
        &mut self,
        now: Instant,
        id: ConnectionId,
        service_timeout: u8,
        private: &[u8],
    ) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        let (state, message) = match state {
            State::ReqReceived => (State::ReqDelayed, REQ),
            State::RepReceived => (State::RepDelayed, REP),
            _ => return Err(Error::WrongState),
        };
        let private = padded(private)?;
        let service_timeout = service_timeout.min(31);
        let connection = self.table.at(id);
        connection.state = state;
        connection.delay = service_time(service_timeout);
        let longer = connection.delay;
        let (remote_comm_id, tid) = (connection.remote_comm_id(), connection.tid);
        let mra = Mra { local_comm_id: id, remote_comm_id, message, service_timeout, private };
        self.keep(id, &mra.into(), tid, 0);
        let deadline = self.table.deadline(id).map(|deadline| deadline.max(now) + longer);
        self.table.set_deadline(id, deadline);
        Ok(())
    }

    /// Ends an established connection: sends a DREQ, and repeats it until a DREP comes; or confirms the peer's DREQ by a
    /// DREP (IBTA 12.9). The events that follow are `Disconnected`, only after a DREQ, and `TimewaitExit`.
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId, private: &[u8]) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        match state {
            State::Established => self.send_disconnection(now, id, padded(private)?),
            State::DreqReceived => {
                let tid = self.table.at(id).tid;
                self.confirm_disconnection(now, id, tid, padded(private)?);
            }
            _ => return Err(Error::WrongState),
        }
        Ok(())
    }

    /// The caller does not want the connection any more, in whatever state: rejects what is not established, and
    /// disconnects what is, as Linux does for an ID that is destroyed. An ID that is unknown is no error. The
    /// connection's timewait passes without the caller.
    pub fn forget(&mut self, now: Instant, id: ConnectionId) {
        let Ok((id, state)) = self.find(id) else { return };
        self.drop_events(id);
        match state {
            State::ReqSent { .. } => {
                let guid = self.table.at(id).ca_guid.to_be_bytes();
                self.send_rejection(id, RejectReason::TIMEOUT, &guid, &[]).expect("a GUID fits");
                self.end_rejected(now, id, state);
            }
            State::ReqReceived | State::ReqDelayed | State::RepReceived | State::RepDelayed | State::RepSent { .. } => {
                self.send_rejection(id, RejectReason::CONSUMER, &[], &[]).expect("nothing fits");
                self.end_rejected(now, id, state);
            }
            // The target of an XRC connection outlives its connection.
            State::Established if !self.table.at(id).active && self.table.at(id).transport == Transport::Xrc => {
                self.end(id);
            }
            State::Established => self.send_disconnection(now, id, [0; 220]),
            State::DreqReceived => {
                let tid = self.table.at(id).tid;
                self.confirm_disconnection(now, id, tid, [0; 224]);
            }
            State::SidrReceived => {
                let reply = SidrReply { status: SidrStatus::REJECTED, ..SidrReply::default() };
                self.answer_service(now, ConnectionId(id), &reply).expect("the request waits for an answer");
            }
            State::SidrSent | State::Queued(_) => self.end(id),
            State::DreqSent | State::Timewait | State::SidrAnswered | State::Idle => (),
        }
        match self.table.get_mut(id) {
            Some(connection) if connection.state == State::Idle => self.table.remove(id),
            Some(connection) => connection.forgotten = true,
            None => (),
        }
        self.freed = Some(now);
    }

    /// The process ends, and cannot answer or ask again if its last message is lost: sends the DREPs of connections in
    /// timewait, and the DREQs without an answer, twice more, of 256 connections at most. Otherwise the peer repeats
    /// its DREQ to no process, for 69 s by default, or does not learn of the end.
    pub fn repeat_ends(&mut self) {
        const MOST: usize = 256;
        const TIMES: usize = 2;
        let is_end = |connection: &Connection| {
            matches!(connection.state, State::Timewait | State::DreqSent) && connection.last.is_some()
        };
        let ended = self.table.connections().filter(|(_, connection)| is_end(connection));
        let ended: Vec<u32> = ended.map(|(id, _)| id).take(MOST).collect();
        for _ in 0..TIMES {
            ended.iter().for_each(|id| self.repeat(*id));
        }
    }

    /// The connection that the caller accepted is established.
    pub(crate) fn establish(&mut self, id: u32, private: Vec<u8>) {
        self.table.opened(id);
        self.table.set_deadline(id, None);
        let connection = self.table.at(id);
        connection.state = State::Established;
        connection.last = None;
        self.report(crate::Event::Established { id: ConnectionId(id), private });
    }

    /// Sends a DREQ.
    pub(crate) fn send_disconnection(&mut self, now: Instant, id: u32, private: [u8; 220]) {
        let connection = self.table.at(id);
        connection.state = State::DreqSent;
        let remote_qpn = connection.remote.map_or(0, |remote| remote.qpn);
        let message = Dreq { local_comm_id: id, remote_comm_id: connection.remote_comm_id(), remote_qpn, private };
        let tid = self.tid(id);
        self.ask(now, id, &message.into(), tid, 0);
    }

    /// Sends a REJ. Its IDs and `message` say what it rejects: the process has no communication ID for a request that it
    /// did not answer yet (IBTA 12.6.7).
    pub(crate) fn send_rejection(
        &mut self,
        id: u32,
        reason: RejectReason,
        ari: &[u8],
        private: &[u8],
    ) -> Result<(), Error> {
        let connection = self.table.at(id);
        let (local_comm_id, message) = match connection.state {
            State::ReqReceived => (0, REQ),
            State::ReqDelayed => (id, REQ),
            State::RepReceived | State::RepDelayed => (id, REP),
            _ => (id, NONE_OF_THEM),
        };
        let message = Rej {
            local_comm_id,
            remote_comm_id: connection.remote_comm_id(),
            message,
            ari_len: ari.len() as u8,
            reason,
            ari: padded(ari)?,
            private: padded(private)?,
        };
        let tid = connection.tid;
        self.send(id, &Message::from(message), tid, 0);
        Ok(())
    }

    /// The end of a connection that the process rejected in `state`: the peer's QP may be connected if it has a REP.
    fn end_rejected(&mut self, now: Instant, id: u32, state: State) {
        match state {
            State::RepSent { .. } => self.enter_timewait(now, id),
            _ => self.end(id),
        }
    }
}
