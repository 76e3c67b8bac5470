//! The requester of services without acknowledgements: a message is complete when it has left (IBTA 9.8.2.1, 9.8.3.1).

use super::{Hold, Requester, RequesterState};
use crate::config::Config;
use crate::send_queue::SendQueue;
use crate::{Host, Status};

impl Requester {
    /// Retires all work requests after their last packet has left (IBTA 9.8.2.1, 9.8.3.1). True: another poll may make
    /// progress where the last poll had to wait for their completions.
    pub fn retire_sent<H: Host>(&mut self, queue: &mut SendQueue, config: &Config, host: &mut H) -> bool {
        let waited = self.hold == Hold::Stalled && self.una.wr != self.next.wr;
        while self.una.wr != self.next.wr {
            queue.retire(host, config, Status::Success, 0);
            self.una.wr = self.una.wr.wrapping_add(1);
        }
        self.executed = 0;
        self.una = self.next;
        self.unanswered_since = None;
        waited
    }

    /// Continues after an error has emptied the send queue: SQE to RTS (IBTA 10.3.1).
    pub fn resume(&mut self, queue: &SendQueue) {
        self.next.skip_to(queue.tail());
        self.una = self.next;
        self.begun = queue.tail();
        self.hold = Hold::No;
        self.state = RequesterState::Idle;
    }
}
