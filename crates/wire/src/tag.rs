//! The headers of tag matching, which rdma-core's `infiniband/tm_types.h` defines: the first bytes of a SEND to a TM SRQ.

/// A SEND to a TM SRQ, as its first bytes describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagMessage {
    /// Without a tag: NO_TAG, FIN, an unknown operation, or no complete header.
    NoTag,
    /// The payload follows the header ([`TMH_LEN`] bytes).
    Eager(Tmh),
    /// The receiver fetches the payload by a READ and reports its end by a SEND ([`fin`]).
    Rendezvous(Tmh, Rvh),
}

/// The fields of a tag matching header beside its operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tmh {
    /// The bytes between operation and opaque data. The end of a rendezvous repeats them.
    pub reserved: [u8; 3],
    /// Opaque data of the sender's program.
    pub app_ctx: u32,
    pub tag: u64,
}

/// A rendezvous header: where the payload is at the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rvh {
    pub va: u64,
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

/// A rendezvous request with an incomplete rendezvous header, or longer than [`MAX_RENDEZVOUS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRendezvous;

/// Bytes of a tag matching header.
pub const TMH_LEN: usize = 16;
/// Bytes of both headers of a rendezvous request.
pub const RENDEZVOUS_LEN: usize = 32;
/// The most bytes of a rendezvous request: the headers, and data of the program.
pub const MAX_RENDEZVOUS: usize = 64;

const RNDV: u8 = 1;
const FIN: u8 = 2;
const EAGER: u8 = 3;

impl TagMessage {
    /// Reads the payload of a SEND's first packet; `whole`: it is the only packet.
    pub fn read(payload: &[u8], whole: bool) -> Result<TagMessage, BadRendezvous> {
        let Some(header) = payload.first_chunk::<TMH_LEN>() else { return Ok(TagMessage::NoTag) };
        let &[operation, a, b, c, ..] = header;
        let tmh = Tmh { reserved: [a, b, c], app_ctx: be32(header, 4), tag: be64(header, 8) };
        match operation {
            EAGER => Ok(TagMessage::Eager(tmh)),
            RNDV => match payload.first_chunk::<RENDEZVOUS_LEN>() {
                Some(headers) if whole && payload.len() <= MAX_RENDEZVOUS => {
                    let rvh = Rvh { va: be64(headers, 16), rkey: be32(headers, 24), len: be32(headers, 28) };
                    Ok(TagMessage::Rendezvous(tmh, rvh))
                }
                _ => Err(BadRendezvous),
            },
            _ => Ok(TagMessage::NoTag),
        }
    }
}

/// The message that reports the end of a rendezvous: the headers of its request, with another operation.
pub fn fin(tmh: &Tmh, rvh: &Rvh) -> [u8; RENDEZVOUS_LEN] {
    let mut message = [0; RENDEZVOUS_LEN];
    message[0] = FIN;
    message[1..4].copy_from_slice(&tmh.reserved);
    message[4..8].copy_from_slice(&tmh.app_ctx.to_be_bytes());
    message[8..16].copy_from_slice(&tmh.tag.to_be_bytes());
    message[16..24].copy_from_slice(&rvh.va.to_be_bytes());
    message[24..28].copy_from_slice(&rvh.rkey.to_be_bytes());
    message[28..].copy_from_slice(&rvh.len.to_be_bytes());
    message
}

/// The bytes of the rendezvous that such a message ends; 0 if it is none.
pub fn fin_len(message: &[u8]) -> u32 {
    message.first_chunk::<RENDEZVOUS_LEN>().map_or(0, |message| be32(message, 28))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TMH: Tmh = Tmh { reserved: [0xa1, 0xa2, 0xa3], app_ctx: 0x0102_0304, tag: 0x1122_3344_5566_7788 };
    const RVH: Rvh = Rvh { va: 0x7fff_0000_1234_5678, rkey: 0x9abc_def0, len: 70_000 };

    fn message(operation: u8, len: usize) -> Vec<u8> {
        let mut message = fin(&TMH, &RVH).to_vec();
        message[0] = operation;
        message.resize(len, 0);
        message
    }

    #[test]
    fn each_operation_is_read() {
        assert_eq!(TagMessage::read(&message(EAGER, 16), true), Ok(TagMessage::Eager(TMH)));
        assert_eq!(TagMessage::read(&message(EAGER, 1024), false), Ok(TagMessage::Eager(TMH)));
        for len in [32, 64] {
            assert_eq!(TagMessage::read(&message(RNDV, len), true), Ok(TagMessage::Rendezvous(TMH, RVH)));
        }
        assert_eq!((fin_len(&message(FIN, 32)), fin_len(&message(FIN, 31))), (RVH.len, 0));
        for other in [0, FIN, 4, 255] {
            assert_eq!(TagMessage::read(&message(other, 64), true), Ok(TagMessage::NoTag));
        }
    }

    /// The bytes are written by hand: each has a value of its own.
    #[test]
    fn the_end_of_a_rendezvous_is_a_copy_of_its_request() {
        let mut request: Vec<u8> = (0x80..).take(MAX_RENDEZVOUS).collect();
        request[0] = RNDV;
        let Ok(TagMessage::Rendezvous(tmh, rvh)) = TagMessage::read(&request, true) else { panic!("a rendezvous") };
        let end = fin(&tmh, &rvh);
        assert_eq!((end[0], &end[1..]), (FIN, &request[1..RENDEZVOUS_LEN]));
    }

    #[test]
    fn incomplete_headers_have_no_tag_and_no_rendezvous() {
        for len in 0..16 {
            assert_eq!(TagMessage::read(&message(EAGER, len), true), Ok(TagMessage::NoTag));
            assert_eq!(TagMessage::read(&message(RNDV, len), true), Ok(TagMessage::NoTag));
        }
        for (len, whole) in [(16, true), (31, true), (65, true), (1024, true), (64, false)] {
            assert_eq!(TagMessage::read(&message(RNDV, len), whole), Err(BadRendezvous), "{len} {whole}");
        }
    }
}
