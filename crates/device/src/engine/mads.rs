//! Management datagrams (MADs): datagrams between the GSI QPs, number 1, of two adapters (IBTA 13.5.1). They go to port
//! 4791 always, also between Weir processes, and the holder of that port hands them over to the process that they are
//! for.

use crate::engine::{Engine, OUTBOX_GROUPS, own_port};
use crate::relay::held_requests::HeldRequests;
use crate::relay::receiver::Receiver;
use crate::shared::route::{Route, needs_scope};
use weir_link::{Arrival, Group};
use weir_transport::{Instant, Psn};
use weir_wire::cm::Message;
use weir_wire::icrc::{self, Verdict};
use weir_wire::ip::Envelope;
use weir_wire::mad::{self, LEN, Mad, MadHeader};
use weir_wire::{Bth, DEFAULT_PKEY, Deth, Headers, ICRC_LEN, Opcode, Operation, Packet, ROCE_PORT, Service};

/// The packet of a MAD.
pub const MAD_OPCODE: Opcode = Opcode::new(Service::Ud, Operation::SendOnly);
/// Bytes of a BTH and a DETH.
pub const MAD_HEADERS: usize = 12 + 8;

impl Engine {
    /// Sends a MAD from the GSI QP.
    pub fn send_mad(&mut self, route: &Route, psn: Psn, mad: &Mad) {
        if self.outbox.len + MAD_HEADERS + LEN + ICRC_LEN > self.outbox.bytes.len()
            || self.outbox.groups.len() >= OUTBOX_GROUPS
        {
            self.flush();
        }
        let to = route.to(ROCE_PORT);
        let start = self.outbox.len;
        let envelope = Envelope {
            src: route.local,
            dst: to.ip(),
            src_port: own_port(&self.slot),
            dst_port: ROCE_PORT,
            ip_id: 0,
            dont_fragment: true,
        };
        let len = emit(psn, mad, &envelope, &mut self.outbox.bytes[start..]);
        self.outbox.len += len;
        let group = Group::new(to, route.local, route.ifindex);
        self.outbox.groups.push(Group { start, len, segment: len, ..group });
        self.flush();
    }

    /// Hands a datagram to the GSI QP over to the process that it is for, which checks it again: it need not trust this
    /// one. If there is no such process, its sender gets the answer here: the process may have ended.
    pub(super) fn hand_over_mad(&mut self, arrival: &Arrival, datagram: &[u8], now: Instant) {
        let Some(holder) = &mut self.foreign.holder else { return };
        let Some(mad) = checked(arrival, datagram) else { return };
        let Some(to) = Receiver::of_mad(mad) else { return };
        // A REJ of a sender that has had no answer to its request goes where the request went.
        if to.is_unknown() {
            let (from, id) = (arrival.from.ip(), local_id(mad));
            if matches!(Message::parse(mad), Ok((_, Message::Rej(_)))) {
                holder.held_requests.give_up(from, id);
            }
            if let Some(service) = holder.request_routes.find(from, id) {
                self.reaches(Receiver::Service(service), arrival, datagram, now);
                return;
            }
        }
        if self.reaches(to, arrival, datagram, now) {
            return;
        }
        if let Receiver::Service(service) = to
            && let Some(requests) = self.held_requests()
            && requests.hold(service, arrival, datagram, now)
        {
            return;
        }
        self.refuse(arrival, mad);
    }

    /// Hands requests over for which nothing listened when they came; refuses those that have waited for long enough.
    pub(super) fn retry_held_requests(&mut self, now: Instant) {
        while let Some(held) = self.held_requests().and_then(|requests| requests.take_due(now)) {
            if !self.reaches(Receiver::Service(held.service), &held.arrival, &held.datagram, now)
                && let Some(requests) = self.held_requests()
                && let Some(over) = requests.put_back(held, now)
                && let Some(mad) = checked(&over.arrival, &over.datagram)
            {
                self.refuse(&over.arrival, mad);
            }
        }
    }

    fn held_requests(&mut self) -> Option<&mut HeldRequests> {
        self.foreign.holder.as_mut().map(|holder| &mut holder.held_requests)
    }

    /// Hands a datagram over. Returns whether there is a process that it is for, or may be.
    fn reaches(&mut self, to: Receiver, arrival: &Arrival, datagram: &[u8], now: Instant) -> bool {
        let Some(holder) = &mut self.foreign.holder else { return false };
        let there = holder.hand_over(to, arrival, datagram);
        if there && let Receiver::Service(service) = to {
            holder.held_requests.note_use(service, now);
            if let Some(mad) = datagram.get(MAD_HEADERS..MAD_HEADERS + LEN).and_then(|bytes| bytes.try_into().ok()) {
                holder.request_routes.note(arrival.from.ip(), local_id(mad), service);
            }
        }
        // Without a link the holder may be out of descriptors; the process may live.
        if there && matches!(to, Receiver::Communication(_)) && holder.may_receive(to) {
            // The process may have ended since the last message.
            holder.flush(now);
            return holder.may_receive(to);
        }
        there
    }

    /// Answers a message for which there is no process.
    fn refuse(&mut self, arrival: &Arrival, mad: &Mad) {
        let Ok((header, message)) = Message::parse(mad) else { return };
        let Some(refusal) = message.refusal() else { return };
        let refusal = refusal.emit(header.tid.get(), 0);
        let ifindex = if needs_scope(arrival.from.ip()) { arrival.ifindex } else { 0 };
        let route = Route { local: arrival.to, remote: arrival.from.ip(), ifindex, hops: 0 };
        self.send_mad(&route, Psn::new(0), &refusal);
    }
}

