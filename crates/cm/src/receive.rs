//! What a received MAD does (IBTA 12.9).

use crate::calls::{REP, REQ};
use crate::cm::Cm;
use crate::connection::{Connection, Remote, State};
use crate::times::{patience, peers_interval, repetition, service_time, timewait};
use crate::{Address, ConnectionId, Event, RejectReason, Reply, Request};
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::cm::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu};
use weir_wire::mad::MadHeader;

impl Cm {
    /// Handles the 256 bytes that QP 1 received. Any bytes may come from any sender. A MAD is for a connection only if
    /// it comes from the connection's peer.
    pub fn handle(&mut self, now: Instant, from: &Address, mad: &[u8]) {
        let Ok((header, message)) = Message::parse(mad) else { return };
        let tid = header.tid.get();
        // The peer repeats its message until an answer comes.
        if !self.knows(from, &message)
            && let Some(refusal) = message.refusal()
        {
            return self.answer(from, &refusal, tid);
        }
        match message {
            Message::Req(req) => self.req(now, from, &header, &req),
            Message::Rep(rep) => self.rep(now, from, &header, &rep),
            Message::Rtu(rtu) => self.rtu(from, &rtu),
            Message::Mra(mra) => self.mra(now, from, &mra),
            Message::Rej(rej) => self.rej(now, from, &rej),
            Message::Dreq(dreq) => self.dreq(now, from, tid, &dreq),
            Message::Drep(drep) => self.drep(now, from, &drep),
            Message::SidrReq(req) => self.sidr_req(now, from, tid, &req),
            Message::SidrRep(rep) => self.sidr_rep(from, &rep),
        }
        self.send_waiting(now);
    }

    /// Whether the connection of a REP or DREQ exists. It may not: the process gave it up, and the peer does not have the
    /// REJ; or it is over, and the peer does not have the DREP (IBTA 12.9).
    fn knows(&mut self, from: &Address, message: &Message) -> bool {
        match message {
            Message::Rep(rep) => {
                let connection = self.table.with_peer(rep.remote_comm_id, from);
                connection.is_some_and(|connection| connection.state != State::Idle)
            }
            Message::Dreq(dreq) => {
                let connection = self.table.with_peer(dreq.remote_comm_id, from);
                connection.is_some_and(|connection| {
                    let is_over = match connection.state {
                        State::Idle => true,
                        State::Timewait => connection.last.is_none(),
                        _ => false,
                    };
                    connection.is_with(dreq.local_comm_id) && !is_over
                })
            }
            _ => true,
        }
    }

    fn req(&mut self, now: Instant, from: &Address, header: &MadHeader, req: &Req) {
        let tid = header.tid.get();
        let remote = Remote { comm_id: req.local_comm_id, ca_guid: req.ca_guid, qpn: req.qpn };
        let known = self.table.of_comm_id(from.remote, req.ca_guid, req.local_comm_id);
        if let Some(id) = known
            && let connection = self.table.at(id)
            && (connection.remote, connection.address) == (Some(remote), *from)
        {
            return self.repeated_req(now, from, id, tid, req);
        }
        // The GIDs are the connection's addresses, and the sender's address is all that proves them.
        if (req.primary.local_gid, req.primary.remote_gid) != (from.remote_gid(), from.local_gid()) {
            return self.reject_message(from, tid, (0, req.local_comm_id), REQ, RejectReason::INVALID_GID);
        }
        // A connection of a process that does not exist any more, or forgot it (IBTA 12.4.1, 12.9.8.3.1).
        if let Some(stale) = known.or(self.table.of_qpn(from.remote, req.ca_guid, req.qpn)) {
            self.reject_message(from, tid, (0, req.local_comm_id), REQ, RejectReason::STALE_CONNECTION);
            return self.stale(now, stale);
        }
        let Some(request) = Request::from_message(req, header.modifier.get()) else {
            return self.reject_message(from, tid, (0, req.local_comm_id), REQ, RejectReason::INVALID_TRANSPORT);
        };
        let id = self.table.insert_half_open(Connection {
            address: *from,
            state: State::ReqReceived,
            active: false,
            turn: None,
            under_way: false,
            forgotten: false,
            events: 0,
            service_id: req.service_id,
            transport: request.transport,
            alternate: req.alternate.local_lid != 0 || !req.alternate.local_gid.is_unspecified(),
            ca_guid: 0,
            qpn: 0,
            remote: None,
            tid,
            last: None,
            interval: peers_interval(req.local_response_timeout),
            max_retries: req.max_cm_retries,
            retries_left: 0,
            delay: Duration::ZERO,
            timewait: timewait(req.primary.ack_timeout, 0),
        });
        // The peer repeats a request that is dropped.
        let Some(id) = id else { return };
        self.table.take_remote(id, remote);
        let wait = patience(req.remote_response_timeout, req.primary.ack_timeout, req.max_cm_retries);
        self.table.set_deadline(id, Some(now + wait));
        self.report(Event::Request { id: ConnectionId(id), from: *from, request: Box::new(request) });
    }

