//! Arriving packets: which of the state machines takes each, and in which QP states.

use super::Qp;
use crate::config::Class;
use crate::{Handled, Host, Instant, QpEvent, QpState};
use weir_wire::Packet;

impl Qp {
    /// Takes a packet with a correct ICRC and this QP as its destination. Opcodes of another service are dropped
    /// (IBTA 9.6).
    #[inline]
    pub fn handle_packet<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> Handled {
        let opcode = packet.headers.bth.opcode;
        if opcode.service() != self.config.init.service {
            return Handled::Done;
        }
        if !self.config.is_reliable() {
            return self.handle_unreliable(packet, host);
        }
        if opcode.is_response() {
            return self.handle_response(now, packet, host);
        }
        if self.config.class() != Class::XrcInitiator {
            return self.handle_request(now, packet, host);
        }
        Handled::Done
    }

    /// Takes a packet that may come before earlier ones of its message, as over several links: if it does and is a frame
    /// within a WRITE or a READ's response, its payload is placed. False: pass it to [`Qp::handle_packet`].
    #[inline]
    pub fn place_early<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> bool {
        let opcode = packet.headers.bth.opcode;
        let (starts, ends) = (opcode.starts_message(), opcode.ends_message());
        if starts || ends || packet.placement.is_none() || opcode.service() != self.config.init.service {
            return false;
        }
        let Qp { config, send_queue, requester, completer, responder, .. } = self;
        match (config.class(), config.state) {
            (Class::Rc, QpState::Rts | QpState::Sqd) if opcode.is_response() => {
                completer.place_early(now, packet, config, requester, send_queue, host)
            }
            (Class::Rc, QpState::Rtr | QpState::Rts | QpState::Sqd) => responder.place_early(packet, config, host),
            _ => false,
        }
    }

    fn handle_request<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> Handled {
        match self.config.state {
            // Requests are dropped before RTR (IBTA 10.3.1).
            QpState::Reset | QpState::Init => return Handled::Done,
            QpState::Error => {
                self.responder.refuse_again(packet.headers.bth.psn);
                return Handled::Done;
            }
            QpState::Rtr if !self.responder.is_established() => host.event(QpEvent::CommunicationEstablished),
            _ => {}
        }
        if self.recv_queue.is_tagged() {
            self.recv_queue.allow_rendezvous(self.send_queue.has_room_for_rendezvous());
        }
        match self.responder.handle(now, packet, &self.config, &mut self.recv_queue, host) {
            Ok(handled) => {
                if self.recv_queue.is_tagged() {
                    self.begin_rendezvous();
                }
                handled
            }
            Err(fatal) => {
                self.fail_response(fatal, host);
                Handled::Done
            }
        }
    }

    /// Handles a response. States in which the QP sends no requests drop it (IBTA 10.3.1).
    fn handle_response<H: Host>(&mut self, now: Instant, packet: &Packet<'_>, host: &mut H) -> Handled {
        if !matches!(self.config.state, QpState::Rts | QpState::Sqd) {
            return Handled::Done;
        }
        let Qp { config, send_queue, requester, completer, .. } = self;
        match completer.handle(now, packet, config, requester, send_queue, host) {
            Ok(handled) => {
                if self.draining {
                    self.check_drained(host);
                }
                handled
            }
            Err(failure) => {
                self.fail(failure, host);
                Handled::Done
            }
        }
    }
}
