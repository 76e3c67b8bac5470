//! A host for one QP that keeps a journal, and an egress that turns packet descriptions into bytes.

use super::memory::{Memory, Region};
use crate::{
    Access, AtomicOp, Bind, Completion, Denied, Egress, Host, Outgoing, Payload, QpEvent, Queue, Refused, Remote, Sge,
    Side, Status, TaggedReceive,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use weir_wire::icrc;
use weir_wire::ip::Envelope;

/// An event at a host; the journal keeps them in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry {
    /// Memory was written.
    Write { addr: u64, len: usize },
    /// Memory was flushed.
    Flush { addr: u64, len: usize },
    /// An atomic was executed.
    Atomic { addr: u64 },
    /// A work request completed.
    Complete { queue: Queue, completion: Completion, solicited: bool },
    /// A window was bound.
    Bind { key: u32 },
    /// A key was invalidated.
    Invalidate { key: u32 },
    /// An asynchronous event.
    Event(QpEvent),
}

/// Memory and journal.
pub struct TestHost {
    pub memory: Rc<RefCell<Memory>>,
    pub journal: Vec<Entry>,
    /// Shared receive queues by number; several hosts may share them.
    pub srqs: Srqs,
    /// The number of the SRQ that receives are taken from. An SRQ's protection domain has the same number as the SRQ.
    pub srq: u32,
    /// TM SRQ: tags, each with its work request and SGEs. What matches none is taken from the queue `srq`.
    pub tags: Vec<(u64, u64, Vec<Sge>)>,
    /// TM SRQ: messages with a tag that matched none, less those that failed.
    pub unexpected: i32,
}

/// Shared receive queues by number: work requests and their SGEs.
pub type Srqs = Rc<RefCell<BTreeMap<u32, VecDeque<(u64, Vec<Sge>)>>>>;

impl TestHost {
    pub fn new(memory: Memory) -> Self {
        TestHost {
            memory: Rc::new(RefCell::new(memory)),
            journal: Vec::new(),
            srqs: Srqs::default(),
            srq: 0,
            tags: Vec::new(),
            unexpected: 0,
        }
    }

    /// All completions of a queue.
    pub fn completions(&self, of: Queue) -> Vec<Completion> {
        let each = self.journal.iter().filter_map(|entry| match entry {
            Entry::Complete { queue, completion, .. } if *queue == of => Some(*completion),
            _ => None,
        });
        each.collect()
    }

    /// As `completions`, reduced to `wr_id` and status.
    pub fn outcomes(&self, of: Queue) -> Vec<(u64, Status)> {
        self.completions(of).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// All events.
    pub fn events(&self) -> Vec<QpEvent> {
        let each = self.journal.iter().filter_map(|entry| match entry {
            Entry::Event(event) => Some(*event),
            _ => None,
        });
        each.collect()
    }
}

impl Host for TestHost {
    fn check_local(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied> {
        self.memory.borrow().check_sges(sges, access)
    }

    fn check_remote(&mut self, rkey: u32, va: u64, len: u64, access: Access) -> Result<(), Denied> {
        assert_ne!(len, 0, "zero bytes are not checked");
        self.memory.borrow().check(rkey, va, len, access)
    }

    fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        let mut memory = self.memory.borrow_mut();
        memory.check_sges(sges, Access::LOCAL_WRITE)?;
        let side = memory.paging.as_ref().map_or(Side::Responder, |paging| paging.side);
        let (mut done, mut result) = (0, Ok(()));
        Memory::for_each_segment(sges, offset, bytes.len(), |addr, len| {
            if result.is_ok() {
                // Bytes before a missing page may be written already.
                let (reach, reached) = memory.reach(addr, len, true, side);
                memory.bytes_mut(addr, reach).copy_from_slice(&bytes[done..done + reach]);
                (done, result) = (done + len, reached);
            }
        });
        result?;
        Memory::for_each_segment(sges, offset, bytes.len(), |addr, len| self.journal.push(Entry::Write { addr, len }));
        Ok(())
    }

