//! ODP in an opened adapter: the counters of page faults, and that a slow page delays only the QPs that need it.

mod common;

use common::{End, open, pair};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_device::paging::counters::Values;
use weir_device::paging::invalidate;
use weir_device::{Advice, Mr, Pd, Qp};
use weir_transport::{Access, Data, SendFlags, SendOp, SendWr, Sge, Status};

const PAGE: usize = 4096;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Freshly mapped pages, registered on demand.
struct Memory {
    addr: u64,
    len: usize,
    mr: Arc<Mr>,
}

impl Memory {
    fn new(pd: &Arc<Pd>, pages: usize) -> Memory {
        let (addr, len) = (map(pages), pages * PAGE);
        let mr = pd.reg_on_demand_mr(addr, len as u64, addr, ALL, false).unwrap();
        Memory { addr, len, mr }
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr + offset as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    fn values(&self) -> Values {
        let of_all = invalidate::regions().iter().map(|region| region.describe()).collect::<Vec<_>>();
        of_all.iter().find(|region| region.lkey == self.mr.lkey()).expect("it is registered").values
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.len && offset.is_multiple_of(8));
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { &*((self.addr + offset as u64) as *const AtomicU64) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.mr.dereg().unwrap();
        // SAFETY: mapped by `new`, and no region uses it any more.
        unsafe { libc::munmap(self.addr as *mut libc::c_void, self.len) };
    }
}

fn map(pages: usize) -> u64 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start as u64
}

fn post_write(qp: &Qp, wr_id: u64, sges: &[Sge], remote_addr: u64, rkey: u32) {
    let op = SendOp::Write { remote_addr, rkey };
    qp.post_send(&SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(sges) }).unwrap();
    qp.doorbell();
}

/// Waits for the next completion; `None` if there is none within this time.
fn next(end: &End, within: Duration) -> Option<Status> {
    let until = Instant::now() + within;
    let mut found = None;
    while found.is_none() && Instant::now() < until {
        end.cq.poll(1, |completion| found = Some(completion.status)).unwrap();
    }
    found
}

const LONG: Duration = Duration::from_secs(10);

/// Whether the parts of page faults add up to their whole time, up to 5 % and a microsecond for each fault.
fn is_sum(v: &Values) -> bool {
    let parts = [v.page_fault_notice_ns, v.page_fault_populate_ns, v.page_fault_table_ns, v.page_fault_resume_ns];
    let (sum, whole) = (parts.iter().sum::<u64>(), v.page_fault_wait_ns);
    let all = parts.iter().all(|part| *part > 0) && v.page_fault_adapter_ns == 0;
    all && sum <= whole && whole - sum <= whole / 20 + 1000 * v.page_faults
}

/// A fault brings in the rest of the message too: the same number of pages, fewer faults. A page may come in before
/// the fault is extended to the rest of the message, so one round with few faults is enough.
#[test]
fn a_message_takes_few_faults() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let [a, _b] = pair(&pd, &context);
    let few = (0..30).any(|_| {
        let (source, target) = (Memory::new(&pd, 40), Memory::new(&pd, 40));
        post_write(&a.qp, 1, &[source.sge(0, 40 * PAGE)], target.addr, target.mr.rkey());
        assert_eq!(next(&a, LONG), Some(Status::Success));
        let (from, to) = (source.values(), target.values());
        assert_eq!((from.page_fault_pages, to.page_fault_pages), (40, 40));
        from.page_faults < 20 && to.page_faults < 20
    });
    assert!(few, "each of 30 rounds took many faults");
}

#[test]
fn counters_match_what_happened() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let [a, _b] = pair(&pd, &context);
    let (source, target) = (Memory::new(&pd, 40), Memory::new(&pd, 40));
    let write = |offset: usize, len: usize| {
        post_write(&a.qp, 1, &[source.sge(offset, len)], target.addr + offset as u64, target.mr.rkey());
        assert_eq!(next(&a, LONG), Some(Status::Success));
    };
    write(0, 100);
    let (from, to) = (source.values(), target.values());
    assert_eq!((from.page_faults, from.page_fault_pages), (1, 1));
    assert_eq!((to.page_faults, to.page_fault_pages, to.page_faults_handled), (1, 1, 1));
    assert!(to.page_fault_ns > 0);
    assert!(is_sum(&from) && is_sum(&to), "{from:?}, {to:?}");
    write(50, 60);
    assert_eq!((source.values(), target.values()), (from, to), "the pages are present");
    write(PAGE, 39 * PAGE);
    let (from, to) = (source.values(), target.values());
    assert_eq!((from.page_fault_pages, to.page_fault_pages), (40, 40));
    assert_eq!((from.page_faults_handled, to.page_faults_handled), (from.page_faults, to.page_faults));
    assert!(is_sum(&from) && is_sum(&to), "{from:?}, {to:?}");

    drop(invalidate::begin(target.addr + 10, 1).expect("a region is there"));
    let gone = target.values();
    assert_eq!((gone.page_invalidations, gone.page_invalidations_handled, gone.page_invalidation_pages), (1, 1, 1));
    write(0, 100);
    assert_eq!(target.values().page_fault_pages, 41);
    let before = source.values().page_prefetch_pages;
    drop(invalidate::begin(source.addr, 10 * PAGE as u64));
    pd.advise_mr(Advice::Prefetch, true, &[source.sge(0, source.len)]).unwrap();
    let fetched = source.values();
    assert_eq!((fetched.page_prefetch, fetched.page_prefetch_handled), (1, 1));
    assert_eq!(fetched.page_prefetch_pages - before, 10);
    assert_eq!(fetched.page_faults, from.page_faults);
}

