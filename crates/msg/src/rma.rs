//! READs and WRITEs of the program.
//!
//! Small ones go through a bounce buffer, because a prefetch takes longer than a copy (Li et al., V.A). Large ones go from
//! and to the program's memory: that of a WRITE is prefetched before, that of a READ while the request travels (VI.B).

use crate::buffer::{Buffer, Remote, RemoteBuffer};
use crate::endpoint::Endpoint;
use crate::event::{Again, Asked, Event, Failure, Kind};
use crate::ids::{OpId, PeerId};
use crate::ops::{Op, Rma, Source};
use crate::port::{Errno, Local, Port, Work};
use crate::post::{Body, LONGEST_INLINE, Step, Transfer, fill, gather, scatter};
use crate::queue::Posted;
use crate::registrar::Held;
use crate::scheme::Moment;
use std::time::Duration;

/// EFAULT: there is no memory at the address.
const NO_MEMORY: Errno = Errno(14);

/// A READ or WRITE of a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RmaCall {
    pub to: PeerId,
    /// A WRITE.
    pub write: bool,
    /// As long as `remote`, and in use until the operation ends.
    pub local: Buffer,
    pub remote: Remote,
    /// What the peer's program is told of a WRITE.
    pub immediate: Option<u32>,
    pub context: u64,
    /// Success is reported, too.
    pub report: bool,
}

impl Endpoint {
    /// Reads or writes a peer's memory.
    pub fn rma(&mut self, port: &mut impl Port, now: Duration, call: &RmaCall) {
        self.calls(now);
        let RmaCall { to, write, remote, immediate, .. } = *call;
        let asked = Asked { context: call.context, report: call.report };
        let local = Source::Program(call.local);
        self.begin_rma(
            port,
            now,
            Rma { asked, to, write, local, remote, immediate, held: Held::default(), bounced: false, posted: 0 },
        );
    }

    /// Writes a peer's memory. The bytes are copied before this returns, and success is not reported.
    ///
    /// # Panics
    /// If it is longer than [`Self::longest_injected`].
    pub fn inject_write(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        to: PeerId,
        bytes: &[u8],
        (addr, rkey): (u64, u32),
        immediate: Option<u32>,
    ) -> Result<(), Again> {
        self.inject_write_as(port, now, to, bytes, (addr, rkey), immediate, 0, false)
    }

    /// As [`Self::inject_write`]. If `report`, success is reported with this context.
    #[allow(clippy::too_many_arguments)] // What a WRITE is made of.
    pub fn inject_write_as(
        &mut self,
        port: &mut impl Port,
        now: Duration,
        to: PeerId,
        bytes: &[u8],
        (addr, rkey): (u64, u32),
        immediate: Option<u32>,
        context: u64,
        report: bool,
    ) -> Result<(), Again> {
        assert!(bytes.len() <= self.longest_injected());
        self.calls(now);
        let (asked, local) = (Asked { context, report }, self.copy_injected(bytes)?);
        let remote = Remote { addr, len: bytes.len() as u64, rkey };
        let (write, held, bounced, posted) = (true, Held::default(), false, 0);
        self.begin_rma(port, now, Rma { asked, to, write, local, remote, immediate, held, bounced, posted });
        Ok(())
    }

    fn begin_rma(&mut self, port: &mut impl Port, now: Duration, rma: Rma) {
        let to = rma.to;
        self.counters.rma += 1;
        let op = self.insert(Op::Rma(rma));
        self.peer_mut(to).pending.push_back(op);
        self.step(port, now, to);
    }

    /// Goes on with an operation that has not left as a whole.
    pub(crate) fn step_rma(&mut self, port: &mut impl Port, now: Duration, id: OpId) -> Step {
        let Some(Op::Rma(rma)) = self.ops.get(id as usize) else { return Step::Done };
        let (to, len) = (rma.to, rma.remote.len);
        let small = len <= u64::from(self.settings.rma_bounce.min(self.settings.slot));
        let bounced = small || rma.bounced || matches!(rma.local, Source::Copied(_));
        let Some(connected) = self.peers[to.0 as usize].connected() else { return Step::Blocked };
        let inline = connected.queue.inline().min(LONGEST_INLINE);
        let credit = rma.immediate.is_none() || connected.flow.may_send();
        if !connected.queue.has_room() || !credit {
            connected.flow.has_to_wait();
            return Step::Blocked;
        }
        let step = if rma.write && len as usize <= inline {
            self.write_inline(port, id)
        } else if bounced {
            self.post_bounced(port, id)
        } else {
            self.post_from_memory(port, now, id)
        };
        if step == Step::Done
            && let Some(Op::Rma(Rma { immediate: Some(_), .. })) = self.ops.get(id as usize)
            && let Some(connected) = self.peers[to.0 as usize].connected()
        {
            connected.flow.writes();
        }
        step
    }

    fn write_inline(&mut self, port: &mut impl Port, id: OpId) -> Step {
        let mut bytes = [0; LONGEST_INLINE];
        let Some(Op::Rma(rma)) = self.ops.get(id as usize) else { return Step::Done };
        let (to, remote, immediate) = (rma.to, rma.remote, rma.immediate);
        let bytes = &mut bytes[..remote.len as usize];
        match &rma.local {
            Source::Program(buffer) => fill(port, Body::Program(buffer), bytes),
            Source::Copied(copied) => bytes.copy_from_slice(copied),
        }
        let work = Work::WriteInline { bytes, addr: remote.addr, rkey: remote.rkey, immediate };
        self.post(port, to, Posted { op: Some(id), last: true, ..Posted::default() }, work);
        Step::Done
    }

