//! The responder of UC: no answers, and what goes wrong costs one message (IBTA 9.8.2.2).

use super::opcode_order::{self, Message};
use super::page_fault::{Stop, Waits};
use super::sequence::Place;
use super::{Fatal, Responder, Verdict};
use crate::config::Config;
use crate::recv_queue::RecvQueue;
use crate::{Handled, Host, Status};
use weir_wire::{Packet, Psn};

impl Responder {
    /// Takes a request. Where a packet is missing, the rest of its message is dropped, and its receive serves the next
    /// one. An error is that of the own side; all others are dropped without a word.
    #[inline]
    pub fn handle_unreliable<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Handled, Fatal> {
        self.established = true;
        if self.waits != Waits::No {
            return Ok(Handled::Held);
        }
        let bth = &packet.headers.bth;
        let starts = bth.opcode.starts_message();
        // A message begins with FIRST or ONLY, whatever was under way and whatever its PSN.
        if starts || bth.psn != self.expected.psn() {
            self.message = Message::None;
        }
        self.expected = Place::first(bth.psn.next());
        let known = bth.opcode.operation().and_then(opcode_order::lookup);
        let allowed = known.filter(|(request, access)| {
            opcode_order::follows(&self.message, *request, starts) && config.attr.access_flags.contains(*access)
        });
        let Some((request, _)) = allowed else {
            self.message = Message::None;
            return Ok(Handled::Done);
        };
        match self.execute(request, packet, config, queue, host) {
            Ok(Verdict::Executed) => {}
            Err(Stop::PageFault) => return Ok(self.missing_page(bth.psn, config)),
            // Only our own receive's memory is our own error; a message that does not fit is its sender's.
            Err(Stop::Fatal(fatal)) if matches!(fatal.receive, Some((Status::LocalProtection, _))) => {
                return Err(fatal);
            }
            Err(Stop::Fatal(Fatal { receive: Some((status, vendor)), .. })) if queue.is_shared() => {
                // IBTA 9.9.3.1, class E: a receive that was taken from a shared queue cannot go back.
                queue.fail(host, config, status, vendor);
                self.message = Message::None;
            }
            Ok(Verdict::NotReady | Verdict::Answering { .. }) | Err(_) => self.message = Message::None,
        }
        Ok(Handled::Done)
    }

    /// A packet needs a page that is not there: it comes again, or its message is lost.
    #[cold]
    fn missing_page(&mut self, psn: Psn, config: &Config) -> Handled {
        let handled = self.hold_unreliable(config);
        match handled {
            Handled::Held => self.expected = Place::first(psn),
            Handled::Done => self.message = Message::None,
        }
        handled
    }
}
