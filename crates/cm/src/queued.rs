//! Requests wait until few enough are under way to their host.

use crate::cm::Cm;
use crate::connection::{Ask, State};
use weir_transport::Instant;

impl Cm {
    /// Sends the request of a new connection, which is kept already, as soon as the peer's host may get it.
    pub(crate) fn begin(&mut self, now: Instant, id: u32) {
        let to = self.table.at(id).address.remote;
        match self.pacing.begin(to, id) {
            None => self.send_request(now, id),
            turn => self.table.at(id).turn = turn,
        }
    }

    fn send_request(&mut self, now: Instant, id: u32) {
        let connection = self.table.at(id);
        connection.state = match connection.state {
            State::Queued(Ask::Service) => State::SidrSent,
            _ => State::ReqSent { delayed: false },
        };
        connection.under_way = true;
        connection.retries_left = connection.max_retries;
        let (to, deadline) = (connection.address.remote, now + connection.interval);
        self.pacing.sent(now, to, id);
        self.table.set_deadline(id, Some(deadline));
        self.repeat(id);
    }

    /// A request is answered, or over.
    pub(crate) fn answered(&mut self, id: u32) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let (to, turn) = (connection.address.remote, connection.turn.take());
        if std::mem::take(&mut connection.under_way) {
            self.pacing.ended(to);
        }
        if let Some(turn) = turn {
            self.pacing.leave(to, turn);
        }
    }

    /// Sends requests that have waited.
    pub(crate) fn send_waiting(&mut self, now: Instant) {
        self.freed = None;
        let counts = |id| self.table.get(id).is_some_and(|connection| connection.under_way);
        let mut over = Vec::new();
        while let Some(id) = self.pacing.oldest(now, counts) {
            over.push(id);
        }
        over.into_iter().for_each(|id| self.answered(id));
        while let Some(id) = self.pacing.next() {
            self.table.at(id).turn = None;
            self.send_request(now, id);
        }
    }
}