    /// Posts requests from or to bounce buffers, from byte `posted` on.
    fn post_bounced(&mut self, port: &mut impl Port, id: OpId) -> Step {
        loop {
            let Some(Op::Rma(rma)) = self.ops.get(id as usize) else { return Step::Done };
            let (to, Remote { addr, len, rkey }, at) = (rma.to, rma.remote, rma.posted);
            let slot = if self.has_room(to) { self.take_slot(port, to) } else { None };
            let (Some(slot), Some(Op::Rma(rma))) = (slot, self.ops.get_mut(id as usize)) else { return Step::Blocked };
            let part = (len - at).min(self.settings.slot.into());
            let last = at + part == len;
            rma.posted += part;
            let local = Local::Slot { slot, len: part as u32 };
            let addr = addr.wrapping_add(at);
            let work = if rma.write {
                match &rma.local {
                    Source::Program(buffer) => gather(port, &buffer.range(at, part), slot, 0),
                    Source::Copied(bytes) => port.slot(slot)[..bytes.len()].copy_from_slice(bytes),
                }
                Work::Write { local, addr, rkey, immediate: rma.immediate.filter(|_| last) }
            } else {
                Work::Read { local, addr, rkey }
            };
            self.post(port, to, Posted { slot: Some(slot), op: Some(id), last, at }, work);
            if last {
                return Step::Done;
            }
        }
    }

    fn post_from_memory(&mut self, port: &mut impl Port, now: Duration, id: OpId) -> Step {
        let Some(Op::Rma(rma)) = self.ops.get(id as usize) else { return Step::Done };
        let Some(&buffer) = rma.local.buffer() else { return Step::Done };
        let (to, write, remote, immediate) = (rma.to, rma.write, rma.remote, rma.immediate);
        if rma.held.is_empty() {
            match self.registrar.hold(port, &mut self.counters, &buffer, !write) {
                Ok(held) => self.set_held(id, held),
                Err(NO_MEMORY) => {
                    self.end_rma(port, id, Err(Failure::Memory(NO_MEMORY)));
                    return Step::Done;
                }
                // There is no room for another registration now.
                Err(_) => {
                    if let Some(Op::Rma(rma)) = self.ops.get_mut(id as usize) {
                        rma.bounced = true;
                    }
                    return self.post_bounced(port, id);
                }
            }
            self.prefetch_rma(port, now, id, Moment::Registered);
            if write {
                self.prefetch_rma(port, now, id, Moment::BeforeWrite);
            }
        }
        let Some(Op::Rma(Rma { held, posted, .. })) = self.ops.get(id as usize) else { return Step::Done };
        let (held, mut posted, mut far) = (*held, *posted, RemoteBuffer::default());
        far.push(remote);
        let transfer = Transfer { to, op: id, write, immediate, local: buffer, held, remote: far, ends: true };
        let step = self.post_runs(port, &transfer, &mut posted);
        if step == Step::Blocked {
            if let Some(Op::Rma(rma)) = self.ops.get_mut(id as usize) {
                rma.posted = posted;
            }
            return step;
        }
        if !write {
            self.prefetch_rma(port, now, id, Moment::ReadPosted);
        }
        Step::Done
    }

    /// The last request of an operation has completed, or one with a bounce buffer.
    pub(crate) fn rma_completed(&mut self, port: &mut impl Port, id: OpId, posted: Posted) {
        if let (Some(slot), Some(Op::Rma(Rma { write: false, local: Source::Program(buffer), .. }))) =
            (posted.slot, self.ops.get(id as usize))
        {
            scatter(port, slot, 0, &buffer.range(posted.at, self.settings.slot.into()));
        }
        if posted.last {
            self.end_rma(port, id, Ok(()));
        }
    }

    /// An operation has ended.
    pub(crate) fn end_rma(&mut self, port: &mut impl Port, id: OpId, result: Result<(), Failure>) {
        if !matches!(self.ops.get(id as usize), Some(Op::Rma(_))) {
            return;
        }
        let Op::Rma(rma) = self.ops.remove(id as usize) else { return };
        if let Source::Copied(bytes) = &rma.local {
            self.injected -= bytes.len();
        }
        self.registrar.release(port, &mut self.counters, rma.held);
        let kind = if rma.write { Kind::Write } else { Kind::Read };
        self.end(Event::of(rma.asked, kind, rma.remote.len, result));
    }

    pub(crate) fn prefetch_rma(&mut self, port: &mut impl Port, now: Duration, id: OpId, moment: Moment) {
        if let Some(Op::Rma(rma)) = self.ops.get_mut(id as usize)
            && let Some(buffer) = rma.local.buffer()
        {
            self.registrar.prefetch(port, &mut self.counters, now, moment, &mut rma.held, buffer, !rma.write);
        }
    }

    fn set_held(&mut self, id: OpId, held: Held) {
        if let Some(Op::Rma(rma)) = self.ops.get_mut(id as usize) {
            rma.held = held;
        }
    }
}
