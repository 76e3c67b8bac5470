//! The responder of UD: each packet is a message, from any sender with the right Q_Key (IBTA 9.8.3.2).

use super::opcode_order::Request;
use super::page_fault::Stop;
use super::{Fatal, Responder, Waits};
use crate::completion::vendor;
use crate::config::Config;
use crate::host::GRH_LEN;
use crate::recv_queue::{Received, RecvQueue};
use crate::{DropCause, Dropped, Handled, Host, Network, Status, WcOpcode};
use weir_wire::{Deth, ImmDt, Packet};

impl Responder {
    /// Handles a datagram with its network header. Without a receive work request it is dropped without a reply, as is
    /// a datagram that is longer than its receive (IBTA 9.9.3.1, class D). A receive from a shared queue was taken for
    /// that datagram and cannot be returned: it completes with a local length error, and the QP continues (class E).
    #[inline]
    pub fn handle_datagram<H: Host>(
        &mut self,
        packet: &Packet<'_>,
        network_header: &[u8; GRH_LEN],
        config: &Config,
        queue: &mut RecvQueue,
        host: &mut H,
    ) -> Result<Handled, Fatal> {
        self.established = true;
        if self.waits != Waits::No {
            return Ok(Handled::Held);
        }
        let headers = &packet.headers;
        let Some(deth) = headers.get::<Deth>() else { return Ok(Handled::Done) };
        let (sent, own) = (deth.qkey.get(), config.attr.qkey);
        let dropped =
            |why| Dropped { why, sender: deth.src_qp.get() & 0xff_ffff, network_header: Some(network_header) };
        if sent != own {
            host.dropped(&dropped(DropCause::QKey { sent, own }));
            return Ok(Handled::Done);
        }
        let length = GRH_LEN + packet.payload.len();
        if packet.payload.len() > config.mtu {
            host.dropped(&dropped(DropCause::AboveMtu { length: packet.payload.len(), mtu: config.mtu }));
            return Ok(Handled::Done);
        }
        if !queue.ready(host) {
            host.dropped(&dropped(DropCause::NoReceive));
            return Ok(Handled::Done);
        }
        let room = queue.room();
        if length as u64 > room {
            if queue.is_shared() {
                queue.fail(host, config, Status::LocalLength, vendor::TOO_LONG);
            }
            host.dropped(&dropped(DropCause::TooLong { room }));
            return Ok(Handled::Done);
        }
        let scattered = host.scatter(queue.sges(), 0, network_header).and_then(|()| match packet.payload {
            [] => Ok(()),
            payload => host.scatter(queue.sges(), GRH_LEN as u64, payload),
        });
        match scattered.map_err(|denied| Stop::receiving(denied).unless_odp(Request::Send, queue, config)) {
            Ok(()) => {}
            Err(Stop::Fatal(fatal)) => return Err(fatal),
            Err(_) => return Ok(self.hold_unreliable(config)),
        }
        let received = Received {
            opcode: WcOpcode::Recv,
            byte_len: length as u32,
            imm: headers.get::<ImmDt>().map(|imm| imm.imm.get().to_be()),
            invalidated_rkey: None,
            solicited: headers.bth.solicited,
            from: Some((deth.src_qp.get() & 0xff_ffff, network_of(network_header))),
        };
        queue.complete(host, config, received);
        Ok(Handled::Done)
    }
}

/// Which header it is, by its version: an IPv4 header has 20 unused bytes before it.
fn network_of(header: &[u8; GRH_LEN]) -> Network {
    if header[0] >> 4 == 6 { Network::Ipv6 } else { Network::Ipv4 }
}
