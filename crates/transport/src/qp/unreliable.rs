//! UC, UD and raw queue pairs: the differences from a reliable queue pair.

use super::Qp;
use crate::ending::Ending;
use crate::host::GRH_LEN;
use crate::requester::Failure;
use crate::responder::Fatal;
use crate::{Egress, Handled, Host, Instant, Limits, Mtu, Progress, QpEvent, QpState};
use weir_wire::{Bth, Operation, Packet, Service};

/// Without ACKs nothing would reopen a window: only the egress limits the sender.
const UNLIMITED: Limits = Limits { request_bytes: usize::MAX, read_bytes: usize::MAX };

impl Qp {
    /// UD: sets the maximum payload of one datagram, which follows from the port's MTU. Call it before any post.
    pub fn set_datagram_mtu(&mut self, mtu: Mtu) {
        self.config.datagram_mtu = mtu;
        self.config.derive();
    }

    /// UD: takes a packet with a correct ICRC and this QP as its destination, with the network header that precedes
    /// its payload in the receive buffer (IBTA 11.4.1.2).
    pub fn handle_datagram<H: Host>(
        &mut self,
        _now: Instant,
        packet: &Packet<'_>,
        network_header: &[u8; GRH_LEN],
        host: &mut H,
    ) -> Handled {
        let listens = matches!(self.config.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let is_ud = self.config.init.service == Service::Ud && packet.headers.bth.opcode.service() == Service::Ud;
        if !listens || !is_ud {
            return Handled::Done;
        }
        let Qp { config, recv_queue, responder, .. } = self;
        match responder.handle_datagram(packet, network_header, config, recv_queue, host) {
            Ok(handled) => handled,
            Err(fatal) => self.fail_receive(fatal, host),
        }
    }

    /// Raw: sets the bytes of the longest Ethernet frame that may be sent. Call it before any post.
    pub fn set_ethernet_limit(&mut self, bytes: usize) {
        self.config.ethernet_limit = bytes;
        self.config.derive();
    }

    /// Raw: takes an Ethernet frame for this QP. Before RTR and in the error state it is dropped.
    pub fn handle_ethernet<H: Host>(&mut self, frame: &[u8], host: &mut H) {
        let listens = matches!(self.config.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if !listens || self.config.init.service != Service::Raw {
            return;
        }
        let Qp { config, recv_queue, responder, .. } = self;
        if let Err(fatal) = responder.handle_ethernet(frame, config, recv_queue, host) {
            self.fail_receive(fatal, host);
        }
    }

    /// UC: handles a request. Before RTR and in the error state it is dropped (IBTA 10.3.1).
    #[inline(never)]
    pub(super) fn handle_unreliable<H: Host>(&mut self, packet: &Packet<'_>, host: &mut H) -> Handled {
        // A UD datagram arrives through `handle_datagram`, with its network header.
        if self.config.init.service != Service::Uc {
            return Handled::Done;
        }
        match self.config.state {
            QpState::Reset | QpState::Init | QpState::Error => return Handled::Done,
            QpState::Rtr if !self.responder.is_established() => host.event(QpEvent::CommunicationEstablished),
            _ => {}
        }
        let Qp { config, recv_queue, responder, .. } = self;
        match responder.handle_unreliable(packet, config, recv_queue, host) {
            Ok(handled) => handled,
            Err(fatal) => self.fail_receive(fatal, host),
        }
    }

    /// UC: returns whether there is a receive for the next packet; `None` if the packet takes none, or is dropped in any
    /// case. Without a receive its message would be dropped, so the caller may pass the packet in later. A receive may
    /// be taken from the shared receive queue for it.
    pub fn has_receive_for<H: Host>(&mut self, bth: &Bth, host: &mut H) -> Option<bool> {
        use Operation as O;
        let takes = matches!(
            bth.opcode.operation(),
            Some(O::SendFirst | O::SendOnly | O::SendOnlyImm | O::WriteLastImm | O::WriteOnlyImm)
        );
        let listens = matches!(self.config.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let uc = self.config.init.service == Service::Uc && bth.opcode.service() == Service::Uc;
        let asks = takes && listens && uc && !self.responder.waits_for_page();
        (asks && self.responder.admits(bth, &self.config)).then(|| self.recv_queue.ready(host))
    }

    /// Sends requests; each is complete when its last packet has left.
    #[inline(never)]
    pub(super) fn send_unreliable<H: Host, E: Egress>(
        &mut self,
        now: Instant,
        host: &mut H,
        egress: &mut E,
    ) -> Progress {
        loop {
            let Qp { config, send_queue, requester, .. } = self;
            let polled = requester.poll(now, UNLIMITED, config, send_queue, host, egress);
            let again = requester.retire_sent(send_queue, config, host);
            match polled {
                Ok(_) if again => continue,
                Ok((progress, _)) => {
                    if self.draining {
                        self.check_drained(host);
                    }
                    return progress;
                }
                Err(failure) => {
                    self.fail_send(failure, host);
                    return Progress::Idle;
                }
            }
        }
    }

    /// A send failed locally: it completes with that error, later sends are flushed, and the send queue stops until a
    /// modify to RTS. Receiving continues meanwhile (IBTA 10.3.1).
    fn fail_send<H: Host>(&mut self, failure: Failure, host: &mut H) {
        self.send_queue.retire(host, &self.config, failure.status, failure.vendor);
        self.ending = Some(Ending::requester(failure, &self.requester, &self.config));
        self.config.state = QpState::Sqe;
        self.draining = false;
        self.requester.halt();
        self.flush_sends(host);
    }

    /// A receive failed locally: the peer gets no NAK (IBTA 9.9.3.1, class A).
    fn fail_receive<H: Host>(&mut self, fatal: Fatal, host: &mut H) -> Handled {
        if let Some((status, vendor)) = fatal.receive {
            self.recv_queue.fail(host, &self.config, status, vendor);
        }
        let ending = Ending::responder(fatal, self.responder.expected());
        let status = fatal.receive.map_or(ending.status, |(status, _)| status);
        self.ending = Some(Ending { status, ..ending });
        self.halt(None);
        self.flush(host);
        Handled::Done
    }
}
