//! Atomics: messages that the peer's endpoint performs on its memory.
//!
//! Adapters have two atomics on 64 bits; MPI has more. Atomics of the adapter and of its process are not atomic with respect to each
//! other on all adapters, so all of them are performed by the process. It must make progress.

use crate::arrive::{InSlot, Violation};
use crate::atomic::{AtomicKind, Datatype, Operator, is_valid};
use crate::buffer::{Buffer, RemoteBuffer};
use crate::endpoint::Endpoint;
use crate::event::{Asked, Event, Failure, Kind};
use crate::ids::{OpId, PeerId};
use crate::message::{AtomicRequest, LONGEST_HEADER, Message, PAYLOAD_HEADER};
use crate::ops::{Atomic, Op};
use crate::peer::Answer;
use crate::port::{Port, Update};
use crate::post::{Body, Step, fill, scatter};
use std::time::Duration;

/// An atomic on a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct AtomicCall {
    pub to: PeerId,
    pub kind: AtomicKind,
    pub operator: Operator,
    pub datatype: Datatype,
    /// As many bytes as `operand`, or of a read, of `result`.
    pub target: RemoteBuffer,
    /// Read before the call returns. Empty for a read.
    pub operand: Buffer,
    /// Of a comparison: as many bytes as `operand`.
    pub compare: Buffer,
    /// Where the values before go, if they are returned; in use until the operation ends.
    pub result: Buffer,
    pub context: u64,
    /// Success is reported, too.
    pub report: bool,
}

impl Endpoint {
    /// Most elements of an atomic.
    pub fn most_elements(&self, kind: AtomicKind, datatype: Datatype) -> usize {
        self.settings.most_elements(kind, datatype)
    }

    /// Performs an atomic on a peer's memory.
    ///
    /// # Panics
    /// If there is no such atomic, or if it has more elements than [`Self::most_elements`].
    pub fn atomic(&mut self, port: &mut impl Port, now: Duration, call: &AtomicCall) {
        self.calls(now);
        let AtomicCall { to, kind, operator, datatype, target, result, .. } = *call;
        assert!(is_valid(kind, operator, datatype));
        assert!(target.len() <= (self.most_elements(kind, datatype) * datatype.size()) as u64);
        let mut operands = vec![0; (call.operand.len() + call.compare.len()) as usize];
        let (operand, compare) = operands.split_at_mut(call.operand.len() as usize);
        fill(port, Body::Program(&call.operand), operand);
        fill(port, Body::Program(&call.compare), compare);
        let asked = Asked { context: call.context, report: call.report };
        let sent = false;
        self.counters.atomics += 1;
        let op =
            self.insert(Op::Atomic(Atomic { asked, to, kind, operator, datatype, target, operands, result, sent }));
        self.peer_mut(to).pending.push_back(op);
        self.step(port, now, to);
    }

    /// Sends an atomic.
    pub(crate) fn step_atomic(&mut self, port: &mut impl Port, id: OpId) -> Step {
        let Some(Op::Atomic(atomic)) = self.ops.get_mut(id as usize) else { return Step::Done };
        let Atomic { to, kind, operator, datatype, target, .. } = *atomic;
        let operands = std::mem::take(&mut atomic.operands);
        // The longer of the request and the answer.
        let both = operands.len().max(target.len() as usize);
        let request = AtomicRequest { kind, operator, datatype, target };
        let longest = self.longest_part(to).unwrap_or(0) as usize;
        if both + LONGEST_HEADER > longest + PAYLOAD_HEADER && longest > 0 {
            // The peer's bounce buffers are smaller than this side's.
            self.end_atomic(id, Err(Failure::Denied));
            return Step::Done;
        }
        let message = Message::Atomic { id, request, payload: &[] };
        let step = self.post_message(port, to, message, Body::Bytes(&operands), None);
        if let Some(Op::Atomic(atomic)) = self.ops.get_mut(id as usize) {
            atomic.sent = step == Step::Done;
            if step == Step::Blocked {
                atomic.operands = operands;
            }
        }
        step
    }

    /// Performs an atomic of a peer.
    #[allow(clippy::too_many_arguments)] // The fields of the message.
    pub(crate) fn perform_atomic(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        from: PeerId,
        id: u32,
        request: &AtomicRequest,
        payload: InSlot,
    ) -> Result<(), Violation> {
        let AtomicRequest { kind, operator, datatype, target } = *request;
        let (size, total) = (datatype.size(), target.len());
        let reads = operator == Operator::Read;
        let operands = match kind {
            _ if reads => 0,
            AtomicKind::Compare => total.saturating_mul(2),
            _ => total,
        };
        let longest = (self.most_elements(AtomicKind::Plain, datatype) * size) as u64;
        let whole = target.pieces().iter().all(|piece| piece.len % size as u64 == 0);
        if !is_valid(kind, operator, datatype) || !whole || operands != payload.len as u64 || total > longest {
            return Err(Violation);
        }
        let operands = port.slot(payload.slot)[payload.at..payload.at + payload.len].to_vec();
        let (operand, compare) =
            operands.split_at(if kind == AtomicKind::Compare { total as usize } else { payload.len });
        let fetches = kind != AtomicKind::Plain;
        let mut values = Vec::new();
        let mut at = 0;
        let mut refused = false;
        'pieces: for piece in target.pieces() {
            for number in 0..piece.len / size as u64 {
                let addr = piece.addr.wrapping_add(number * size as u64);
                let element = |bytes: &[u8]| bytes.get(at..at + size).map_or(0, low_bytes);
                let (operand, compare) = (element(operand), element(compare));
                match port.update(&Update { addr, rkey: piece.rkey, operator, datatype, fetches, operand, compare }) {
                    Ok(before) if kind != AtomicKind::Plain => values.extend(&before.to_le_bytes()[..size]),
                    Ok(_) => {}
                    Err(_) => {
                        (refused, values) = (true, Vec::new());
                        break 'pieces;
                    }
                }
                at += size;
            }
        }
        if !refused {
            // Processes synchronise by atomics, too: peers are about to use this process's windows.
            self.synchronises(port, now);
        }
        self.answer(from, Answer::AtomicDone { id, refused, values });
        Ok(())
    }

    /// A peer has performed an atomic.
    pub(crate) fn atomic_done(
        &mut self,
        port: &mut impl Port,
        from: PeerId,
        id: u32,
        refused: bool,
        payload: InSlot,
    ) -> Result<(), Violation> {
        let Some(Op::Atomic(Atomic { to, sent: true, result, .. })) = self.ops.get(id as usize) else {
            return Err(Violation);
        };
        if *to != from || (!refused && payload.len as u64 != result.len()) {
            return Err(Violation);
        }
        let result = *result;
        if refused {
            self.end_atomic(id, Err(Failure::Denied));
        } else {
            scatter(port, payload.slot, payload.at, &result);
            self.end_atomic(id, Ok(()));
        }
        Ok(())
    }

    /// An atomic has ended.
    pub(crate) fn end_atomic(&mut self, id: OpId, result: Result<(), Failure>) {
        if !matches!(self.ops.get(id as usize), Some(Op::Atomic(_))) {
            return;
        }
        let Op::Atomic(atomic) = self.ops.remove(id as usize) else { return };
        let kind = Kind::Atomic { fetches: atomic.kind != AtomicKind::Plain };
        self.end(Event::of(atomic.asked, kind, atomic.target.len(), result));
    }
}

/// An element in the low bytes of a word.
fn low_bytes(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}
