//! The responder of UC: it sends nothing, and an error costs one message (IBTA 9.8.2.2).

use super::opcode_order::{self, Message, Request};
use super::page_fault::Stop;
use super::sequence::PsnPosition;
use super::{Fatal, Responder, Verdict, Waits};
use crate::config::Config;
use crate::recv_queue::RecvQueue;
use crate::{DropCause, Dropped, Handled, Host, Status};
use weir_wire::{Bth, Packet, Psn};

impl Responder {
    /// Handles a request. If a packet is missing, the rest of its message is dropped, and its receive serves the next
    /// message (IBTA 9.8.2.2). `Err` is a local error; requests with other errors are dropped without a reply.
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
        let admitted = self.admitted(bth, config);
        if admitted.is_none() || !self.continues(bth) {
            self.message = Message::None;
        }
        self.expected = PsnPosition::first(bth.psn.next());
        let Some(request) = admitted else {
            if bth.opcode.starts_message() {
                drop_message(DropCause::Refused, config, host);
            }
            return Ok(Handled::Done);
        };
        let executed = self.execute(request, packet, config, queue, host);
        match executed.map_err(|stop| stop.unless_odp(request, queue, config)) {
            Ok(Verdict::Executed) => {}
            Err(Stop::PageFault) => return Ok(self.missing_page(bth.psn, config)),
            // An error of the local receive's memory is local; a message that does not fit is the sender's error.
            Err(Stop::Fatal(fatal)) if matches!(fatal.receive, Some((Status::LocalProtection, _))) => {
                return Err(fatal);
            }
            Err(Stop::Fatal(Fatal { receive: Some((status, vendor)), .. })) => {
                drop_message(DropCause::TooLong { room: queue.room() }, config, host);
                if queue.is_shared() {
                    // A receive that was taken from a shared queue cannot be returned (IBTA 9.9.3.1, class E).
                    queue.fail(host, config, status, vendor);
                }
                self.message = Message::None;
            }
            Ok(Verdict::NotReady) => {
                drop_message(DropCause::NoReceive, config, host);
                self.message = Message::None;
            }
            Ok(Verdict::Responding { .. }) | Err(_) => {
                drop_message(DropCause::Refused, config, host);
                self.message = Message::None;
            }
        }
        Ok(Handled::Done)
    }

    /// Whether the next packet is not dropped: its message has lost no packet, and the QP allows it.
    pub fn admits(&self, bth: &Bth, config: &Config) -> bool {
        self.admitted(bth, config).is_some()
    }

    fn admitted(&self, bth: &Bth, config: &Config) -> Option<Request> {
        let (request, access) = bth.opcode.operation().and_then(opcode_order::lookup)?;
        let message = if self.continues(bth) { &self.message } else { &Message::None };
        let follows = opcode_order::follows(message, request, bth.opcode.starts_message());
        (follows && config.attr.access_flags.contains(access)).then_some(request)
    }

    /// Whether the next packet may belong to the current message: FIRST or ONLY begins a new one, regardless of an
    /// unfinished message and of the PSN.
    fn continues(&self, bth: &Bth) -> bool {
        !bth.opcode.starts_message() && bth.psn == self.expected.psn()
    }

    /// A packet needs a missing page: either the caller passes it in again, or its message is lost
    /// as if the packet were (IBTA 9.8.2.2).
    #[cold]
    fn missing_page(&mut self, psn: Psn, config: &Config) -> Handled {
        let handled = self.hold_unreliable(config);
        match handled {
            Handled::Held => self.expected = PsnPosition::first(psn),
            Handled::Done | Handled::AfterReads | Handled::Dammed => self.message = Message::None,
        }
        handled
    }
}

#[cold]
fn drop_message<H: Host>(why: DropCause, config: &Config, host: &mut H) {
    host.dropped(&Dropped { why, sender: config.attr.dest_qp_num, network_header: None });
}