    /// The peer has no answer to its REQ yet, or the network repeats it.
    fn repeated_req(&mut self, now: Instant, from: &Address, id: u32, tid: u64, req: &Req) {
        // It waits for the answer at least until it repeats its REQ again, and that may be lost.
        let wait = repetition(req.remote_response_timeout, req.primary.ack_timeout) * 2 + self.table.at(id).delay;
        let deadline = self.table.deadline(id).map(|deadline| deadline.max(now + wait));
        match self.table.at(id).state {
            State::ReqReceived => self.table.set_deadline(id, deadline),
            State::ReqDelayed => {
                self.table.set_deadline(id, deadline);
                self.repeat(id);
            }
            State::RepSent { .. } => self.repeat(id),
            State::Timewait => {
                self.reject_message(from, tid, (id, req.local_comm_id), REQ, RejectReason::STALE_CONNECTION);
            }
            _ => (),
        }
    }

    /// The peer says that a connection does not exist any more, by using its QP or communication ID for another.
    fn stale(&mut self, now: Instant, id: u32) {
        let connection = self.table.at(id);
        match connection.state {
            State::Established => self.send_disconnection(now, id, [0; 220]),
            State::ReqReceived | State::ReqDelayed | State::RepSent { .. } => {
                self.rejected(id, RejectReason::STALE_CONNECTION, Vec::new(), Vec::new());
            }
            _ => (),
        }
    }

    fn rep(&mut self, now: Instant, from: &Address, header: &MadHeader, rep: &Rep) {
        let id = rep.remote_comm_id;
        let Some(connection) = self.table.with_peer(id, from) else { return };
        match connection.state {
            State::ReqSent { .. } => (),
            State::Established | State::RepDelayed if connection.active && connection.is_with(rep.local_comm_id) => {
                return self.repeat(id);
            }
            _ => return,
        }
        let reply = Reply::from_message(rep, connection.transport, header.modifier.get());
        let remote = Remote { comm_id: rep.local_comm_id, ca_guid: rep.ca_guid, qpn: reply.qpn };
        let known = self.table.of_comm_id(from.remote, remote.ca_guid, remote.comm_id);
        if let Some(stale) = known.or(self.table.of_qpn(from.remote, remote.ca_guid, remote.qpn)) {
            let ids = (id, rep.local_comm_id);
            self.reject_message(from, header.tid.get(), ids, REP, RejectReason::STALE_CONNECTION);
            self.stale(now, stale);
            return self.rejected(id, RejectReason::STALE_CONNECTION, Vec::new(), Vec::new());
        }
        self.answered(id);
        self.table.take_remote(id, remote);
        self.table.set_deadline(id, None);
        let connection = self.table.at(id);
        connection.state = State::RepReceived;
        connection.timewait += timewait(0, reply.target_ack_delay);
        self.report(Event::Reply { id: ConnectionId(id), reply: Box::new(reply) });
    }

    fn rtu(&mut self, from: &Address, rtu: &Rtu) {
        let Some(connection) = self.table.with_peer(rtu.remote_comm_id, from) else { return };
        if matches!(connection.state, State::RepSent { .. }) && connection.is_with(rtu.local_comm_id) {
            self.establish(rtu.remote_comm_id, rtu.private.to_vec());
        }
    }

    fn mra(&mut self, now: Instant, from: &Address, mra: &Mra) {
        let id = mra.remote_comm_id;
        let Some(connection) = self.table.with_peer(id, from) else { return };
        match (connection.state, mra.message) {
            (State::ReqSent { delayed: false }, REQ) => connection.state = State::ReqSent { delayed: true },
            (State::RepSent { delayed: false }, REP) if connection.is_with(mra.local_comm_id) => {
                connection.state = State::RepSent { delayed: true };
            }
            _ => return,
        }
        let deadline = now + service_time(mra.service_timeout) + connection.timewait;
        self.answered(id);
        self.table.set_deadline(id, Some(deadline));
        let (service_timeout, private) = (mra.service_timeout, mra.private.to_vec());
        self.report(Event::Delayed { id: ConnectionId(id), service_timeout, private });
    }