    fn write_remote(&mut self, rkey: u32, va: u64, bytes: &[u8]) -> Result<(), Denied> {
        let mut memory = self.memory.borrow_mut();
        memory.check(rkey, va, bytes.len() as u64, Access::REMOTE_WRITE)?;
        let (reach, result) = memory.reach(va, bytes.len(), true, Side::Responder);
        memory.bytes_mut(va, reach).copy_from_slice(&bytes[..reach]);
        result?;
        self.journal.push(Entry::Write { addr: va, len: bytes.len() });
        Ok(())
    }

    fn flush_remote(&mut self, rkey: u32, range: Option<(u64, u64)>, access: Access) -> Result<(), Denied> {
        let mut memory = self.memory.borrow_mut();
        let whole = memory.regions().iter().find(|region| region.key == rkey).map(|region| (region.addr, region.len));
        let (va, len) = range.or(whole).ok_or(Denied::Protection)?;
        memory.check(rkey, va, len, access)?;
        self.journal.push(Entry::Flush { addr: va, len: len as usize });
        Ok(())
    }

    fn atomic(&mut self, rkey: u32, va: u64, op: AtomicOp) -> Result<u64, Denied> {
        assert_eq!(va % 8, 0, "atomics are aligned");
        let mut memory = self.memory.borrow_mut();
        memory.check(rkey, va, 8, Access::REMOTE_ATOMIC)?;
        memory.reach(va, 8, true, Side::Responder).1?;
        let value: &mut [u8; 8] = memory.bytes_mut(va, 8).try_into().expect("eight bytes");
        let before = u64::from_ne_bytes(*value);
        let after = match op {
            AtomicOp::CompareSwap { compare, swap } => {
                if before == compare {
                    swap
                } else {
                    before
                }
            }
            AtomicOp::FetchAdd { add } => before.wrapping_add(add),
        };
        *value = after.to_ne_bytes();
        self.journal.push(Entry::Atomic { addr: va });
        Ok(before)
    }

    fn prepare_local(&mut self, sges: &[Sge], offset: u64, len: u64, access: Access) -> Result<(), Denied> {
        let mut memory = self.memory.borrow_mut();
        let write = access.contains(Access::LOCAL_WRITE);
        memory.ensure_sges_present(sges, offset, len as usize, write, Side::Requester)
    }

    fn expect_remote(&mut self, range: &Remote, access: Access) {
        let &Remote { pd, rkey, va, len } = range;
        let mut memory = self.memory.borrow_mut();
        if memory.check_within(pd.unwrap_or(memory.pd), rkey, va, len, access).is_ok()
            && let Some(paging) = &mut memory.paging
        {
            paging.expect(va, len);
        }
    }

    fn bind_window(&mut self, bind: &Bind) -> Result<(), Denied> {
        let mut memory = self.memory.borrow_mut();
        memory.check(bind.mr_lkey, bind.addr, bind.len, Access::MW_BIND)?;
        let Bind { window_rkey, new_rkey: key, addr, len, access, .. } = *bind;
        let mut own = true;
        memory.regions().retain(|region| std::mem::take(&mut own) || region.key != window_rkey);
        memory.regions().push(Region { key, addr, len, access, mapped: true });
        self.journal.push(Entry::Bind { key });
        Ok(())
    }

    fn invalidate_local(&mut self, key: u32) -> Result<(), Denied> {
        let mut memory = self.memory.borrow_mut();
        // The node's own region is the first, and cannot be invalidated.
        let window = memory.regions().iter().skip(1).position(|region| region.key == key);
        let window = window.ok_or(Denied::Protection)? + 1;
        memory.regions().remove(window);
        self.journal.push(Entry::Invalidate { key });
        Ok(())
    }

    fn invalidate_remote(&mut self, rkey: u32) -> Result<(), Denied> {
        self.invalidate_local(rkey)
    }

    fn take_receive(&mut self, sges: &mut [Sge]) -> Option<(u64, usize)> {
        let (wr_id, list) = self.srqs.borrow_mut().get_mut(&self.srq)?.pop_front()?;
        sges[..list.len()].copy_from_slice(&list);
        Some((wr_id, list.len()))
    }

