//! Work requests that send no packet: each is executed once in its turn, and retired in order.

use super::{Failure, Hold, Requester};
use crate::completion::vendor;
use crate::config::Config;
use crate::send_queue::{Kind, SendQueue, SendSlot};
use crate::{Host, SendOp, Status};

impl Requester {
    /// Executes the work request at `next`, unless it was executed before going back, and moves past it.
    /// A failed bind or invalidation is a local error (IBTA 10.6.7, 10.6.5).
    #[cold]
    #[inline(never)]
    pub(super) fn execute<H: Host>(&mut self, slot: &SendSlot, config: &Config, host: &mut H) -> Result<(), Failure> {
        if self.next.wr == self.begun {
            let (result, status) = match slot.op {
                SendOp::BindWindow(bind) => (host.bind_window(&bind), Status::MwBind),
                SendOp::LocalInvalidate { key } => (host.invalidate_local(key), Status::LocalQpOperation),
                _ => (Ok(()), Status::Success),
            };
            result.map_err(|denied| Failure { status, vendor: vendor::denied(denied) })?;
            self.begun = self.begun.wrapping_add(1);
            self.executed += 1;
            self.hold = Hold::No;
        }
        self.next.advance(slot, 0, config);
        Ok(())
    }

    /// Retires the executed local work requests before which everything is complete. True: another poll may make
    /// progress where the last poll had to wait for these.
    #[inline]
    pub fn retire_local<H: Host>(&mut self, queue: &mut SendQueue, config: &Config, host: &mut H) -> bool {
        self.executed > 0 && self.retire_executed(queue, config, host)
    }

    /// Work requests complete in the order of their posting, local ones too (IBTA 9.5).
    #[cold]
    #[inline(never)]
    fn retire_executed<H: Host>(&mut self, queue: &mut SendQueue, config: &Config, host: &mut H) -> bool {
        let mut any = false;
        while self.executed > 0 && self.una.packet == 0 && queue.slot(self.una.wr).kind == Kind::Local {
            // After going back, `next` may be at the same work request.
            if self.next.wr == self.una.wr {
                self.next.advance(queue.slot(self.una.wr), 0, config);
            }
            self.una.advance(queue.slot(self.una.wr), 0, config);
            self.executed -= 1;
            queue.retire(host, config, Status::Success, 0);
            any = true;
        }
        any
    }
}
