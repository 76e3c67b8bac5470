//! How much of a datagram is in the file.

use weir_capture::Snap;
use weir_wire::{ICRC_LEN, Opcode, edge, frame};

/// The first bytes of control datagrams between Weir peers.
pub const CONTROL_MAGIC: &[u8; 4] = b"WEIR";
/// A BTH and an ICRC: the shortest packet.
const MIN_PACKET: usize = 16;
const BTH: usize = 12;
/// The QP of management datagrams.
const GSI: [u8; 3] = [0, 0, 1];

/// What a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A hello, something short, or what several links carry besides packets: it has no ICRC.
    Other,
    Roce,
    Frame,
    /// One of these behind so many bytes of a header for several links.
    Behind(usize),
}

/// A limit on what is kept.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub snap: Snap,
    /// With a snap length, no packet keeps its ICRC: some packets have none.
    pub without_icrc: bool,
}

impl Kind {
    /// Of a datagram of `len` bytes, of which `staged` are the first.
    #[inline]
    pub fn of(staged: &[u8], len: usize) -> Kind {
        if len < MIN_PACKET || staged.starts_with(CONTROL_MAGIC) || edge::Hello::is_hello(staged) {
            return Kind::Other;
        }
        if frame::is_frame(staged) {
            return Kind::Frame;
        }
        if !edge::is_edge(staged) {
            return Kind::Roce;
        }
        match edge::Front::of(staged) {
            Some(front) if front.has_packet && len >= front.len + MIN_PACKET => Kind::Behind(front.len),
            _ => Kind::Other,
        }
    }
}

impl Cut {
    /// The bytes that are kept of a datagram of `len` bytes, behind `around` bytes of headers. `staged`: its first
    /// bytes; without iovecs all of it. Either all of a packet's ICRC is kept or no part of it.
    #[inline]
    pub fn kept(self, kind: Kind, staged: &[u8], len: usize, around: usize) -> usize {
        let most = match self.snap {
            Snap::Whole => return staged.len(),
            Snap::Bytes(bytes) => (bytes as usize).saturating_sub(around),
            Snap::Headers => headers(kind, staged, len).unwrap_or(Snap::MOST_HEADERS as usize - around),
        };
        let most = most.min(staged.len());
        if kind == Kind::Other || (most >= len && !self.without_icrc) {
            return most;
        }
        most.min(len - ICRC_LEN)
    }
}

/// The bytes before the payload, or all of a packet without payload. `None`: a datagram that carries nothing of the
/// program's (a control datagram, a management datagram, a CNP).
#[inline]
fn headers(kind: Kind, staged: &[u8], len: usize) -> Option<usize> {
    match kind {
        Kind::Other => edge::Front::of(staged).map(|front| front.len),
        Kind::Frame => Some(frame::HEADER_LEN),
        Kind::Roce => roce_headers(staged, len),
        Kind::Behind(front) => {
            let inner = &staged[front..];
            let headers =
                if frame::is_frame(inner) { Some(frame::HEADER_LEN) } else { roce_headers(inner, len - front) };
            headers.map(|headers| front + headers)
        }
    }
}

#[inline]
fn roce_headers(staged: &[u8], len: usize) -> Option<usize> {
    let opcode = Opcode(*staged.first()?);
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
        cut.kept(Kind::of(datagram, datagram.len()), datagram, datagram.len(), 42)
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
            let whole = with_icrc == datagram.len() && Kind::of(datagram, datagram.len()) != Kind::Other;
            let cut = Cut { snap: Snap::Headers, without_icrc: true };
            assert_eq!(kept(cut, datagram), with_icrc - if whole { ICRC_LEN } else { 0 }, "{datagram:?}");
        }
        // Only the headers are staged.
        let cut = Cut { snap: Snap::Headers, without_icrc: true };
        assert_eq!(cut.kept(Kind::Roce, &write[..28], write.len(), 42), 28);
    }

    /// A header for several links with an acknowledgement, and a packet behind it if one is given.
    fn behind(packet: Option<&[u8]>) -> Vec<u8> {
        use weir_wire::edge::{Ack, Header, Heard, Order, Seq};
        let order = Order::AfterOne(Seq(4));
        let packet = packet.map(|bytes| ((Seq(5), order), bytes));
        let header = Header {
            connection: 7,
            link: 1,
            count: 0,
            packet: packet.map(|(packet, _)| packet),
            received: Some(Seq(3)),
            sent: 9,
            asks: false,
        };
        let heard = vec![Heard { link: 0, newest: 1, held: 0, delay: 5 }];
        let ack = Ack { heard, bitmap: vec![0; 2], ..Ack::default() };
        let mut out = vec![0; 100];
        let len = header.emit(Some(&ack), None, &mut out);
        assert_eq!(len, if packet.is_some() { FRONT } else { FRONT - 4 });
        out.truncate(len);
        out.extend(packet.map_or(&[][..], |(_, bytes)| bytes));
        out
    }

    /// 31 bytes of header (4 of an order, which a packet has), 12 of an acknowledgement, 12 for its link, 8 for its bitmap.
    const FRONT: usize = 63;

    #[test]
    fn what_several_links_add_is_kept_with_the_headers() {
        let write = packet(Service::Rc, Operation::WriteFirst, 7, 1024);
        let ack = packet(Service::Rc, Operation::Acknowledge, 7, 0);
        let mut framed = packet(Service::Rc, Operation::SendMiddle, 7, 1024);
        framed[1] |= frame::VERSION;
        let mad = packet(Service::Ud, Operation::SendOnly, 1, 256);
        for (inner, headers) in [(&write, 28), (&ack, ack.len()), (&framed, frame::HEADER_LEN), (&mad, mad.len())] {
            let datagram = behind(Some(inner));
            for (without_icrc, cut_off) in [(false, 0), (true, if headers == inner.len() { ICRC_LEN } else { 0 })] {
                let cut = Cut { snap: Snap::Headers, without_icrc };
                assert_eq!(kept(cut, &datagram), FRONT + headers - cut_off, "{inner:?}");
            }
            // No part of the ICRC, which the packet behind the header has.
            let cut = Cut { snap: Snap::Bytes(42 + datagram.len() as u32 - 1), without_icrc: false };
            assert_eq!(kept(cut, &datagram), datagram.len() - ICRC_LEN);
        }
        // An acknowledgement alone has no ICRC, and neither has a hello.
        let alone = behind(None);
        let hello = [&edge::MAGIC[..], &[1; 60]].concat();
        for datagram in [&alone, &hello] {
            for snap in [Snap::Headers, Snap::Bytes(9000)] {
                assert_eq!(kept(Cut { snap, without_icrc: true }, datagram), datagram.len());
            }
        }
        // Only the headers are staged.
        let (datagram, cut) = (behind(Some(&write)), Cut { snap: Snap::Headers, without_icrc: true });
        let staged = &datagram[..FRONT + 28];
        assert_eq!(cut.kept(Kind::of(staged, datagram.len()), staged, datagram.len(), 42), staged.len());
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
