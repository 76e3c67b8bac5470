//! State that all QPs of an adapter share, as the protocol accesses it: memory, completion queues, the send port.

use crate::ids::{HostId, QpId};
use crate::machine::Machine;
use crate::memory::{Accessor, Memory};
use crate::packet::{PacketKey, Packets, Payload};
use crate::qp::Sent;
use std::cell::RefCell;
use std::collections::VecDeque;
use weir_transport::{
    Access, AtomicOp, Completion, Denied, Egress, Host, Outgoing, Payload as Source, QpEvent, Queue, Refused, Remote,
    Sge, Side,
};
use weir_wire::Headers;

/// State shared by the QPs of a host.
pub(crate) struct Adapter {
    pub memory: Memory,
    /// The bus to memory and the cache; `None`: they take no time.
    pub machine: Option<Box<Machine>>,
    /// Completions and events that the application has not received yet.
    pub reports: VecDeque<Report>,
}

/// A notification for the application.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    Completion { qp: u32, queue: Queue, completion: Completion },
    Event { qp: u32, event: QpEvent },
}

/// The adapter at a moment, as a side of a QP accesses it.
pub(crate) struct View<'a> {
    pub adapter: &'a RefCell<Adapter>,
    pub accessor: Accessor,
}

impl Adapter {
    /// Whether there is something that the simulation has to collect: page faults and their events, reports.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.memory.events.next().is_some() || !self.memory.begun.is_empty() || !self.reports.is_empty()
    }
}

impl Host for View<'_> {
    fn check_local(&mut self, sges: &[Sge], _access: Access) -> Result<(), Denied> {
        self.adapter.borrow().memory.check_sges(sges)
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, _access: Access) -> Result<(), Denied> {
        self.adapter.borrow().memory.check(rkey, va, len)
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        let Adapter { memory, machine, .. } = &mut *self.adapter.borrow_mut();
        memory.ensure_sges_present(sges, offset, bytes.len() as u64, self.accessor)?;
        memory.scatter(sges, offset, bytes)?;
        if let Some(machine) = machine {
            machine.write(self.accessor.now, sges, offset, bytes.len() as u64);
        }
        Ok(())
    }

    #[inline(always)]
    fn write_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), Denied> {
        let Adapter { memory, machine, .. } = &mut *self.adapter.borrow_mut();
        let len = bytes.len() as u64;
        let region = memory.reach(rkey, va, len, va + len, self.accessor)?;
        memory.store(region, va, bytes);
        if let Some(machine) = machine {
            machine.write_region(self.accessor.now, rkey, va, len);
        }
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Denied> {
        let memory = &mut self.adapter.borrow_mut().memory;
        memory.reach(rkey, va, 8, va + 8, self.accessor)?;
        memory.atomic(rkey, va, op)
    }

    fn prepare_local(&mut self, sges: &[Sge], offset: u64, len: u64, _access: Access) -> Result<(), Denied> {
        self.adapter.borrow_mut().memory.ensure_sges_present(sges, offset, len, self.accessor)
    }

    fn expect_remote(&mut self, range: &Remote, _access: Access) {
        self.adapter.borrow_mut().memory.expect(range.rkey, range.va, range.len);
    }

    fn complete(&mut self, queue: Queue, completion: Completion, _solicited: bool) {
        let report = Report::Completion { qp: self.accessor.qp, queue, completion };
        let adapter = &mut *self.adapter.borrow_mut();
        adapter.reports.push_back(report);
        if let Some(machine) = &mut adapter.machine {
            machine.complete(self.accessor.now);
        }
    }

    fn event(&mut self, event: QpEvent) {
        self.adapter.borrow_mut().reports.push_back(Report::Event { qp: self.accessor.qp, event });
    }
}

/// Takes a single packet of a QP.
pub(crate) struct Out<'a> {
    pub adapter: &'a RefCell<Adapter>,
    pub accessor: Accessor,
    /// The QP that sends.
    pub from: QpId,
    pub to: HostId,
    /// What that QP has sent.
    pub sent: &'a mut Sent,
    pub packets: &'a mut Packets,
    /// The packet of the turn.
    pub staged: &'a mut Option<PacketKey>,
    pub full: bool,
}

impl Out<'_> {
    #[inline(always)]
    fn stage(&mut self, headers: &Headers, payload: Payload) {
        let repeated = self.sent.leaves(headers, payload.len());
        let key = self.packets.add(self.from, self.to, repeated, headers, payload);
        *self.staged = Some(key);
    }

    /// Payload from memory that a peer READs. Only a responder sends from there.
    #[inline(never)]
    fn load(&mut self, range: &Remote) -> Result<Payload, Refused> {
        let Remote { rkey, va, len, .. } = *range;
        let memory = &mut self.adapter.borrow_mut().memory;
        let accessor = Accessor { side: Side::Responder, ..self.accessor };
        let region = memory.reach(rkey, va, len, va + len, accessor).map_err(Refused::Denied)?;
        Ok(memory.load(region, va, len as usize))
    }

    #[inline(always)]
    fn gather(&mut self, sges: &[Sge], offset: u64, len: usize) -> Result<Payload, Refused> {
        self.adapter.borrow_mut().memory.gather(sges, offset, len, self.accessor).map_err(Refused::Denied)
    }
}

impl Egress for Out<'_> {
    #[inline]
    fn has_room(&self) -> bool {
        !self.full
    }

    // Inlined, so that headers are built where they stay.
    #[inline(always)]
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        if self.full {
            return Err(Refused::Full);
        }
        let payload = match packet.payload {
            Source::None => Payload::Phantom(0),
            Source::Bytes(bytes) => Payload::Bytes(bytes.into()),
            Source::Gather { sges, offset, len } => self.gather(sges, offset, len)?,
            Source::Remote(ref range) => self.load(range)?,
        };
        self.stage(&packet.headers, payload);
        self.full = true;
        if let Some(machine) = &mut self.adapter.borrow_mut().machine {
            machine.read(&packet.payload);
        }
        Ok(())
    }
}
