//! SENDs to a TM SRQ. Their headers are in the payload: the first packet decides whether the message matches a tag.
//!
//! A matched eager message is stored without its header. A matched rendezvous request makes the adapter fetch the data
//! by a READ (`qp::rendezvous`), unless the tag's buffer is too short: then the program completes the rendezvous. Every
//! other message is stored as it is, in an ordinary receive of the queue.

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
        if begins && queue.is_empty() {
            let bad = || Fatal::invalid().because("a rendezvous request without complete headers, or a too long one");
            let message = TagMessage::read(payload, ends).map_err(|_| bad())?;
            if !queue.take_tagged(message, host) {
                return Ok(Verdict::NotReady);
            }
        }
        let (after, total) = self.after_packet(packet, received, total, config)?;
        let header = queue.header_len();
        let stored = &payload[header.saturating_sub(received as usize).min(payload.len())..];
        let rendezvous = queue.rendezvous();
        if rendezvous.is_none() {
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
        let incomplete = match rendezvous {
            Some(rvh) if !fits(&rvh, queue) => Some(store_headers(payload, queue, host)?),
            _ => None,
        };
        done.invalidated_rkey = self.invalidate(headers.get::<Ieth>().map(|ieth| ieth.rkey.get()), host)?;
        done.imm = headers.get::<ImmDt>().map(|imm| imm.imm.get().to_be());
        done.solicited = headers.bth.solicited;
        self.end_message();
        match (rendezvous, incomplete) {
            (_, Some(status)) => queue.report(host, config, done, Report::Incomplete(status)),
            (Some(_), None) => {
                queue.report(host, config, Received { solicited: false, byte_len: 0, ..done }, Report::Match);
                queue.begin_rendezvous(done.solicited);
            }
            (None, None) => queue.report(host, config, done, Report::Whole { begun: !begins }),
        }
        Ok(Verdict::Executed)
    }
}

/// Whether the data of a rendezvous fits into the tag's buffer. No READ is longer than 2^31 bytes (IBTA C9-94).
fn fits(rvh: &Rvh, queue: &RecvQueue) -> bool {
    u64::from(rvh.len) <= queue.room().min(MAX_MESSAGE)
}

/// The program does the rendezvous: it finds the headers in the tag's buffer. Returns the status of its completion. A
/// buffer that is too short even for the headers stays unchanged: a length error (IBTA 9.7.4.1.6).
fn store_headers<H: Host>(payload: &[u8], queue: &RecvQueue, host: &mut H) -> Result<Status, Stop> {
    let headers = payload.get(..RENDEZVOUS_LEN).ok_or(Fatal::invalid())?;
    if queue.room() < RENDEZVOUS_LEN as u64 {
        return Ok(Status::LocalLength);
    }
    host.scatter(queue.sges(), 0, headers).map_err(Stop::receiving)?;
    Ok(Status::RendezvousIncomplete)
}

impl Fatal {
    /// The message is longer than its receive (IBTA 9.7.4.1.6).
    pub(super) fn too_long() -> Fatal {
        let why = "the message is longer than its receive";
        Fatal::invalid().receiving(Status::LocalLength, vendor::TOO_LONG).because(why)
    }
}
