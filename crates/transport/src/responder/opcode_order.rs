//! Which request may follow which, and the access flags that each requires (IBTA 9.7.4.1.2, table 37).

use crate::Access;
use weir_wire::{Operation, Operation as O};

/// The operation that a request packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Send,
    Write,
    Read,
    Atomic,
    AtomicWrite,
    Flush,
}

/// The current message of several packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Message {
    /// No message: the next packet must start one.
    #[default]
    None,
    /// `received` bytes so far; the oldest receive work request is taken. `total`: the length that frames of it stated.
    Send { received: u64, total: Option<u32> },
    /// `received` bytes so far of `total`; the destination starts at `va`.
    Write { va: u64, rkey: u32, received: u64, total: u64 },
}

/// The table of request packets: the operation of each, and the access flags that the QP must have for it
/// (IBTA 9.7.4.1.3). Others are not supported; a new operation adds its line.
const TABLE: [(Operation, Request, Access); 19] = [
    (O::SendFirst, Request::Send, Access::empty()),
    (O::SendMiddle, Request::Send, Access::empty()),
    (O::SendLast, Request::Send, Access::empty()),
    (O::SendLastImm, Request::Send, Access::empty()),
    (O::SendOnly, Request::Send, Access::empty()),
    (O::SendOnlyImm, Request::Send, Access::empty()),
    (O::SendLastInv, Request::Send, Access::empty()),
    (O::SendOnlyInv, Request::Send, Access::empty()),
    (O::AtomicWrite, Request::AtomicWrite, Access::REMOTE_WRITE),
    // Which flag it requires depends on its extended header.
    (O::Flush, Request::Flush, Access::empty()),
    (O::WriteFirst, Request::Write, Access::REMOTE_WRITE),
    (O::WriteMiddle, Request::Write, Access::REMOTE_WRITE),
    (O::WriteLast, Request::Write, Access::REMOTE_WRITE),
    (O::WriteLastImm, Request::Write, Access::REMOTE_WRITE),
    (O::WriteOnly, Request::Write, Access::REMOTE_WRITE),
    (O::WriteOnlyImm, Request::Write, Access::REMOTE_WRITE),
    (O::ReadRequest, Request::Read, Access::REMOTE_READ),
    (O::CompareSwap, Request::Atomic, Access::REMOTE_ATOMIC),
    (O::FetchAdd, Request::Atomic, Access::REMOTE_ATOMIC),
];

/// The operation of a packet and its required access flags, if this QP supports it (IBTA 9.7.4.1.3).
pub(super) fn lookup(operation: Operation) -> Option<(Request, Access)> {
    /// Indexed by operation code.
    const BY_CODE: [Option<(Request, Access)>; 32] = {
        let mut by_code = [None; 32];
        let mut i = 0;
        while i < TABLE.len() {
            by_code[TABLE[i].0 as usize] = Some((TABLE[i].1, TABLE[i].2));
            i += 1;
        }
        by_code
    };
    BY_CODE[operation as usize & 31]
}

/// Whether a packet may follow: FIRST or ONLY begins a message, and no other message interrupts it (IBTA 9.7.4.1.2).
pub(super) fn follows(message: &Message, request: Request, starts: bool) -> bool {
    match message {
        Message::None => starts,
        Message::Send { .. } => request == Request::Send && !starts,
        Message::Write { .. } => request == Request::Write && !starts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::{Opcode, Service};

    #[test]
    fn no_message_interrupts_another() {
        let write = Message::Write { va: 0, rkey: 0, received: 0, total: 0 };
        for (message, good) in [
            (
                Message::None,
                vec![
                    O::SendFirst,
                    O::SendOnly,
                    O::SendOnlyImm,
                    O::SendOnlyInv,
                    O::AtomicWrite,
                    O::Flush,
                    O::WriteFirst,
                    O::WriteOnly,
                    O::WriteOnlyImm,
                    O::ReadRequest,
                    O::CompareSwap,
                    O::FetchAdd,
                ],
            ),
            (
                Message::Send { received: 0, total: None },
                vec![O::SendMiddle, O::SendLast, O::SendLastImm, O::SendLastInv],
            ),
            (write, vec![O::WriteMiddle, O::WriteLast, O::WriteLastImm]),
        ] {
            for (operation, request, _) in TABLE {
                let starts = Opcode::new(Service::Rc, operation).starts_message();
                assert_eq!(follows(&message, request, starts), good.contains(&operation), "{message:?} {operation:?}");
            }
        }
    }

    #[test]
    fn responses_and_unsupported_operations_are_not_requests() {
        for operation in [O::Acknowledge, O::ReadResponseOnly] {
            assert_eq!(lookup(operation), None);
        }
        assert_eq!(lookup(O::FetchAdd), Some((Request::Atomic, Access::REMOTE_ATOMIC)));
    }
}