/// Pages that `userfaultfd` brings in when the test decides.
struct Slow(i32);

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyIn {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

impl Slow {
    fn new(addr: u64, len: u64) -> Slow {
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        const MISSING: u64 = 1;
        // SAFETY: system calls with structures of the kernel's layout on the stack.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) as i32;
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
            assert_eq!(libc::ioctl(fd, API, &mut api), 0);
            let mut register = Register { start: addr, len, mode: MISSING, ioctls: 0 };
            assert_eq!(libc::ioctl(fd, REGISTER, &mut register), 0);
            Slow(fd)
        }
    }

    fn bring_in(&self, addr: u64, bytes: &[u8; PAGE]) {
        const COPY: libc::c_ulong = 0xc028_aa03;
        let mut copy = CopyIn { dst: addr, src: bytes.as_ptr() as u64, len: PAGE as u64, mode: 0, copied: 0 };
        // SAFETY: as above; the kernel reads `bytes`.
        assert_eq!(unsafe { libc::ioctl(self.0, COPY, &mut copy) }, 0);
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        // SAFETY: opened by `new`.
        unsafe { libc::close(self.0) };
    }
}

#[test]
#[ignore = "needs userfaultfd"]
fn faults_on_a_pending_page_merge_and_do_not_delay_other_qps() {
    const WAITING: usize = 5;
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let addr = map(1);
    let slow = Slow::new(addr, PAGE as u64);
    let mr = pd.reg_on_demand_mr(addr, PAGE as u64, addr, ALL, false).unwrap();
    let target = Memory { addr, len: PAGE, mr };
    let (source, beside) = (Memory::new(&pd, 1), Memory::new(&pd, 16));
    let waiting: Vec<[End; 2]> = (0..WAITING).map(|_| pair(&pd, &context)).collect();
    source.word(0).store(0x1122_3344_5566_7788, Ordering::Relaxed);
    for (number, [a, _]) in waiting.iter().enumerate() {
        post_write(&a.qp, 1, &[source.sge(0, 8)], target.addr + 8 * number as u64, target.mr.rkey());
    }
    let [moving, _peer] = pair(&pd, &context);
    for round in 0..50 {
        drop(invalidate::begin(beside.addr, beside.len as u64));
        post_write(&moving.qp, 2, &[source.sge(0, PAGE)], beside.addr, beside.mr.rkey());
        assert_eq!(next(&moving, LONG), Some(Status::Success), "round {round}");
    }
    assert!(beside.values().page_faults >= 50);
    for [a, _] in &waiting {
        assert_eq!(next(a, Duration::from_millis(1)), None);
    }
    let values = target.values();
    assert_eq!((values.page_faults, values.page_faults_merged), (WAITING as u64, WAITING as u64 - 1));
    assert_eq!((values.page_faults_handled, values.page_fault_pages), (0, 0));
    slow.bring_in(target.addr, &[0x5a; PAGE]);
    for [a, _] in &waiting {
        assert_eq!(next(a, LONG), Some(Status::Success));
    }
    let values = target.values();
    assert_eq!((values.page_faults_handled, values.page_fault_pages), (WAITING as u64, 1));
    for number in 0..WAITING {
        assert_eq!(target.word(8 * number).load(Ordering::Relaxed), 0x1122_3344_5566_7788);
    }
    assert_eq!(target.word(8 * WAITING).load(Ordering::Relaxed), 0x5a5a_5a5a_5a5a_5a5a);
}

#[test]
#[ignore = "needs userfaultfd"]
fn more_slow_pages_than_initial_resolver_threads_delay_no_other_qp() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let addr = map(6);
    let slow = Slow::new(addr, 6 * PAGE as u64);
    let mr = pd.reg_on_demand_mr(addr, 6 * PAGE as u64, addr, ALL, false).unwrap();
    let target = Memory { addr, len: 6 * PAGE, mr };
    let (source, beside) = (Memory::new(&pd, 1), Memory::new(&pd, 1));
    let waiting: Vec<[End; 2]> = (0..6).map(|_| pair(&pd, &context)).collect();
    for (number, [a, _]) in waiting.iter().enumerate() {
        post_write(&a.qp, 1, &[source.sge(0, 8)], target.addr + (number * PAGE) as u64, target.mr.rkey());
    }
    let [moving, _peer] = pair(&pd, &context);
    post_write(&moving.qp, 2, &[source.sge(0, 8)], beside.addr, beside.mr.rkey());
    assert_eq!(next(&moving, LONG), Some(Status::Success));
    for (number, [a, _]) in waiting.iter().enumerate() {
        assert_eq!(next(a, Duration::from_millis(1)), None);
        slow.bring_in(target.addr + (number * PAGE) as u64, &[1; PAGE]);
        assert_eq!(next(a, LONG), Some(Status::Success));
    }
}
