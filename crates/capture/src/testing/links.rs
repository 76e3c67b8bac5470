//! Packets of connections over several links.

use super::transport;
use weir_wire::edge::{Ack, Header, Heard, MAX_ACK_LEN, MAX_HEADER_LEN, Order, PIECE_LEN, Piece, Seq};
use weir_wire::{Destination, Headers, Opcode, Placement, frame};

/// UDP ports of two slots.
pub const SLOTS: [u16; 2] = [20_481, 20_482];

/// A header of the packet with this sequence number, which follows the one before it; each other field has a value of its
/// own.
pub fn edge_header(connection: u32, link: u8, seq: u32) -> Header {
    let packet = Some((Seq(seq), Order::AfterOne(Seq(seq).minus(1))));
    Header {
        connection,
        link,
        count: 0x0506_0708,
        packet,
        received: Some(Seq(0x1718_191a)),
        sent: 0x5152_5354,
        asks: false,
    }
}

/// A datagram: the header, an acknowledgement of two links if `acknowledges`, a piece, and what follows.
pub fn behind(header: &Header, acknowledges: bool, piece: Option<&Piece>, rest: &[u8]) -> Vec<u8> {
    let heard = [0, 1].map(|link| Heard { link, newest: 7 + u32::from(link), held: 4_000, delay: 0x6162_6364 });
    let ack = Ack { performed: Seq(3), failures: 1, heard: heard.to_vec(), bitmap: vec![0x8000_0001, 2] };
    let mut out = vec![0; MAX_HEADER_LEN + MAX_ACK_LEN + PIECE_LEN];
    let len = header.emit(acknowledges.then_some(&ack), piece, &mut out);
    out.truncate(len);
    out.extend(rest);
    out
}

/// The frame of an opcode that has frames, from its header to the pad, with the same fields as [`transport`].
pub fn frame_of(opcode: Opcode, payload: usize) -> Vec<u8> {
    let roce = transport(opcode, payload);
    let headers = Headers::parse(&roce, roce.len()).expect("a packet with an operation");
    let destination = match opcode.0 & 0x1f {
        0x06..=0x0b => Destination::Memory { address: 0x1122_3344_5566_7788, rkey: 0xc1c2_c3c4 },
        _ => Destination::Message { number: 0xd1_d2d3 },
    };
    let mut bytes = vec![0; frame::HEADER_LEN];
    frame::emit(&headers, &Placement { destination, offset: 0, length: 10_000 }, &mut bytes);
    bytes.extend(&roce[headers.len()..]);
    bytes
}
