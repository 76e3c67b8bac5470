//! Which request may follow which, and what each asks for (IBTA 9.7.4.1.2, table 37; C9-61).

use crate::Access;
use weir_wire::{Operation, Operation as O};

/// What a request packet is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Send,
    Write,
    Read,
    Atomic,
    AtomicWrite,
}

/// A message of several packets that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Message {
    /// None: the next packet starts one.
    #[default]
    None,
    /// Received bytes; the oldest receive work request is taken.
    Send { received: u64 },
    /// Received bytes of `total`, which lie from `va` on.
    Write { va: u64, rkey: u32, received: u64, total: u64 },
}

/// The table of requests: what each is part of, and what the QP must allow for it (IBTA 9.7.4.1.3). What is not here is
/// not supported; a new operation adds its line.
const TABLE: [(Operation, Request, Access); 18] = [
    (O::SendFirst, Request::Send, Access::empty()),
    (O::SendMiddle, Request::Send, Access::empty()),
    (O::SendLast, Request::Send, Access::empty()),
    (O::SendLastImm, Request::Send, Access::empty()),
    (O::SendOnly, Request::Send, Access::empty()),
    (O::SendOnlyImm, Request::Send, Access::empty()),
    (O::SendLastInv, Request::Send, Access::empty()),
    (O::SendOnlyInv, Request::Send, Access::empty()),
    (O::AtomicWrite, Request::AtomicWrite, Access::REMOTE_WRITE),
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

/// What an operation is part of, if this QP takes it.
pub(super) fn lookup(operation: Operation) -> Option<(Request, Access)> {
    /// By operation code.
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

/// Whether a packet may come now: a message is begun by FIRST or ONLY and not interrupted.
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
    fn messages_are_not_interrupted() {
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
                    O::WriteFirst,
                    O::WriteOnly,
                    O::WriteOnlyImm,
                    O::ReadRequest,
                    O::CompareSwap,
                    O::FetchAdd,
                ],
            ),
            (Message::Send { received: 0 }, vec![O::SendMiddle, O::SendLast, O::SendLastImm, O::SendLastInv]),
            (write, vec![O::WriteMiddle, O::WriteLast, O::WriteLastImm]),
        ] {
            for (operation, request, _) in TABLE {
                let starts = Opcode::new(Service::Rc, operation).starts_message();
                assert_eq!(follows(&message, request, starts), good.contains(&operation), "{message:?} {operation:?}");
            }
        }
    }

    #[test]
    fn responses_and_later_operations_are_not_requests() {
        for operation in [O::Acknowledge, O::ReadResponseOnly, O::Flush] {
            assert_eq!(lookup(operation), None);
        }
        assert_eq!(lookup(O::FetchAdd), Some((Request::Atomic, Access::REMOTE_ATOMIC)));
    }
}
