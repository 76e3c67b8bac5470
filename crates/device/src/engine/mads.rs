//! Management datagrams (MADs): datagrams between the GSI QPs, number 1, of two adapters (IBTA 13.5.1). They go to port
//! 4791 always, also between Weir processes, and the holder of that port hands them over to the process that they are
//! for.

use crate::engine::{Engine, OUTBOX_GROUPS, own_port};
use crate::relay::receiver::Receiver;
use crate::shared::route::Route;
use weir_link::{Arrival, Group};
use weir_transport::Psn;
use weir_wire::ip::Envelope;
use weir_wire::{Bth, Deth, Headers, ICRC_LEN, Opcode, Operation, ROCE_PORT, Service, icrc};

/// The number of the general services interface's QP (IBTA 3.9.5).
pub const GSI_QPN: u32 = 1;
/// Its Q_Key (IBTA 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Bytes of a MAD (IBTA 13.4.2).
pub const MAD_LEN: usize = 256;
/// The packet of a MAD.
pub const MAD_OPCODE: Opcode = Opcode::new(Service::Ud, Operation::SendOnly);
/// Bytes of a BTH and a DETH.
pub const MAD_HEADERS: usize = 12 + 8;

impl Engine {
    /// Sends a MAD from the GSI QP.
    pub fn send_mad(&mut self, route: &Route, psn: Psn, mad: &[u8; MAD_LEN]) {
        if self.outbox.len + MAD_HEADERS + MAD_LEN + ICRC_LEN > self.outbox.bytes.len()
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

    /// Hands a datagram to the GSI QP over to the process that it is for. The receiver checks it. `None`: it is no
    /// MAD of the communication manager. `Some(false)`: no process has its service.
    pub(super) fn hand_over_mad(&mut self, arrival: &Arrival, datagram: &[u8]) -> Option<bool> {
        let holder = self.foreign.holder.as_mut()?;
        let to = Receiver::of_mad(datagram.get(MAD_HEADERS..)?)?;
        Some(holder.hand_over(to, arrival, datagram))
    }
}

/// Writes the packet of a MAD, with its ICRC; returns its length.
pub fn emit(psn: Psn, mad: &[u8; MAD_LEN], envelope: &Envelope, out: &mut [u8]) -> usize {
    let mut headers = Headers::new(Bth::new(MAD_OPCODE, GSI_QPN, psn));
    headers.put(Deth { qkey: GSI_QKEY.into(), src_qp: GSI_QPN.into() });
    let len = headers.emit(out);
    let body = len + MAD_LEN;
    out[len..body].copy_from_slice(mad);
    let icrc = icrc::compute(envelope, &out[..body]);
    out[body..body + ICRC_LEN].copy_from_slice(&icrc.to_le_bytes());
    body + ICRC_LEN
}
