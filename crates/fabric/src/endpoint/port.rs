//! What the protocol asks of the adapter and of the process.

use crate::adapter_counters;
use crate::domain::Keys;
use crate::endpoint::links::Links;
use crate::endpoint::numbers::send_id;
use crate::endpoint::slots::Slots;
use crate::monitor::Monitor;
use crate::rdma::{Adapter, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, Region};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use weir_abi::*;
use weir_msg::{ConnectionId, Errno, Hello, Local, Name, Registered, Registration, Settings, Slot, Update, Work};

/// The adapter of an endpoint, and the memory of the process.
pub struct VerbsPort {
    pub adapter: Arc<Adapter>,
    pub links: Links,
    pub slots: Slots,
    regions: HashMap<u32, Region>,
    keys: Arc<Keys>,
    /// There is one with pinned registrations, if the kernel permits it.
    monitor: Option<Monitor>,
    /// When the last call ended that may take long: a registration or a prefetch.
    pub worked: Option<Instant>,
}

impl VerbsPort {
    /// A port with these connections.
    pub fn new(adapter: &Arc<Adapter>, links: Links, settings: &Settings, keys: &Arc<Keys>) -> VerbsPort {
        let slots = Slots::new(adapter, settings.slot as usize);
        let monitor = if settings.scheme.on_demand() { None } else { monitor() };
        let (adapter, keys) = (adapter.clone(), keys.clone());
        VerbsPort { adapter, links, slots, regions: HashMap::new(), keys, monitor, worked: None }
    }
}

impl weir_msg::Port for VerbsPort {
    fn register(&mut self, addr: u64, len: u64, how: Registration) -> Result<Registered, Errno> {
        let mut access = IBV_ACCESS_REMOTE_READ;
        if how.writable {
            access |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        }
        if how.on_demand {
            access |= IBV_ACCESS_ON_DEMAND as i32;
        }
        // SAFETY: the program has given the memory for an operation. The cache ends registrations of memory that goes away.
        let region = unsafe { self.adapter.register(addr, len as usize, access) };
        self.worked = Some(Instant::now());
        let region = region.map_err(|error| Errno(error.0))?;
        let registered = Registered { lkey: region.lkey(), rkey: region.rkey() };
        self.regions.insert(registered.lkey, region);
        Ok(registered)
    }

    fn deregister(&mut self, registered: Registered) {
        self.regions.remove(&registered.lkey);
    }

    fn prefetch(&mut self, lkey: u32, addr: u64, len: u64, write: bool) {
        // It is advice: without it there is a page fault.
        let _ = self.adapter.prefetch(lkey, addr, len as usize, write, false);
        self.worked = Some(Instant::now());
    }

    fn invalidations(&mut self) -> Option<u64> {
        adapter_counters::invalidations()
    }

    fn watch(&mut self, addr: u64, len: u64) -> bool {
        self.monitor.as_mut().is_some_and(|monitor| monitor.watch(addr, len))
    }

    fn unwatch(&mut self, addr: u64, len: u64) {
        if let Some(monitor) = &mut self.monitor {
            monitor.unwatch(addr, len);
        }
    }

    fn next_gone(&mut self) -> Option<(u64, u64)> {
        self.monitor.as_ref()?.next_gone()
    }

    fn new_slot(&mut self) -> Option<Slot> {
        self.slots.take()
    }

    fn free_slot(&mut self, slot: Slot) {
        self.slots.give_back(slot);
    }

    fn slot(&mut self, slot: Slot) -> &mut [u8] {
        self.slots.bytes(slot)
    }

    fn copy_to_slot(&mut self, addr: u64, len: usize, slot: Slot, at: usize) {
        let into = slot_range(&mut self.slots, slot, at, len);
        // SAFETY: the program has given the memory for an operation that has not ended.
        unsafe { std::ptr::copy_nonoverlapping(pointer(addr), into.as_mut_ptr(), len) };
    }

    fn copy_from_slot(&mut self, slot: Slot, at: usize, addr: u64, len: usize) {
        let from = slot_range(&mut self.slots, slot, at, len);
        // SAFETY: the program has given the memory for an operation that has not ended.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), pointer(addr), len) };
    }

