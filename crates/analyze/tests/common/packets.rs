//! The headers of typed-in packets.

use weir_wire::{Aeth, Bth, Headers, NakCode, Opcode, Operation, Psn, Reth, RnrTimer, Service, Syndrome};

pub const REQUESTER: u32 = 0x11;
pub const RESPONDER: u32 = 0x22;
/// An arbitrary day, ns since 1970.
pub const START: u64 = 1_600_000_000_000_000_000;

/// The headers of a packet, and the length of its payload.
pub fn headers(from_requester: bool, what: &str, psn: u32, extra: Option<u32>) -> (Headers, u32) {
    let bytes = extra.unwrap_or(100);
    let aeth = |syndrome: Syndrome| Some(syndrome.to_byte());
    let (operation, syndrome, payload) = match what {
        "read" => (Operation::ReadRequest, None, 0),
        "write" => (Operation::WriteOnly, None, bytes),
        "send" => (Operation::SendOnly, None, bytes),
        "response" => (Operation::ReadResponseOnly, aeth(Syndrome::ACK_UNLIMITED), bytes),
        "first" => (Operation::ReadResponseFirst, aeth(Syndrome::ACK_UNLIMITED), bytes),
        "last" => (Operation::ReadResponseLast, aeth(Syndrome::ACK_UNLIMITED), bytes),
        "ack" => (Operation::Acknowledge, aeth(Syndrome::ACK_UNLIMITED), 0),
        "rnr" => (Operation::Acknowledge, aeth(Syndrome::RnrNak(RnrTimer::new(extra.unwrap_or(14) as u8))), 0),
        "nak" => (Operation::Acknowledge, aeth(Syndrome::Nak(NakCode::PsnSequence)), 0),
        other => panic!("no packet {other}"),
    };
    let to = if from_requester { RESPONDER } else { REQUESTER };
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::new(Service::Rc, operation), to, Psn::new(psn)) };
    let mut headers = Headers::new(Bth { pad: (4 - payload % 4) as u8 % 4, ..bth });
    headers.put(Reth { va: 0x1000.into(), rkey: 7.into(), dma_len: bytes.into() });
    if let Some(syndrome) = syndrome {
        headers.put(Aeth::new(syndrome, 0));
    }
    (headers, payload)
}
