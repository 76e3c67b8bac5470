//! How much of a datagram is in the file.

use weir_capture::Snap;
use weir_wire::{ICRC_LEN, Opcode, frame};

/// The first bytes of control datagrams between Weir peers.
pub const CONTROL_MAGIC: &[u8; 4] = b"WEIR";
/// A BTH and an ICRC: the shortest packet.
const MIN_PACKET: usize = 16;
const BTH: usize = 12;
/// The QP of management datagrams.
const GSI: [u8; 3] = [0, 0, 1];

/// A limit on what is kept.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub snap: Snap,
    /// With a snap length, no packet keeps its ICRC: some packets have none.
    pub without_icrc: bool,
}

impl Cut {
    /// The bytes that are kept of a datagram of `len` bytes, behind `around` bytes of headers. `staged`: its first
    /// bytes; without iovecs all of it. Either all of a packet's ICRC is kept or no part of it.
    #[inline]
    pub fn kept(self, staged: &[u8], len: usize, around: usize) -> usize {
        let most = match self.snap {
            Snap::Whole => return staged.len(),
            Snap::Bytes(bytes) => (bytes as usize).saturating_sub(around),
            Snap::Headers => headers(staged, len).unwrap_or(Snap::MOST_HEADERS as usize - around),
        };
        let most = most.min(staged.len());
        if !is_packet(staged, len) || (most >= len && !self.without_icrc) {
            return most;
        }
        most.min(len - ICRC_LEN)
    }
}

/// Whether a datagram has the last four bytes of a packet: it is long enough and no control datagram of Weir.
#[inline]
pub fn is_packet(staged: &[u8], len: usize) -> bool {
    len >= MIN_PACKET && !staged.starts_with(CONTROL_MAGIC)
}

/// The bytes before the payload, or all of a packet without payload. `None`: a datagram that carries nothing of the
/// program's (a control datagram, a management datagram, a CNP).
#[inline]
fn headers(staged: &[u8], len: usize) -> Option<usize> {
    if !is_packet(staged, len) {
        return None;
    }
    if frame::is_frame(staged) {
        return Some(frame::HEADER_LEN);
    }
    let opcode = Opcode(staged[0]);
    if opcode.operation().is_none() || staged.get(5..8)? == GSI {
        return None;
    }
    let headers = BTH + opcode.extensions_len();
    Some(if headers + ICRC_LEN == len { len } else { headers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::{Bth, Headers, Operation, Psn, Service};

    fn packet(service: Service, operation: Operation, qp: u32, payload: usize) -> Vec<u8> {
        let headers = Headers::new(Bth::new(Opcode::new(service, operation), qp, Psn::new(5)));
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.resize(bytes.len() + payload + ICRC_LEN, 0xee);
        bytes
    }

    fn kept(cut: Cut, datagram: &[u8]) -> usize {
        cut.kept(datagram, datagram.len(), 42)
    }

    #[test]
    fn headers_are_all_that_is_kept() {
        let write = packet(Service::Rc, Operation::WriteFirst, 7, 1024);
        let ack = packet(Service::Rc, Operation::Acknowledge, 7, 0);
        let atomic = packet(Service::Xrc, Operation::FetchAdd, 7, 0);
        let mad = packet(Service::Ud, Operation::SendOnly, 1, 256);
        let message = packet(Service::Ud, Operation::SendOnly, 2, 256);
        let mut cnp = packet(Service::Rc, Operation::SendMiddle, 7, 16);
        cnp[0] = 0x81;
        let control = [&CONTROL_MAGIC[..], &[1; 100]].concat();
        let short = [1; 10];
        for (datagram, with_icrc) in [
            (&write[..], 28),
            (&ack, 20),
            (&atomic, 12 + 4 + 28 + 4),
            (&mad, mad.len()),
            (&message, 20),
            (&cnp, 32),
            (&control, 104),
            (&short, 10),
        ] {
            let cut = Cut { snap: Snap::Headers, without_icrc: false };
            assert_eq!(kept(cut, datagram), with_icrc, "{datagram:?}");
            let whole = with_icrc == datagram.len() && is_packet(datagram, datagram.len());
            let cut = Cut { snap: Snap::Headers, without_icrc: true };
            assert_eq!(kept(cut, datagram), with_icrc - if whole { ICRC_LEN } else { 0 }, "{datagram:?}");
        }
        // Only the headers are staged.
        let cut = Cut { snap: Snap::Headers, without_icrc: true };
        assert_eq!(cut.kept(&write[..28], write.len(), 42), 28);
    }

    #[test]
    fn no_part_of_an_icrc_is_kept() {
        let write = packet(Service::Rc, Operation::WriteFirst, 7, 100);
        let len = write.len();
        for (snap, without_icrc, expected) in [
            (106, false, 64),
            (42 + len - 5, false, len - 5),
            (42 + len - 2, false, len - 4),
            (42 + len, false, len),
            (9000, false, len),
            (9000, true, len - 4),
        ] {
            assert_eq!(kept(Cut { snap: Snap::Bytes(snap as u32), without_icrc }, &write), expected, "{snap}");
        }
        assert_eq!(kept(Cut { snap: Snap::Whole, without_icrc: true }, &write), len);
    }
}