    fn load(&mut self, addr: u64, into: &mut [u8]) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(pointer(addr), into.as_mut_ptr(), into.len()) };
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer(addr), bytes.len()) };
    }

    fn update(&mut self, update: &Update) -> Result<u64, Errno> {
        self.keys.update(update)
    }

    #[inline]
    fn post_send(&mut self, to: ConnectionId, id: u64, signaled: bool, work: Work<'_>) -> Result<(), Errno> {
        let qp = self.links.get(to).and_then(|link| link.qp()).ok_or(Errno(libc::ENOTCONN))?;
        let slots = &self.slots;
        let mut sge = match work {
            Work::Send(local) | Work::Write { local, .. } | Work::Read { local, .. } => match local {
                Local::Slot { slot, len } => {
                    let (addr, lkey) = slots.local(slot);
                    ibv_sge { addr, length: len, lkey }
                }
                Local::Memory { addr, len, lkey } => ibv_sge { addr, length: len, lkey },
            },
            Work::SendInline(bytes) | Work::WriteInline { bytes, .. } => {
                ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
            }
        };
        let inline = matches!(work, Work::SendInline(_) | Work::WriteInline { .. });
        let (opcode, remote, immediate) = match work {
            Work::Send(_) | Work::SendInline(_) => (IBV_WR_SEND, (0, 0), None),
            Work::Write { addr, rkey, immediate, .. } | Work::WriteInline { addr, rkey, immediate, .. } => {
                let opcode = if immediate.is_some() { IBV_WR_RDMA_WRITE_WITH_IMM } else { IBV_WR_RDMA_WRITE };
                (opcode, (addr, rkey), immediate)
            }
            Work::Read { addr, rkey, .. } => (IBV_WR_RDMA_READ, (addr, rkey), None),
        };
        let mut request = ibv_send_wr {
            wr_id: send_id(to, id),
            next: std::ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: i32::from(sge.length > 0),
            opcode,
            send_flags: if signaled { IBV_SEND_SIGNALED } else { 0 } | if inline { IBV_SEND_INLINE } else { 0 },
            imm_data: immediate.unwrap_or(0).to_be(),
            wr: ibv_send_wr_target { rdma: ibv_wr_rdma { remote_addr: remote.0, rkey: remote.1 } },
            // SAFETY: plain numbers, which this request does not use.
            qp_type: unsafe { std::mem::zeroed() },
            // SAFETY: as above.
            extra: unsafe { std::mem::zeroed() },
        };
        // SAFETY: bounce buffers and registered memory stay until the request has completed; inline bytes are copied.
        unsafe { qp.post_send(&mut request) }.map_err(|error| Errno(error.0))
    }

    fn post_receive(&mut self, on: ConnectionId, slot: Slot) -> Result<(), Errno> {
        let link = self.links.get(on).ok_or(Errno(libc::ENOTCONN))?;
        link.post_receive(&self.slots, on, slot).map_err(|error| Errno(error.0))
    }

    fn connect(&mut self, to: &Name, hello: &Hello, receives: &[Slot]) -> Result<ConnectionId, Errno> {
        self.links.connect(&self.slots, to, hello, receives).map_err(|error| Errno(error.0))
    }

    fn accept(&mut self, connection: ConnectionId, hello: &Hello, receives: &[Slot]) -> Result<(), Errno> {
        self.links.accept(&self.slots, connection, hello, receives).map_err(|error| Errno(error.0))
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.links.take(connection);
    }
}

/// Watches pinned memory, if the kernel permits it.
fn monitor() -> Option<Monitor> {
    let monitor = Monitor::start();
    if let Err(error) = &monitor {
        let text = format!("no pin-down cache, because userfaultfd(2) fails: {error} (vm.unprivileged_userfaultfd)");
        crate::core::warn(weir_fabric_abi::FI_LOG_MR, &text);
    }
    monitor.ok()
}

fn slot_range(slots: &mut Slots, slot: Slot, at: usize, len: usize) -> &mut [u8] {
    &mut slots.bytes(slot)[at..at + len]
}

fn pointer(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}
