//! READs, WRITEs and atomics of a program, with checks of every byte.

use super::program::{Program, byte_of};
use crate::atomic::AtomicKind;
use crate::atomics::AtomicCall;
use crate::buffer::{Buffer, Piece, Remote};
use crate::event::{Event, Failure, Kind};
use crate::port::{Port, Registration};
use crate::rma::RmaCall;

/// Contexts of these operations are this and their number.
const CONTEXTS: u64 = 1 << 40;

/// Memory of one node that others may use.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub node: usize,
    pub addr: u64,
    pub len: u64,
    pub key: u32,
    used: u64,
}

/// A READ, a WRITE or an atomic.
#[derive(Debug)]
struct Operation {
    node: usize,
    to: usize,
    kind: Kind,
    len: u64,
    local: Buffer,
    /// Where a WRITE goes, or a READ comes from.
    addr: u64,
    immediate: Option<u32>,
    ended: Option<Result<(), Failure>>,
}

/// The operations of a program on memory of peers.
#[derive(Debug, Default)]
pub struct Remotes {
    operations: Vec<Operation>,
    /// Immediate data that nodes have received.
    pub immediates: Vec<(usize, u64)>,
}

impl Window {
    /// Registers memory of a node for its peers.
    pub fn new(program: &mut Program, node: usize, len: u64) -> Window {
        let addr = program.mesh.nodes[node].port.memory.allocate_pages(len);
        let key = program.mesh.with(node, |endpoint, port, now| {
            let how = Registration { on_demand: true, writable: true };
            let fails = std::mem::take(&mut port.register_fails);
            let registered = port.register(addr, len, how).expect("room for a window");
            port.register_fails = fails;
            endpoint.add_window(port, now, registered.lkey, Piece { addr, len }, true);
            registered.rkey
        });
        program.mesh.nodes[node].windows += 1;
        Window { node, addr, len, key, used: 0 }
    }

    /// Bytes that nothing uses yet.
    pub fn take(&mut self, len: u64) -> Option<u64> {
        let addr = self.addr + self.used;
        self.used += len;
        (self.used <= self.len).then_some(addr)
    }
}

impl Remotes {
    /// Reads or writes a window's bytes at `addr`, and returns the operation's number.
    pub fn start(&mut self, program: &mut Program, node: usize, write: bool, far: (Window, u64), len: u64) -> usize {
        self.start_as(program, node, write, (far.0.node, far.1, far.0.key), len, 1, None)
    }

    /// As [`Self::start`], with any key, from or to a buffer of `pieces`, with immediate data.
    #[allow(clippy::too_many_arguments)] // What an operation is made of.
    pub fn start_as(
        &mut self,
        program: &mut Program,
        node: usize,
        write: bool,
        (to, addr, rkey): (usize, u64, u32),
        len: u64,
        pieces: usize,
        immediate: Option<u32>,
    ) -> usize {
        let number = self.operations.len();
        let local = program.buffer(node, len, pieces);
        if write {
            program.fill(node, &local, number as u64);
        } else if program.mesh.nodes[to].port.memory.permits(rkey, addr, len) {
            let bytes = far_bytes(program, to, addr, len);
            (0..len).for_each(|at| bytes[at as usize] = byte_of(number as u64, at));
        }
        let kind = if write { Kind::Write } else { Kind::Read };
        self.operations.push(Operation { node, to, kind, len, local, addr, immediate, ended: None });
        let (peer, context) = (program.peer(node, to), CONTEXTS + number as u64);
        let remote = Remote { addr, len, rkey };
        let call = RmaCall { to: peer, write, local, remote, immediate, context, report: true };
        program.mesh.with(node, |endpoint, port, now| endpoint.rma(port, now, &call));
        number
    }

    /// Performs an atomic; the caller gives everything but the context.
    pub fn atomic(&mut self, program: &mut Program, node: usize, to: usize, call: AtomicCall) -> usize {
        let number = self.operations.len();
        let (len, local) = (call.target.len(), call.result);
        let fetches = call.kind != AtomicKind::Plain;
        let operation =
            Operation { node, to, kind: Kind::Atomic { fetches }, len, local, addr: 0, immediate: None, ended: None };
        self.operations.push(operation);
        let call = AtomicCall { context: CONTEXTS + number as u64, ..call };
        program.mesh.with(node, |endpoint, port, now| endpoint.atomic(port, now, &call));
        number
    }

    /// Takes the events of these operations from the program, and checks them.
    pub fn take_events(&mut self, program: &mut Program) {
        program.take_events();
        for (node, event) in std::mem::take(&mut program.others) {
            match event.kind {
                Kind::WrittenByPeer => self.immediates.push((node, event.data.expect("immediate data"))),
                _ if event.context >= CONTEXTS => self.ended(program, node, &event),
                _ => assert!(event.context == 0 && !event.reported, "an event of no operation: {event:?}"),
            }
        }
    }

    fn ended(&mut self, program: &mut Program, node: usize, event: &Event) {
        let number = event.context - CONTEXTS;
        let operation = &mut self.operations[number as usize];
        assert_eq!(operation.ended.replace(event.result), None, "operation {number} ends twice");
        assert_eq!((node, event.kind, event.len), (operation.node, operation.kind, operation.len));
        if event.result.is_err() {
            return;
        }
        let bytes = match operation.kind {
            Kind::Read => program.bytes(node, &operation.local),
            Kind::Write => far_bytes(program, operation.to, operation.addr, operation.len).to_vec(),
            _ => return,
        };
        let wrong = bytes.iter().enumerate().find(|&(at, &byte)| byte != byte_of(number, at as u64));
        assert_eq!(wrong, None, "byte of operation {number} of {} bytes", operation.len);
    }

    /// How an operation has ended.
    pub fn result(&self, number: usize) -> Option<Result<(), Failure>> {
        self.operations[number].ended
    }

    /// Checks that all have ended, and that all immediate data of successful WRITEs have come.
    pub fn check(&mut self) {
        let open = self.operations.iter().filter(|operation| operation.ended.is_none()).count();
        assert_eq!(open, 0, "operations that have not ended");
        let done = self.operations.iter().filter(|operation| operation.ended == Some(Ok(())));
        let sent = done.filter_map(|done| done.immediate.map(|data| (done.to, u64::from(data))));
        let mut sent: Vec<_> = sent.collect();
        sent.sort_unstable();
        self.immediates.sort_unstable();
        assert_eq!(self.immediates, sent);
    }
}

fn far_bytes(program: &mut Program, node: usize, addr: u64, len: u64) -> &mut [u8] {
    program.mesh.nodes[node].port.memory.bytes_mut(addr, len as usize)
}
