//! The order in which the packets of a burst are handled.

use crate::{Opcode, Operation};
use std::iter::Chain;

/// The packets of a burst to one QP, which left in one send, in the order in which they are to be handled. An ACK ends a
/// burst only because of its length: it acknowledges requests that came before those that it follows, and programs may
/// expect that order. So it comes first, unless other responses are in the burst. `bytes`: of an item.
pub fn ack_first<'a, I>(mut burst: I, bytes: impl Fn(&I::Item) -> &'a [u8]) -> Chain<std::option::IntoIter<I::Item>, I>
where
    I: DoubleEndedIterator + Clone,
{
    let is_late = has_late_ack(burst.clone().map(|packet| bytes(&packet)));
    let ack = if is_late { burst.next_back() } else { None };
    ack.into_iter().chain(burst)
}

/// Whether a burst ends with an ACK that is to be handled first.
pub fn has_late_ack<'a>(mut burst: impl DoubleEndedIterator<Item = &'a [u8]>) -> bool {
    burst.next_back().is_some_and(is_ack) && !burst.any(is_response)
}

fn is_ack(packet: &[u8]) -> bool {
    packet.first().is_some_and(|opcode| Opcode(*opcode).operation() == Some(Operation::Acknowledge))
}

fn is_response(packet: &[u8]) -> bool {
    packet.first().is_some_and(|opcode| Opcode(*opcode).is_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ack_that_ends_a_burst_comes_first_unless_there_are_other_responses() {
        const SEND: &[u8] = &[0x04];
        const ACK: &[u8] = &[0x11];
        const RESPONSE: &[u8] = &[0x10];
        let order = |burst: &[&'static [u8]]| ack_first(burst.iter().copied(), |packet| packet).collect::<Vec<_>>();
        assert_eq!(order(&[SEND, SEND, ACK]), [ACK, SEND, SEND]);
        assert_eq!(order(&[SEND, RESPONSE, ACK]), [SEND, RESPONSE, ACK]);
        assert_eq!(order(&[ACK]), [ACK]);
        assert_eq!(order(&[ACK, SEND]), [ACK, SEND]);
        assert_eq!(order(&[]), [&[][..]; 0]);
    }
}
