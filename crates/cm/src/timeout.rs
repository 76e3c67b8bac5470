//! What happens when an answer does not come.

use crate::cm::Cm;
use crate::connection::State;
use crate::{ConnectionId, Event, RejectReason};
use weir_transport::Instant;

impl Cm {
    /// Does what is due: repeats messages, gives up, ends timewait.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.table.take_expired(now) {
            self.expired(now, id);
        }
        self.send_waiting(now);
    }

    fn expired(&mut self, now: Instant, id: u32) {
        let connection = self.table.at(id);
        match connection.state {
            State::ReqSent { .. } | State::RepSent { .. } | State::DreqSent | State::SidrSent
                if connection.retries_left > 0 =>
            {
                connection.retries_left -= 1;
                match &mut connection.state {
                    State::ReqSent { delayed } | State::RepSent { delayed } => *delayed = false,
                    _ => (),
                }
                let deadline = now + connection.interval;
                self.table.set_deadline(id, Some(deadline));
                self.repeat(id);
            }
            // The peer learns that the process does not wait any more (IBTA 12.9).
            State::ReqSent { .. } | State::RepSent { .. } => {
                let guid = connection.ca_guid.to_be_bytes();
                self.send_rejection(id, RejectReason::TIMEOUT, &guid, &[]).expect("a GUID fits");
                self.report(Event::Unreachable { id: ConnectionId(id) });
                self.end(id);
            }
            State::DreqSent => {
                self.enter_timewait(now, id);
                self.report(Event::Disconnected { id: ConnectionId(id), timed_out: true, private: Vec::new() });
            }
            State::Timewait => {
                self.report(Event::TimewaitExit { id: ConnectionId(id) });
                self.end(id);
            }
            State::SidrSent => {
                self.report(Event::ServiceUnreachable { id: ConnectionId(id) });
                self.end(id);
            }
            // The caller did not answer as long as the peer waits.
            State::ReqReceived | State::ReqDelayed => self.rejected(id, RejectReason::TIMEOUT, Vec::new(), Vec::new()),
            State::SidrReceived | State::SidrAnswered => self.end(id),
            // These wait for the caller, without a deadline.
            State::RepReceived | State::RepDelayed | State::Established | State::DreqReceived => (),
            State::Idle | State::Queued(_) => (),
        }
    }
}
