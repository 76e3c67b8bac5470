//! How much of a datagram is in front of what it carries, for code that only divides datagrams.

use super::ack::MAX_WORDS;
use super::{MAX_LINKS, PIECE_LEN, ack_len, header, is_edge};

/// What is in front of a packet, by what the header and the acknowledgement say of their lengths. Nothing else is checked;
/// [`super::Header::parse`] checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front {
    /// Bytes of the header, the acknowledgement and the piece.
    pub len: usize,
    /// A frame or a RoCE packet follows.
    pub has_packet: bool,
}

/// Where an acknowledgement has its numbers of links and of words.
const COUNTS: usize = 8;

impl Front {
    /// The front of a datagram, of which `bytes` are the first. `None`: they are of something else, or end too early.
    #[inline]
    pub fn of(bytes: &[u8]) -> Option<Front> {
        let flags = *bytes.first().filter(|_| is_edge(bytes))?;
        let (mut len, [has_ack, has_piece, has_packet]) = header::parts(flags);
        if has_ack {
            let [links, words] = *bytes.get(len + COUNTS..)?.first_chunk::<2>()?;
            if usize::from(links) > MAX_LINKS || usize::from(words) > MAX_WORDS {
                return None;
            }
            len += ack_len(links.into(), 32 * usize::from(words));
        }
        if has_piece {
            len += PIECE_LEN;
        }
        (len <= bytes.len()).then_some(Front { len, has_packet: has_packet && !has_piece })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::{Ack, Action, HEADER_LEN, Header, Heard, MAX_ACK_LEN, MAX_HEADER_LEN, Order, Piece, Seq};

    #[test]
    fn the_front_is_what_the_header_writes() {
        let heard = (0..5).map(|link| Heard { link, newest: 7, held: 0, delay: 5 }).collect();
        let ack = Ack { heard, bitmap: vec![1; 9], ..Ack::default() };
        let piece = Piece { number: 1, action: Action::Response, offset: 0, bytes: 4 };
        for packet in [None, Some((Seq(7), Order::Any)), Some((Seq(7), Order::AfterOne(Seq(5))))] {
            for (received, ack) in [(None, None), (Some(Seq(1)), None), (Some(Seq(1)), Some(&ack))] {
                let header =
                    Header { connection: 9, link: 3, count: 0, packet, received, sent: 0x5152_5354, asks: false };
                for piece in [None, packet.map(|_| &piece)] {
                    let mut bytes = vec![0; MAX_HEADER_LEN + MAX_ACK_LEN + PIECE_LEN];
                    let len = header.emit(ack, piece, &mut bytes);
                    let has_packet = packet.is_some() && piece.is_none();
                    assert_eq!(Front::of(&bytes), Some(Front { len, has_packet }));
                    assert_eq!(Front::of(&bytes[..len]), Some(Front { len, has_packet }));
                    assert_eq!(Front::of(&bytes[..len - 1]), None);
                }
            }
        }
    }

    #[test]
    fn other_bytes_have_no_front() {
        for bytes in [&b""[..], b"W", b"WLNK and more than the bytes of a header", &[0; 60], &[1; 60]] {
            assert_eq!(Front::of(bytes), None);
        }
        let mut bytes = [0; 2000];
        // An acknowledgement follows.
        (bytes[0], bytes[1]) = (2, 2);
        for (at, most) in [(HEADER_LEN + COUNTS, 64), (HEADER_LEN + COUNTS + 1, 128)] {
            bytes[at] = most;
            assert!(Front::of(&bytes).is_some());
            bytes[at] = most + 1;
            assert_eq!(Front::of(&bytes), None, "more than an acknowledgement has");
            bytes[at] = 0;
        }
    }
}