    pub(crate) fn rej(&mut self, now: Instant, from: &Address, rej: &Rej) {
        let Some(id) = self.rejected_id(from, rej) else { return };
        let ari = rej.ari[..usize::from(rej.ari_len).min(rej.ari.len())].to_vec();
        let private = rej.private.to_vec();
        match self.table.at(id).state {
            // The peer knows nothing of the connection, or forgot it: there is nothing left to disconnect.
            State::DreqSent => {
                self.enter_timewait(now, id);
                self.report(Event::Disconnected { id: ConnectionId(id), timed_out: false, private: Vec::new() });
            }
            State::ReqSent { .. } | State::ReqReceived | State::ReqDelayed | State::RepSent { .. }
                if rej.reason != RejectReason::STALE_CONNECTION =>
            {
                self.rejected(id, rej.reason, ari, private);
            }
            State::ReqSent { .. }
            | State::ReqReceived
            | State::ReqDelayed
            | State::RepSent { .. }
            | State::RepReceived
            | State::RepDelayed
            | State::Established => {
                self.enter_timewait(now, id);
                self.report(Event::Rejected { id: ConnectionId(id), reason: rej.reason, ari, private });
            }
            _ => (),
        }
    }

    /// The connection that a REJ is about. A peer that gave up may not know the process's ID: then it says its GUID
    /// (IBTA 12.6.7.2).
    fn rejected_id(&mut self, from: &Address, rej: &Rej) -> Option<u32> {
        let guid = rej.ari.first_chunk().map_or(0, |guid| u64::from_be_bytes(*guid));
        let by_guid = match rej.reason {
            RejectReason::TIMEOUT => self.table.of_comm_id(from.remote, guid, rej.local_comm_id),
            _ => None,
        };
        let id = by_guid.unwrap_or(rej.remote_comm_id);
        let connection = self.table.with_peer(id, from)?;
        // The peer has no ID, or the process does not know it, before the REP.
        let fits = match connection.remote {
            Some(remote) => remote.comm_id == rej.local_comm_id,
            None => true,
        };
        fits.then_some(id)
    }

    pub(crate) fn dreq(&mut self, now: Instant, from: &Address, tid: u64, dreq: &Dreq) {
        let id = dreq.remote_comm_id;
        let Some(connection) = self.table.with_peer(id, from) else { return };
        match connection.state {
            _ if connection.qpn != dreq.remote_qpn => (),
            State::Established | State::RepSent { .. } => {
                connection.state = State::DreqReceived;
                connection.tid = tid;
                self.table.set_deadline(id, None);
                self.report(Event::DisconnectRequest { id: ConnectionId(id), private: dreq.private.to_vec() });
            }
            // Both disconnect at once: each confirms.
            State::DreqSent => {
                self.confirm_disconnection(now, id, tid, [0; 224]);
                let private = dreq.private.to_vec();
                self.report(Event::Disconnected { id: ConnectionId(id), timed_out: false, private });
            }
            State::Timewait => self.repeat(id),
            _ => (),
        }
    }

    fn drep(&mut self, now: Instant, from: &Address, drep: &Drep) {
        let id = drep.remote_comm_id;
        let Some(connection) = self.table.with_peer(id, from) else { return };
        if connection.state == State::DreqSent && connection.is_with(drep.local_comm_id) {
            self.enter_timewait(now, id);
            let private = drep.private.to_vec();
            self.report(Event::Disconnected { id: ConnectionId(id), timed_out: false, private });
        }
    }

    /// The connection ends by a rejection.
    pub(crate) fn rejected(&mut self, id: u32, reason: RejectReason, ari: Vec<u8>, private: Vec<u8>) {
        self.report(Event::Rejected { id: ConnectionId(id), reason, ari, private });
        self.end(id);
    }

    /// Rejects a message that belongs to no connection.
    fn reject_message(&mut self, to: &Address, tid: u64, ids: (u32, u32), message: u8, reason: RejectReason) {
        let (local_comm_id, remote_comm_id) = ids;
        let rej = Rej { local_comm_id, remote_comm_id, message, reason, ..Rej::default() };
        self.answer(to, &rej.into(), tid);
    }
}
