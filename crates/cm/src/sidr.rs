//! Resolution of a service to a UD QP (IBTA 12.11).

use crate::cm::Cm;
use crate::connection::{Ask, Connection, State};
use crate::times::{interval, patience, time};
use crate::{Address, ConnectionId, Error, Event, SidrReply, SidrRequest, Transport};
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::cm::{Message, SidrRep, SidrReq};

impl Cm {
    /// Asks for the QP of a service: sends a SIDR_REQ, and repeats it until a SIDR_REP comes. `ServiceReply` or
    /// `ServiceUnreachable` follows.
    pub fn resolve_service(
        &mut self,
        now: Instant,
        to: &Address,
        request: &SidrRequest,
    ) -> Result<ConnectionId, Error> {
        if to.local.is_ipv4() != to.remote.is_ipv4() {
            return Err(Error::Families);
        }
        let mut message = request.message(0)?;
        let wait = interval(request.response_timeout, 0);
        let mut resolution = resolution(to, &message, State::Queued(Ask::Service), 0);
        (resolution.interval, resolution.max_retries) = (wait, request.max_retries);
        let id = self.table.insert(resolution)?;
        message.request_id = id;
        let tid = self.tid(id);
        self.keep(id, &message.into(), tid, 0);
        self.begin(now, id);
        Ok(ConnectionId(id))
    }

    /// Answers a `ServiceRequest`. Repetitions of the request get the same answer.
    pub fn answer_service(&mut self, now: Instant, id: ConnectionId, reply: &SidrReply) -> Result<(), Error> {
        let (id, state) = self.find(id)?;
        let State::SidrReceived = state else { return Err(Error::WrongState) };
        let resolution = self.table.at(id);
        let message = reply.message(resolution.remote_comm_id(), resolution.service_id)?;
        resolution.state = State::SidrAnswered;
        let tid = resolution.tid;
        self.send(id, &Message::from(message), tid, 0);
        self.table.opened(id);
        self.table.set_deadline(id, Some(now + repetitions()));
        self.answered.push_back(id);
        if self.answered.len() > self.config.max_half_open {
            let oldest = self.answered.pop_front().expect("there is more than the limit");
            if self.table.get(oldest).is_some_and(|resolution| resolution.state == State::SidrAnswered) {
                self.end(oldest);
            }
        }
        Ok(())
    }

    pub(crate) fn sidr_req(&mut self, now: Instant, from: &Address, tid: u64, req: &SidrReq) {
        if let Some(id) = self.table.of_request(from, req.request_id) {
            let resolution = self.table.at(id);
            let repeated = (resolution.tid, resolution.service_id) == (tid, req.service_id);
            match resolution.state {
                State::SidrAnswered if repeated => return self.repeat(id),
                // The sender uses the ID of a request that is over.
                State::SidrAnswered => self.end(id),
                _ => return,
            }
        }
        let Some(id) = self.table.insert_half_open(resolution(from, req, State::SidrReceived, tid)) else { return };
        self.table.take_request(id, req.request_id);
        self.table.set_deadline(id, Some(now + repetitions()));
        let request = SidrRequest::from_message(req);
        self.report(Event::ServiceRequest { id: ConnectionId(id), from: *from, request });
    }

    pub(crate) fn sidr_rep(&mut self, from: &Address, rep: &SidrRep) {
        let id = rep.request_id;
        let Some(resolution) = self.table.with_peer(id, from) else { return };
        if resolution.state == State::SidrSent {
            self.report(Event::ServiceReply { id: ConnectionId(id), reply: SidrReply::from_message(rep) });
            self.end(id);
        }
    }
}

/// For how long a requester may repeat its request, which does not say so: Linux's rdma_cm does for that time.
fn repetitions() -> Duration {
    let usual = SidrRequest::default();
    patience(usual.response_timeout, 0, usual.max_retries)
}

fn resolution(address: &Address, request: &SidrReq, state: State, tid: u64) -> Connection {
    Connection {
        address: *address,
        state,
        active: state == State::Queued(Ask::Service),
        turn: None,
        under_way: false,
        forgotten: false,
        events: 0,
        service_id: request.service_id,
        transport: Transport::Rc,
        alternate: false,
        ca_guid: 0,
        qpn: 0,
        remote: None,
        tid,
        last: None,
        interval: time(0),
        max_retries: 0,
        retries_left: 0,
        delay: Duration::ZERO,
        timewait: time(0),
    }
}
