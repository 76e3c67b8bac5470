//! Two adapters of one process, each with its own profile, connected over the loopback interface.
#![allow(dead_code, reason = "each test uses a part")]

use crate::common::{connect_with, create};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use weir_device::paging::counters::Values;
use weir_device::paging::invalidate;
use weir_device::stat::read;
use weir_device::{Context, Cq, Errno, Mr, Pd, Qp};
use weir_transport::{
    Access, AckTimeout, Data, Delay, PageFaults, Profile, QpAttr, SendFlags, SendOp, SendWr, Service, Sge, Status,
};
use weir_wire::RnrTimer;

pub const PAGE: usize = 4096;
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// RNR timer code of 20.48 ms (IBTA table 45).
const RNR: u8 = 22;
pub const LONG: Duration = Duration::from_secs(20);

pub const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Runs tests one at a time, because they read counters of the whole device.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The ideal profile, except that faults are resolved after `time`.
pub fn slow(name: &str, time: Duration) -> Profile {
    let ideal = Profile::ideal();
    let page_faults = PageFaults { resolve: Delay::exactly(time), ..ideal.page_faults };
    // No ACK timeout expires during a test.
    let ack_timeout = AckTimeout { floor: LONG, ..ideal.ack_timeout };
    Profile { name: name.into(), page_faults, ack_timeout, ..ideal }
}

/// An adapter with a profile, and its objects.
pub struct Side {
    pub context: Arc<Context>,
    pub pd: Arc<Pd>,
    pub cq: Arc<Cq>,
}

impl Side {
    pub fn new(profile: &Profile) -> Side {
        let context = Context::open_as("weir_lo", profile).expect("the loopback interface is there");
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(1024, None, 0).unwrap();
        Side { context, pd, cq }
    }

    /// A QP of this side and its connected QP of `other`, which stays idle.
    pub fn pair(&self, other: &Side) -> [Arc<Qp>; 2] {
        let rest = QpAttr {
            timeout: 1,
            min_rnr_timer: RnrTimer::new(RNR),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            ..QpAttr::default()
        };
        let ours = self.pd.create_qp(&create(Service::Rc), &self.cq, &self.cq).unwrap();
        let theirs = other.pd.create_qp(&create(Service::Rc), &other.cq, &other.cq).unwrap();
        connect_with(&self.context, &ours, theirs.num(), &rest);
        connect_with(&other.context, &theirs, ours.num(), &rest);
        [ours, theirs]
    }

    /// Waits for the next `count` completions. Returns their `wr_id`s and times.
    pub fn ended(&self, count: usize) -> Vec<(u64, Instant)> {
        let until = Instant::now() + LONG;
        let mut found = vec![];
        while found.len() < count {
            assert!(Instant::now() < until, "{} of {count} completed: {found:?}", found.len());
            self.cq
                .poll(16, |completion| {
                    assert_eq!(completion.status, Status::Success, "of {}", completion.wr_id);
                    found.push((completion.wr_id, Instant::now()));
                })
                .unwrap();
        }
        found
    }
}

/// Freshly mapped pages and their region.
pub struct Memory {
    pub addr: u64,
    pub len: usize,
    pub mr: Arc<Mr>,
}

impl Memory {
    pub fn on_demand(side: &Side, pages: usize) -> Memory {
        Memory::new(pages, |addr, len| side.pd.reg_on_demand_mr(addr, len, addr, ALL, false))
    }

    pub fn pinned(side: &Side, pages: usize) -> Memory {
        Memory::new(pages, |addr, len| side.pd.reg_mr(addr, len, addr, ALL))
    }

    fn new(pages: usize, register: impl FnOnce(u64, u64) -> Result<Arc<Mr>, Errno>) -> Memory {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        let (addr, len) = (start as u64, pages * PAGE);
        Memory { addr, len, mr: register(addr, len as u64).unwrap() }
    }

    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        assert!(offset + len <= self.len);
        Sge { addr: self.addr + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// The paging counters of an on-demand region.
    pub fn values(&self) -> Values {
        let of_all = invalidate::regions().iter().map(|region| region.describe()).collect::<Vec<_>>();
        of_all.iter().find(|region| region.lkey == self.mr.lkey()).expect("it is registered").values
    }

    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { &*((self.addr + offset as u64) as *const AtomicU64) }
    }

    pub fn fill(&self, seed: u64) {
        (0..self.len / 8).for_each(|n| self.word(8 * n).store(seed + n as u64, Ordering::Relaxed));
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.mr.dereg().unwrap();
        // SAFETY: mapped by `new`, and no region uses it any more.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, self.len) };
    }
}

fn post(qp: &Qp, wr_id: u64, op: SendOp, sge: Sge) {
    qp.post_send(&SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[sge]) }).unwrap();
    qp.doorbell();
}

pub fn post_read(qp: &Qp, wr_id: u64, to: Sge, from: &Memory, offset: usize) {
    post(qp, wr_id, SendOp::Read { remote_addr: from.addr + offset as u64, rkey: from.mr.rkey() }, to);
}

pub fn post_write(qp: &Qp, wr_id: u64, from: Sge, to: &Memory, offset: usize) {
    post(qp, wr_id, SendOp::Write { remote_addr: to.addr + offset as u64, rkey: to.mr.rkey() }, from);
}

/// Counters of all adapters of this process together.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    pub rnr_naks: u64,
    pub ack_timeouts: u64,
    pub lost: u64,
    pub sent: u64,
}

pub fn counts() -> Counts {
    let own = read::processes(&read::folders()).into_iter().find(|process| process.pid == std::process::id());
    let own = own.expect("this process shows its counters");
    let device = own.devices.iter().find(|device| device.name == "weir_lo").expect("it is open");
    Counts {
        rnr_naks: device.rnr_naks,
        ack_timeouts: device.ack_timeouts,
        lost: device.packets_lost,
        sent: device.packets_sent,
    }
}

/// The counts since `before`.
pub fn since(before: Counts) -> Counts {
    let now = counts();
    Counts {
        rnr_naks: now.rnr_naks - before.rnr_naks,
        ack_timeouts: now.ack_timeouts - before.ack_timeouts,
        lost: now.lost - before.lost,
        sent: now.sent - before.sent,
    }
}

/// Completes a WRITE, after which the peers have exchanged hellos and the connection works.
pub fn exchange_hellos(qp: &Qp, side: &Side, other: &Side) {
    let (here, there) = (Memory::pinned(side, 1), Memory::pinned(other, 1));
    post_write(qp, 0, here.sge(0, 8), &there, 0);
    assert_eq!(side.ended(1)[0].0, 0);
}
