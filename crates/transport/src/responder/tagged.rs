//! SENDs to a TM SRQ. Their headers are in the payload: the first packet decides whether the message matches a tag.
//!
//! A matched eager message is stored without its header. A matched rendezvous request makes the adapter fetch the data
//! by a READ (`qp::rendezvous`), unless the tag's buffer is too short or too many rendezvous are under way: then the
//! program completes it. Every other message is stored as it is, in an ordinary receive of the queue.

use super::execute::check_packet_length;
use super::opcode_order::Message;
use super::page_fault::Stop;
use super::{Fatal, Responder, Verdict};
use crate::completion::vendor;
use crate::config::Config;
use crate::recv_queue::{Received, RecvQueue, Report};
use crate::send_queue::MAX_MESSAGE;
use crate::{Host, Status, WcOpcode};
use weir_wire::tag::{RENDEZVOUS_LEN, Rvh, TagMessage};
use weir_wire::{Ieth, ImmDt, Packet};

impl Responder {
    /// As `send`, for a QP with a TM SRQ: without a receive the peer gets an RNR NAK (IBTA 9.7.5.2.8), and a message longer
    /// than its receive is an invalid request (IBTA 9.7.4.1.6).
    #[cold]
    #[inline(never)]
    pub(super) fn send_tagged<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Verdict, Stop> {
        let (headers, payload) = (&packet.headers, packet.payload);
        let ends = headers.bth.opcode.ends_message();
        check_packet_length(packet, config)?;
        let (received, total) = match self.message {
            Message::Send { received, total } => (received, total),
            _ => (0, None),
        };
        let begins = received == 0;
        let bad = || Fatal::invalid().because("a rendezvous request without complete headers, or a too long one");
        if begins && queue.is_empty() {
            let message = TagMessage::read(payload, ends).map_err(|_| bad())?;
            if !queue.take_tagged(message, host) {
                return Ok(Verdict::NotReady);
            }
        }
        let (after, total) = self.after_packet(packet, received, total, config)?;
        let header = queue.header_len();
        let stored = &payload[header.saturating_sub(received as usize).min(payload.len())..];
        let rendezvous = queue.rendezvous();
        if rendezvous.is_some() {
            // A peer that sends another packet than before.
            if !begins || !ends {
                return Err(bad().into());
            }
        } else {
            if after.saturating_sub(header as u64) > queue.room() {
                return Err(Fatal::too_long().into());
            }
            if !stored.is_empty() {
                let offset = received.saturating_sub(header as u64);
                host.scatter(queue.sges(), offset, stored).map_err(Stop::receiving)?;
            }
        }
        let mut done = Received {
            opcode: WcOpcode::TagRecv,
            byte_len: after.saturating_sub(header as u64) as u32,
            imm: None,
            invalidated_rkey: None,
            solicited: false,
            from: None,
        };
        if !ends {
            if begins && queue.is_matched() {
                queue.report(host, config, done, Report::Match);
            }
            self.message = Message::Send { received: after, total };
            return Ok(Verdict::Executed);
        }
        let incomplete = match rendezvous.map(|rvh| way(&rvh, queue)) {
            Some(Way::Later) => return Ok(Verdict::NotReady),
            Some(Way::Program) => {
                store_headers(payload, queue, host)?;
                true
            }
            Some(Way::Adapter) | None => false,
        };
        done.invalidated_rkey = self.invalidate(headers.get::<Ieth>().map(|ieth| ieth.rkey.get()), host)?;
        done.imm = headers.get::<ImmDt>().map(|imm| imm.imm.get().to_be());
        done.solicited = headers.bth.solicited;
        self.end_message();
        match (rendezvous, incomplete) {
            (_, true) => queue.report(host, config, done, Report::Incomplete),
            (Some(_), false) => {
                queue.report(host, config, Received { solicited: false, byte_len: 0, ..done }, Report::Match);
                queue.begin_rendezvous(done.solicited);
            }
            (None, false) => queue.report(host, config, done, Report::Whole { begun: !begins }),
        }
        Ok(Verdict::Executed)
    }
}

/// The side that does a rendezvous.
#[derive(Clone, Copy)]
enum Way {
    Adapter,
    /// The program finds the headers in the tag's buffer.
    Program,
    /// The adapter, when an earlier one has ended: the buffer has room for the data, but not for the headers.
    Later,
}

/// The adapter does it if the data fits into the tag's buffer and its requests into the send queue. It does not wait for
/// room there: a peer that waits in the same way would not acknowledge what makes room. No READ is longer than 2^31 bytes
/// (IBTA C9-94).
fn way(rvh: &Rvh, queue: &RecvQueue) -> Way {
    let fits = u64::from(rvh.len) <= queue.room().min(MAX_MESSAGE);
    if fits && queue.allows_rendezvous() {
        Way::Adapter
    } else if fits && queue.room() < RENDEZVOUS_LEN as u64 {
        Way::Later
    } else {
        Way::Program
    }
}

/// The program does the rendezvous: it finds the headers in the tag's buffer. A buffer that is too short even for the
/// headers is a length error (IBTA 9.7.4.1.6).
fn store_headers<H: Host>(payload: &[u8], queue: &RecvQueue, host: &mut H) -> Result<(), Stop> {
    if queue.room() < RENDEZVOUS_LEN as u64 {
        return Err(Fatal::too_long().into());
    }
    let headers = payload.get(..RENDEZVOUS_LEN).ok_or(Fatal::invalid())?;
    host.scatter(queue.sges(), 0, headers).map_err(Stop::receiving)
}

impl Fatal {
    /// The message is longer than its receive (IBTA 9.7.4.1.6).
    pub(super) fn too_long() -> Fatal {
        let why = "the message is longer than its receive";
        Fatal::invalid().receiving(Status::LocalLength, vendor::TOO_LONG).because(why)
    }
}
