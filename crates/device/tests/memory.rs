//! Regions, windows, device memory and domains of an opened adapter.

use std::sync::Arc;
use weir_device::{Context, Errno, Rereg, WindowType};
use weir_transport::Access;

const PAGE: usize = 4096;

fn open() -> Arc<Context> {
    Context::open("weir_lo").expect("the loopback interface is there")
}

/// Pages at an address that the kernel chooses; unmapped when dropped.
struct Pages {
    start: *mut libc::c_void,
    len: usize,
}

impl Pages {
    fn new(count: usize, protection: i32, extra_flags: i32) -> Option<Pages> {
        let (len, flags) = (count * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra_flags);
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        (start != libc::MAP_FAILED).then_some(Pages { start, len })
    }

    fn addr(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

#[test]
fn memory_must_allow_the_access_of_its_region() {
    let pd = open().alloc_pd().unwrap();
    let read_only = Pages::new(2, libc::PROT_READ, 0).unwrap();
    let reg = |access| pd.reg_mr(read_only.addr(), 5000, read_only.addr(), access).map(drop);
    assert_eq!(reg(Access::empty()), Ok(()));
    assert_eq!(reg(Access::REMOTE_READ), Ok(()));
    assert_eq!(reg(WRITABLE), Err(Errno(libc::EFAULT)));
    assert_eq!(reg(Access::REMOTE_WRITE), Err(Errno(libc::EINVAL)));
    assert_eq!(reg(Access::REMOTE_ATOMIC), Err(Errno(libc::EINVAL)));
    let none = Pages::new(1, libc::PROT_NONE, 0).unwrap();
    assert_eq!(pd.reg_mr(none.addr(), 1, 0, Access::empty()).err(), Some(Errno(libc::EFAULT)));
    assert_eq!(pd.reg_mr(read_only.addr(), 0, 0, Access::empty()).err(), Some(Errno(libc::EINVAL)));
    assert_eq!(pd.reg_mr(u64::MAX - 10, 100, 0, Access::empty()).err(), Some(Errno(libc::EINVAL)));
    assert_eq!(pd.dealloc(), Ok(()));
}

#[test]
#[ignore = "needs huge pages"]
fn huge_pages_are_registered_like_others() {
    let huge = Pages::new(512, READ_WRITE, libc::MAP_HUGETLB).expect("a huge page");
    let pd = open().alloc_pd().unwrap();
    let part = pd.reg_mr(huge.addr() + 4096, 8192, 0, WRITABLE).unwrap();
    let whole = pd.reg_mr(huge.addr(), 512 * PAGE as u64, 0, WRITABLE).unwrap();
    assert_eq!(whole.dereg(), Ok(()));
    assert_eq!(part.dereg(), Ok(()));
}

#[test]
fn reregistration_changes_all_of_a_region_or_nothing() {
    let context = open();
    let (pd, other) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let (a, b) = (Pages::new(1, READ_WRITE, 0).unwrap(), Pages::new(3, libc::PROT_READ, 0).unwrap());
    let mr = pd.reg_mr(a.addr(), 4096, a.addr(), Access::empty()).unwrap();
    let keys = (mr.lkey(), mr.rkey());
    assert_eq!(mr.rereg(&Rereg { pd: Some(other.clone()), ..Rereg::default() }), Ok(()));
    assert_eq!((pd.dealloc(), other.dealloc()), (Ok(()), Err(Errno(libc::EBUSY))), "it moved");
    assert_eq!(mr.rereg(&Rereg { translation: Some((b.addr(), 9000)), ..Rereg::default() }), Ok(()));
    assert_eq!(mr.length(), 9000);
    assert_eq!((mr.lkey(), mr.rkey()), keys);
    let write = Rereg { access: Some(WRITABLE), ..Rereg::default() };
    assert_eq!(mr.rereg(&write), Err(Errno(libc::EFAULT)), "the memory is read-only");
    let back = Rereg { translation: Some((a.addr(), 100)), access: Some(Access::REMOTE_WRITE), ..Rereg::default() };
    assert_eq!(mr.rereg(&back), Err(Errno(libc::EINVAL)));
    assert_eq!(mr.length(), 9000, "unchanged");
    assert_eq!(mr.rereg(&Rereg { translation: Some((a.addr(), 100)), ..write }), Ok(()));
    assert_eq!(mr.dereg(), Ok(()));
    assert_eq!(other.dealloc(), Ok(()));
    assert_eq!(mr.rereg(&Rereg::default()), Err(Errno(libc::EINVAL)), "it is gone");
}

#[test]
fn a_null_region_has_a_local_key_only() {
    let pd = open().alloc_pd().unwrap();
    let null = pd.alloc_null_mr().unwrap();
    assert_ne!(null.lkey(), 0);
    assert_eq!(null.rkey(), 0);
    assert_eq!(null.rereg(&Rereg { access: Some(WRITABLE), ..Rereg::default() }), Err(Errno(libc::EINVAL)));
    assert_eq!(null.dereg(), Ok(()));
    assert_eq!(pd.dealloc(), Ok(()));
}

#[test]
fn a_domain_is_busy_while_it_has_windows() {
    let pd = open().alloc_pd().unwrap();
    let windows = [WindowType::One, WindowType::Two].map(|kind| pd.alloc_mw(kind).unwrap());
    assert_ne!(windows[0].rkey() >> 8, windows[1].rkey() >> 8);
    assert_eq!(pd.dealloc(), Err(Errno(libc::EBUSY)));
    for window in windows {
        assert_eq!(window.dealloc(), Ok(()));
    }
    assert_eq!(pd.dealloc(), Ok(()));
}

#[test]
fn device_memory_is_busy_while_it_has_regions() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let dm = context.alloc_dm(100, 6).unwrap();
    let reg = |offset, len, access| pd.reg_dm_mr(&dm, offset, len, access);
    let access = WRITABLE | Access::ZERO_BASED;
    let invalid = Some(Errno(libc::EINVAL));
    assert_eq!(reg(0, 100, WRITABLE).err(), invalid, "not zero-based");
    assert_eq!(reg(0, 100, access | Access::MW_BIND).err(), invalid);
    assert_eq!(reg(0, 100, Access::ZERO_BASED | Access::REMOTE_ATOMIC).err(), invalid);
    assert_eq!(reg(0, 104, access).err(), invalid);
    assert_eq!(reg(4, 100, access).err(), invalid);
    let mr = reg(4, 96, access).unwrap();
    assert_eq!(mr.rereg(&Rereg { translation: Some((0x1000, 1)), ..Rereg::default() }), Err(Errno(libc::EINVAL)));
    assert_eq!(dm.free(), Err(Errno(libc::EBUSY)));
    assert_eq!(mr.dereg(), Ok(()));
    assert_eq!(dm.free(), Ok(()));
    for (len, align, errno) in [(0, 0, libc::EINVAL), (4, 64, libc::EINVAL), (1 << 40, 0, libc::ENOMEM)] {
        assert_eq!(context.alloc_dm(len, align).err(), Some(Errno(errno)), "{len} {align}");
    }
}

#[test]
fn a_parent_domain_keeps_its_domain_alive() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let parent = pd.parent_domain();
    let memory = Pages::new(1, READ_WRITE, 0).unwrap();
    let mr = parent.reg_mr(memory.addr(), 10, 0, WRITABLE).unwrap();
    assert_eq!(pd.dealloc(), Err(Errno(libc::EBUSY)));
    assert_eq!(parent.dealloc(), Err(Errno(libc::EBUSY)));
    mr.dereg().unwrap();
    assert_eq!(parent.dealloc(), Ok(()));
    assert_eq!(pd.dealloc(), Ok(()));
    let imported = pd.import(&open()).unwrap();
    let mr = imported.reg_mr(memory.addr(), 10, 0, WRITABLE).unwrap();
    assert_eq!(pd.dealloc(), Err(Errno(libc::EBUSY)), "imports share the count of the domain");
    mr.dereg().unwrap();
}