    fn take_tagged(&mut self, tag: Option<u64>, sges: &mut [Sge]) -> Option<TaggedReceive> {
        let found = self.tags.iter().position(|entry| Some(entry.0) == tag);
        let Some(at) = found else {
            let (wr_id, num_sge) = self.take_receive(sges)?;
            self.unexpected += i32::from(tag.is_some());
            return Some(TaggedReceive { wr_id, num_sge, matched: false, sync_requested: false });
        };
        let (_, wr_id, list) = self.tags.remove(at);
        sges[..list.len()].copy_from_slice(&list);
        Some(TaggedReceive { wr_id, num_sge: list.len(), matched: true, sync_requested: false })
    }

    fn uncount_unexpected(&mut self) {
        self.unexpected -= 1;
    }

    fn select_srq(&mut self, number: u32) -> Option<u32> {
        self.srq = number;
        self.memory.borrow_mut().pd = number;
        self.srqs.borrow().contains_key(&number).then_some(number)
    }

    fn complete(&mut self, queue: Queue, completion: Completion, solicited: bool) {
        self.journal.push(Entry::Complete { queue, completion, solicited });
    }

    fn event(&mut self, event: QpEvent) {
        self.journal.push(Entry::Event(event));
    }
}

/// Collects packets as complete UDP payloads, up to `room` of them.
pub struct Staging {
    pub memory: Rc<RefCell<Memory>>,
    pub packets: Vec<Vec<u8>>,
    pub room: usize,
}

impl Staging {
    pub fn new(memory: Rc<RefCell<Memory>>, room: usize) -> Self {
        Staging { memory, packets: Vec::new(), room }
    }
}

/// The addresses for all ICRCs.
pub(super) fn envelope() -> Envelope {
    let [src, dst] = [1, 2].map(|n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)));
    Envelope { src, dst, src_port: 4791, dst_port: 4791, ip_id: 0, dont_fragment: true }
}

impl Egress for Staging {
    fn push(&mut self, packet: &Outgoing<'_>) -> Result<(), Refused> {
        if self.packets.len() >= self.room {
            return Err(Refused::Full);
        }
        let mut bytes = header(packet);
        let mut memory = self.memory.borrow_mut();
        match packet.payload {
            Payload::None => {}
            Payload::Bytes(payload) => bytes.extend_from_slice(payload),
            Payload::Gather { sges, offset, len } => {
                memory.check_sges(sges, Access::empty()).map_err(Refused::Denied)?;
                memory.ensure_sges_present(sges, offset, len, false, Side::Requester).map_err(Refused::Denied)?;
                Memory::for_each_segment(sges, offset, len, |addr, len| {
                    bytes.extend_from_slice(memory.bytes(addr, len))
                });
            }
            Payload::Remote(Remote { pd, rkey, va, len }) => {
                let pd = pd.unwrap_or(memory.pd);
                memory.check_within(pd, rkey, va, len, Access::REMOTE_READ).map_err(Refused::Denied)?;
                let len = len as usize;
                memory.reach(va, len, false, Side::Responder).1.map_err(Refused::Denied)?;
                bytes.extend_from_slice(memory.bytes(va, len));
            }
        }
        self.packets.push(finished(bytes, packet));
        Ok(())
    }
}

fn header(packet: &Outgoing<'_>) -> Vec<u8> {
    let mut bytes = vec![0; packet.header_len()];
    packet.emit_header(&mut bytes);
    bytes
}

/// Appends pad and ICRC to headers and payload.
fn finished(mut bytes: Vec<u8>, packet: &Outgoing<'_>) -> Vec<u8> {
    bytes.extend(std::iter::repeat_n(0, usize::from(packet.headers.bth.pad)));
    assert_eq!(bytes.len() % 4, 0, "header, payload and pad are not a multiple of four bytes: {packet:?}");
    bytes.extend(icrc::compute(&envelope(), &bytes).to_le_bytes());
    bytes
}
