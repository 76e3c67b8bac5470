//! Any calls and any MADs, from any sender, into one process.

use crate::testing::address;
use crate::{Address, Cm, Config, ConnectionId, Event, RejectReason, Reply, Request, SidrReply, SidrRequest};
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::cm::{Drep, Dreq, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use weir_wire::mad::{LEN, Mad};

/// Takes the bytes for calls, MADs and time that passes. The process may not panic, its tables agree, what it keeps is
/// bounded, and nothing remains when the caller forgets everything.
pub fn handle(bytes: &[u8]) {
    let mut bytes = Bytes(bytes.iter());
    let limit = 8;
    let config = Config { id_prefix: 0x100, id_bits: 6, max_half_open: limit, max_half_open_per_peer: 5, seed: 3 };
    let mut cm = Cm::new(config);
    let mut now = Instant(1);
    let mut ids = Vec::new();
    while let Some(operation) = bytes.next() {
        match operation {
            0..0x40 => call(&mut cm, now, operation, &mut ids, &mut bytes),
            0x40..0xf0 => {
                let mad = mad(operation, &mut bytes, &ids);
                cm.handle(now, &sender(bytes.take()), &mad);
            }
            _ => {
                now = now + Duration::from_micros(4096 << (bytes.take() % 20));
                cm.handle_timeout(now);
                assert!(cm.poll_timeout().is_none_or(|deadline| deadline > now));
            }
        }
        while cm.poll_transmit().is_some() {}
        while let Some(event) = cm.poll_event() {
            if let Event::Request { id, .. } | Event::ServiceRequest { id, .. } = event {
                ids.push(id);
            }
            assert!(ids.contains(&event.id()), "an event of a forgotten connection: {event:?}");
        }
        cm.check();
    }
    ids.iter().for_each(|id| cm.forget(now, *id));
    cm.check();
    assert!(cm.poll_event().is_none());
    cm.handle_timeout(now + Duration::from_secs(1 << 30));
    while let Some(deadline) = cm.poll_timeout() {
        cm.handle_timeout(deadline);
    }
    assert!(cm.is_empty(), "{} connections remain", cm.len());
}

struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    fn take(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }
}

/// Few senders, so that some MADs fit a connection.
fn sender(byte: u8) -> Address {
    Address { device: u32::from(byte >= 0xf0), ..address(usize::from(byte & 0xf == 0xf)) }
}

fn call(cm: &mut Cm, now: Instant, operation: u8, ids: &mut Vec<ConnectionId>, bytes: &mut Bytes<'_>) {
    let index = usize::from(bytes.take());
    let id = ids.get(index % ids.len().max(1)).copied().unwrap_or(ConnectionId(0));
    let number = bytes.take();
    match operation % 16 {
        0 => {
            let request = Request {
                qpn: u32::from(number % 8),
                ca_guid: 1,
                remote_response_timeout: number % 32,
                max_retries: number % 16,
                ..Request::default()
            };
            ids.extend(cm.connect(now, &sender(number), &request));
        }
        1 => {
            let request = SidrRequest { response_timeout: number % 32, ..SidrRequest::default() };
            ids.extend(cm.resolve_service(now, &sender(number), &request));
        }
        2 | 11 | 12 => drop(cm.accept(now, id, &Reply { qpn: u32::from(number % 8), ..Reply::default() })),
        3 => drop(cm.reject(now, id, RejectReason(number.into()), &[0; 80][..usize::from(number % 80)], &[])),
        4 => {
            if cm.ignore(id).is_ok() {
                ids.retain(|known| *known != id);
            }
        }
        5 | 13 => drop(cm.ready(id, &[0; 256][..usize::from(number)])),
        6 => drop(cm.established(id)),
        7 => drop(cm.delay(now, id, number % 32, &[])),
        8 => drop(cm.delay_duplicates(now, id, number % 32, &[])),
        9 | 14 => drop(cm.disconnect(now, id, &[])),
        10 => drop(cm.answer_service(now, id, &SidrReply::default())),
        _ => {
            cm.forget(now, id);
            ids.retain(|known| *known != id);
        }
    }
}

/// A MAD of any kind; its fields are likely ones, or any.
fn mad(operation: u8, bytes: &mut Bytes<'_>, ids: &[ConnectionId]) -> Mad {
    let own = match bytes.take() {
        0xff => u32::from(bytes.take()),
        index => ids.get(usize::from(index) % ids.len().max(1)).map_or(0, |id| id.0),
    };
    let [other, qpn, number] = [bytes.take() % 8, bytes.take() % 8, bytes.take()];
    let (remote, qpn, exponent) = (u32::from(other), u32::from(qpn), number % 32);
    let message: Message = match operation % 16 {
        0..3 => {
            let mut req = Req { local_comm_id: remote, ca_guid: 1, qpn, ..Req::default() };
            let from = sender(number);
            (req.primary.local_gid, req.primary.remote_gid) = (from.remote_gid(), from.local_gid());
            (req.remote_response_timeout, req.max_cm_retries, req.transport_service) = (exponent, 15, other / 6);
            req.into()
        }
        3..5 => Rep { local_comm_id: remote, remote_comm_id: own, qpn, ca_guid: 1, ..Rep::default() }.into(),
        5..7 => Rtu { local_comm_id: remote, remote_comm_id: own, ..Rtu::default() }.into(),
        7 => {
            let (message, service_timeout) = (other, exponent);
            Mra { local_comm_id: remote, remote_comm_id: own, message, service_timeout, ..Mra::default() }.into()
        }
        8 => {
            let mut rej = Rej { local_comm_id: remote, remote_comm_id: own, ..Rej::default() };
            (rej.reason, rej.ari_len, rej.ari[7]) = (RejectReason(exponent.into()), number, 1);
            rej.into()
        }
        9..11 => Dreq { local_comm_id: remote, remote_comm_id: own, remote_qpn: qpn, ..Dreq::default() }.into(),
        11..13 => Drep { local_comm_id: remote, remote_comm_id: own, ..Drep::default() }.into(),
        13 => SidrReq { request_id: remote, ..SidrReq::default() }.into(),
        14 => SidrRep { request_id: own, info_len: number, ..SidrRep::default() }.into(),
        _ => {
            let mut mad = [0; LEN];
            mad.iter_mut().for_each(|byte| *byte = bytes.take());
            return mad;
        }
    };
    message.emit(number.into(), 0)
}