/// The communication id of a MAD's sender, in messages that have it.
fn local_id(mad: &Mad) -> u32 {
    u32::from_be_bytes(*mad[size_of::<MadHeader>()..].first_chunk().expect("a MAD is longer than its header"))
}

/// Writes the packet of a MAD, with its ICRC; returns its length.
pub fn emit(psn: Psn, mad: &Mad, envelope: &Envelope, out: &mut [u8]) -> usize {
    let mut headers = Headers::new(Bth::new(MAD_OPCODE, mad::GSI_QPN, psn));
    headers.put(Deth { qkey: mad::GSI_QKEY.into(), src_qp: mad::GSI_QPN.into() });
    let len = headers.emit(out);
    let body = len + LEN;
    out[len..body].copy_from_slice(mad);
    let icrc = icrc::compute(envelope, &out[..body]);
    out[body..body + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    body + ICRC_LEN
}

/// The MAD in a packet to QP 1, if the packet is right: its ICRC, its partition, its Q_Key, its length.
pub fn checked<'a>(arrival: &Arrival, datagram: &'a [u8]) -> Option<&'a Mad> {
    let packet = Packet::parse(datagram).ok()?;
    let deth = packet.headers.get::<Deth>()?;
    let right = packet.headers.bth.opcode == MAD_OPCODE
        && packet.headers.bth.dest_qp == mad::GSI_QPN
        && packet.headers.bth.is_in_partition_of(DEFAULT_PKEY)
        && deth.qkey.get() == mad::GSI_QKEY;
    if !right {
        return None;
    }
    let envelope = |dont_fragment| Envelope {
        src: arrival.from.ip(),
        dst: arrival.to,
        src_port: arrival.from.port(),
        dst_port: arrival.to_port,
        ip_id: 0,
        dont_fragment,
    };
    // A foreign adapter may leave Don't Fragment clear.
    let intact = [true, false].into_iter().any(|flag| icrc::verify(&envelope(flag), datagram) != Verdict::Bad);
    if intact { packet.payload.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Icrc;
    use crate::engine::testing::Rig;
    use crate::relay::incoming::Incoming;
    use weir_wire::cm::{Rej, RejectReason, Req, ServiceId};

    const FROM_PORT: u16 = 20_481;

    /// The packet of a MAD, as it comes to port 4791.
    fn packet(arrival: &Arrival, mad: &Mad) -> Vec<u8> {
        let envelope = Envelope {
            src: arrival.from.ip(),
            dst: arrival.to,
            src_port: arrival.from.port(),
            dst_port: ROCE_PORT,
            ip_id: 0,
            dont_fragment: true,
        };
        let mut out = vec![0; MAD_HEADERS + LEN + ICRC_LEN];
        emit(Psn::new(77), mad, &envelope, &mut out);
        out
    }

    #[test]
    fn only_a_right_packet_to_the_gsi_qp_is_a_mad() {
        let mut arrival = Arrival::new(([10, 0, 0, 2], FROM_PORT).into(), ROCE_PORT, 0, 0);
        arrival.to = [10, 0, 0, 1].into();
        let mut mad = [0; LEN];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        let right = packet(&arrival, &mad);
        assert_eq!(checked(&arrival, &right).map(|mad| mad[..4].to_vec()), Some(vec![1, 7, 2, 3]));
        // The destination QP, the Q_Key, the partition, the payload and the ICRC.
        for at in [7, 3, 12, 100, right.len() - 1] {
            let mut wrong = right.clone();
            wrong[at] ^= 0x7f;
            assert!(checked(&arrival, &wrong).is_none(), "byte {at}");
        }
        assert!(checked(&arrival, &right[..right.len() - 1]).is_none());
        assert!(checked(&arrival, &[]).is_none());
    }

    /// A message from address 10.0.0.77, as it comes to port 4791.
    fn arrive(rig: &Rig, message: &Message) {
        let mut arrival = Arrival::new(([10, 0, 0, 77], FROM_PORT).into(), ROCE_PORT, 0, 0);
        arrival.to = rig.address;
        let datagram = packet(&arrival, &message.emit(1, 0));
        rig.arrive(arrival.from, arrival.to, ROCE_PORT, &[datagram]);
    }

    #[test]
    fn a_request_that_its_sender_gave_up_gets_to_no_later_listener() {
        let mut rig = Rig::new(9, Icrc::Auto);
        let service = 0x0107_0000_0000 | u64::from(std::process::id());
        let request = |id| Message::Req(Req { local_comm_id: id, service_id: ServiceId(service), ..Req::default() });
        let held = |rig: &Rig| rig.engine.foreign.holder.as_ref().unwrap().held_requests.next().is_some();
        let listener = Incoming::claim(&Receiver::Service(service).name()).unwrap();
        arrive(&rig, &request(1));
        rig.turn();
        assert!(!held(&rig));
        drop(listener);
        arrive(&rig, &request(2));
        rig.turn();
        assert!(held(&rig));
        let gives_up = |id| Message::Rej(Rej { local_comm_id: id, reason: RejectReason::TIMEOUT, ..Rej::default() });
        arrive(&rig, &gives_up(3));
        rig.turn();
        assert!(held(&rig), "another request");
        arrive(&rig, &gives_up(2));
        rig.turn();
        assert!(!held(&rig));
        assert!(rig.take_sent().is_empty(), "nothing was refused");
    }
}
