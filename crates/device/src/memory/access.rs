//! The way to application memory. A key, a range and the rights that an access needs lead to an address, to a denial
//! or to a page fault. The path of arrivals (`engine/host.rs`) and that of departures (`engine/staging.rs`) use it.
//!
//! It is on the path of every packet: functions are inlined, so that the type of a key and the rights, which are
//! constants at each call, cost no branch.

use crate::memory::copy;
use crate::memory::keys::{Cached, Regions};
use crate::memory::refusal::{AccessRefusal, Refusal};
use crate::memory::region::AccessTarget;
use crate::memory::window::User;
use crate::paging::{FaultOrigin, Paged, QpFaults};
use std::sync::Arc;
use weir_transport::{Access, AtomicOp, Denied, Remote, Sge, Side};

/// Application memory as a QP uses it for one of its sides.
pub struct Memory<'a> {
    /// The QP and its PD.
    pub user: User,
    /// The side that meets page faults.
    pub side: Side,
    pub regions: &'a Regions,
    pub cached: &'a mut Cached,
    pub faults: &'a Arc<QpFaults>,
}

/// A range of application memory as a key addresses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub key: Key,
    /// First byte, in the key's own addressing.
    pub va: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of the message from `va` on: a page fault may populate the pages of all of them.
    pub left: u64,
}

/// The key of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The lkey of an SGE.
    Local(u32),
    /// The rkey that the peer gave. `pd`: the PD in place of that of the QP.
    Remote { rkey: u32, pd: Option<u32> },
}

/// Memory that a key grants for an access.
#[derive(Clone, Copy)]
pub struct Granted {
    /// Address of the first byte in this process.
    pub addr: u64,
    len: u64,
    left: u64,
    write: bool,
    /// The pages of an ODP region.
    paged: Option<Paged>,
}

/// Rights of accesses that write.
const WRITES: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// The parts of an SGE list that hold bytes `offset .. offset + len` of the whole list.
#[inline]
pub fn extents(sges: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = Extent> {
    let mut skip = offset;
    let mut rest = len as u64;
    sges.iter().filter_map(move |sge| {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            return None;
        }
        let at = std::mem::take(&mut skip);
        let take = rest.min(length - at);
        rest -= take;
        (take > 0).then(|| Extent {
            key: Key::Local(sge.lkey),
            va: sge.addr.wrapping_add(at),
            len: take,
            left: length - at,
        })
    })
}

impl Extent {
    /// A complete SGE.
    #[inline]
    pub fn of_sge(sge: &Sge) -> Extent {
        let len = sge.length.into();
        Extent { key: Key::Local(sge.lkey), va: sge.addr, len, left: len }
    }

    /// Memory that the peer names.
    #[inline]
    pub fn of_remote(range: &Remote) -> Extent {
        let &Remote { pd, rkey, va, len } = range;
        Extent { key: Key::Remote { rkey, pd }, va, len, left: len }
    }
}

impl Memory<'_> {
    /// Checks key, PD, bounds and rights, but not whether pages are present. `None`: a null region.
    #[inline(always)]
    pub fn check(&mut self, extent: Extent, access: Access) -> Result<Option<Granted>, Denied> {
        let granted = self.granted(extent, access);
        if granted.is_err() {
            self.note_refusal(extent, access);
        }
        granted
    }

    /// Keeps the reason for the log, which has it if the QP fails.
    #[cold]
    #[inline(never)]
    fn note_refusal(&self, extent: Extent, access: Access) {
        let Extent { key, va, len, .. } = extent;
        let (number, pd) = match key {
            Key::Local(lkey) => (lkey, None),
            Key::Remote { rkey, pd } => (rkey, Some(pd.unwrap_or(self.user.pd))),
        };
        let why = self.regions.explain(self.user, number, pd, (va, len), access);
        let refusal = AccessRefusal { side: self.side, remote: pd.is_some(), key: number, va, len, why };
        self.faults.note_refusal(Refusal::Access(refusal));
    }

    #[inline(always)]
    fn granted(&mut self, extent: Extent, access: Access) -> Result<Option<Granted>, Denied> {
        let Extent { key, va, len, left } = extent;
        let (Key::Local(number) | Key::Remote { rkey: number, .. }) = key;
        let region = self.regions.find(number, self.cached)?;
        let target = match key {
            Key::Local(_) => region.local(self.user.pd, va, len, access)?,
            Key::Remote { pd, .. } => {
                let pd = pd.unwrap_or(self.user.pd);
                AccessTarget::Memory(region.remote(pd, self.user.qp, va, len, access)?)
            }
        };
        Ok(match target {
            AccessTarget::Memory(addr) => {
                Some(Granted { addr, len, left, write: access.intersects(WRITES), paged: region.paged })
            }
            AccessTarget::Null => None,
        })
    }

    /// As [`Memory::check`], for all memory of a key that the peer gave.
    pub fn check_whole(&mut self, rkey: u32, access: Access) -> Result<(), Denied> {
        let region = self.regions.find(rkey, self.cached)?;
        region.remote(self.user.pd, self.user.qp, region.iova, region.len, access).map(drop)
    }

    /// As [`Memory::check`], and the pages are present: a missing page raises a page fault.
    #[inline(always)]
    pub fn access(&mut self, extent: Extent, access: Access) -> Result<Option<Granted>, Denied> {
        let granted = self.check(extent, access)?;
        if let Some(granted) = granted {
            self.admit(granted)?;
        }
        Ok(granted)
    }

    /// Copies `bytes`, as many as the extent has, to application memory. A null region discards them.
    #[inline(always)]
    pub fn write(&mut self, to: Extent, access: Access, bytes: &[u8]) -> Result<(), Denied> {
        debug_assert_eq!(to.len, bytes.len() as u64);
        let Some(granted) = self.access(to, access)? else { return Ok(()) };
        // SAFETY: `bytes` is a slice of the caller; the application's side may be in any state.
        unsafe { copy::copy(granted.addr as *mut u8, bytes.as_ptr(), bytes.len()) }.map_err(|_| self.missed(granted))
    }

    /// Fills `bytes`, as many as the extent has, from application memory. A null region reads as zeros.
    #[inline(always)]
    pub fn read(&mut self, from: Extent, access: Access, bytes: &mut [u8]) -> Result<(), Denied> {
        debug_assert_eq!(from.len, bytes.len() as u64);
        let Some(granted) = self.access(from, access)? else {
            bytes.fill(0);
            return Ok(());
        };
        // SAFETY: `bytes` is a slice of the caller; the application's side may be in any state.
        unsafe { copy::copy(bytes.as_mut_ptr(), granted.addr as *const u8, bytes.len()) }
            .map_err(|_| self.missed(granted))
    }

    /// Copies `bytes` to SGEs, from byte `offset` of the list on.
    #[inline]
    pub fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        let mut rest = bytes;
        for extent in extents(sges, offset, bytes.len()) {
            let (now, later) = rest.split_at(extent.len as usize);
            self.write(extent, Access::LOCAL_WRITE, now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(Denied::Protection) }
    }

    /// Fills `bytes` from SGEs, from byte `offset` of the list on.
    #[inline]
    pub fn gather(&mut self, sges: &[Sge], offset: u64, bytes: &mut [u8]) -> Result<(), Denied> {
        let mut rest = bytes;
        for extent in extents(sges, offset, rest.len()) {
            let (now, later) = rest.split_at_mut(extent.len as usize);
            self.read(extent, Access::empty(), now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(Denied::Protection) }
    }

    /// Performs an atomic on the 8 bytes of an extent, and returns the previous value. They must be aligned.
    #[inline]
    pub fn atomic(&mut self, at: Extent, op: AtomicOp) -> Result<u64, Denied> {
        let granted = self.check(at, Access::REMOTE_ATOMIC)?.ok_or(Denied::Protection)?;
        let addr = granted.addr as *mut u64;
        if !addr.is_aligned() {
            return Err(Denied::Protection);
        }
        self.admit(granted)?;
        // SAFETY: aligned, as just checked; the memory may be in any state.
        let before = unsafe {
            match op {
                AtomicOp::CompareSwap { compare, swap } => copy::compare_swap(addr, compare, swap),
                AtomicOp::FetchAdd { add } => copy::fetch_add(addr, add),
            }
        };
        before.map_err(|_| self.missed(granted))
    }

    /// The message that met a page fault continues in this extent: its pages are populated ahead.
    #[cold]
    pub fn populate_ahead(&mut self, extent: Extent, access: Access) {
        if let Ok(Some(Granted { addr, len, write, paged: Some(paged), .. })) = self.check(extent, access) {
            paged.populate_ahead(addr, len, write);
        }
    }

    #[inline(always)]
    fn admit(&self, granted: Granted) -> Result<(), Denied> {
        let Granted { addr, len, left, write, paged } = granted;
        match paged {
            None => Ok(()),
            Some(paged) => paged.admit(addr, len, left, write, self.origin()),
        }
    }

    /// An access failed although it was admitted.
    #[cold]
    fn missed(&self, granted: Granted) -> Denied {
        match granted.paged {
            None => Denied::Unmapped,
            Some(paged) => paged.missed(granted.addr, granted.len, granted.write, self.origin()),
        }
    }

    #[inline]
    fn origin(&self) -> FaultOrigin<'_> {
        FaultOrigin { faults: self.faults, side: self.side }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::region::{Kind, Region};
    use crate::paging::counters::{self, Pair};
    use crate::paging::{OnDemand, Owner, Resolver};
    use std::sync::Weak;
    use weir_transport::Profile;

    /// First byte of the region in its own addressing.
    const BASE: u64 = 0x5000;
    const PAGE: u64 = 4096;
    const QP: User = User { pd: 1, qp: 7 };
    const ALL: Access = WRITES.union(Access::REMOTE_READ);

    /// Three aligned pages and a table of regions.
    struct Bed {
        bytes: Box<[Page; 3]>,
        regions: Regions,
        faults: Arc<QpFaults>,
    }

    #[derive(Clone, Copy)]
    #[repr(align(4096))]
    struct Page([u8; PAGE as usize]);

    struct NoAdapter;

    impl Owner for NoAdapter {
        fn quiesce(&self) {}
        fn resolved(&self, _: &[(u32, Side)]) {}
    }

    impl Bed {
        fn new() -> Bed {
            copy::install_handler();
            let bytes = Box::new([Page([7; PAGE as usize]); 3]);
            Bed { bytes, regions: Regions::default(), faults: Arc::new(QpFaults::new(QP.qp)) }
        }

        fn addr(&self) -> u64 {
            self.bytes.as_ptr().addr() as u64
        }

        fn register(&self, kind: Kind, access: Access, paged: Option<Paged>) -> u32 {
            let (addr, len) = (self.addr(), 3 * PAGE);
            let region = Region { key: 0, pd: QP.pd, addr, iova: BASE, len, access, kind, paged };
            self.regions.insert(region).unwrap()
        }

        /// An ODP region of these pages without any page in its table, and without threads that populate it.
        fn on_demand(&self) -> Arc<OnDemand> {
            let owner: Weak<dyn Owner> = Weak::<NoAdapter>::new();
            let resolver = Resolver::new(owner, &Profile::ideal());
            let pair = Pair::new(counters::of_device("access-test"));
            let region = Arc::new(OnDemand::new(self.addr(), 3 * PAGE, true, pair, resolver).unwrap());
            assert!(region.table.make_room(region.pages()));
            region
        }

        fn access(&self, user: User, extent: Extent, access: Access) -> Result<Option<u64>, Denied> {
            let cached = &mut Cached::default();
            let faults = &self.faults;
            let mut memory = Memory { user, side: Side::Responder, regions: &self.regions, cached, faults };
            memory.access(extent, access).map(|granted| granted.map(|granted| granted.addr))
        }

        fn with<T>(&self, work: impl FnOnce(&mut Memory<'_>) -> T) -> T {
            let cached = &mut Cached::default();
            let faults = &self.faults;
            work(&mut Memory { user: QP, side: Side::Responder, regions: &self.regions, cached, faults })
        }
    }

    fn local(lkey: u32, va: u64, len: u64) -> Extent {
        Extent { key: Key::Local(lkey), va, len, left: len }
    }

    fn remote(rkey: u32, va: u64, len: u64) -> Extent {
        Extent::of_remote(&Remote { pd: None, rkey, va, len })
    }

    #[test]
    fn extents_follow_the_sge_list_from_any_offset() {
        let sge = |lkey: u32, length| Sge { addr: 100 * u64::from(lkey), length, lkey };
        let list = [sge(1, 5), sge(2, 0), sge(3, 3), sge(4, 10)];
        let got = |offset, len| {
            let parts = extents(&list, offset, len);
            parts.map(|Extent { key, va, len, left }| (key, va, len, left)).collect::<Vec<_>>()
        };
        let [a, c, d] = [1, 3, 4].map(Key::Local);
        assert_eq!(got(0, 18), [(a, 100, 5, 5), (c, 300, 3, 3), (d, 400, 10, 10)]);
        assert_eq!(got(4, 5), [(a, 104, 1, 1), (c, 300, 3, 3), (d, 400, 1, 10)]);
        assert_eq!(got(8, 1), [(d, 400, 1, 10)]);
        assert_eq!(got(10, 3), [(d, 402, 3, 8)]);
        assert_eq!(got(10, 30), [(d, 402, 8, 8)], "the list is shorter");
        assert_eq!(got(18, 0), []);
        let wraps = [Sge { addr: u64::MAX, length: 2, lkey: 1 }];
        assert_eq!(extents(&wraps, 1, 1).next().unwrap().va, 0);
    }

    #[test]
    fn an_access_needs_key_domain_bounds_and_rights() {
        let bed = Bed::new();
        let key = bed.register(Kind::Memory, ALL, None);
        let (addr, denied) = (bed.addr(), Err(Denied::Protection));
        let write = Access::REMOTE_WRITE;
        assert_eq!(bed.access(QP, remote(key, BASE + 1, 2), write), Ok(Some(addr + 1)));
        assert_eq!(bed.access(QP, local(key, BASE + 3 * PAGE - 1, 1), Access::empty()), Ok(Some(addr + 3 * PAGE - 1)));
        for extent in [remote(key ^ 1, BASE, 1), remote(key, BASE - 1, 1), remote(key, BASE, 3 * PAGE + 1)] {
            assert_eq!(bed.access(QP, extent, write), denied, "{extent:?}");
        }
        let elsewhere = User { pd: 2, ..QP };
        assert_eq!(bed.access(elsewhere, local(key, BASE, 1), Access::empty()), denied);
        let named = Extent { key: Key::Remote { rkey: key, pd: Some(QP.pd) }, ..remote(key, BASE, 1) };
        assert_eq!(bed.access(elsewhere, named, write), Ok(Some(addr)), "the PD of the request");
        let readable = bed.register(Kind::Memory, Access::REMOTE_READ, None);
        assert_eq!(bed.access(QP, remote(readable, BASE, 1), Access::REMOTE_READ), Ok(Some(addr)));
        assert_eq!(bed.access(QP, remote(readable, BASE, 1), write), denied);
        assert_eq!(bed.access(QP, local(readable, BASE, 1), Access::LOCAL_WRITE), denied);
    }

    #[test]
    fn a_window_is_for_its_qp_and_no_lkey() {
        let bed = Bed::new();
        let key = bed.register(Kind::Window { qp: Some(QP.qp) }, ALL, None);
        assert_eq!(bed.access(QP, remote(key, BASE, 1), Access::REMOTE_READ), Ok(Some(bed.addr())));
        let other = User { qp: 8, ..QP };
        assert_eq!(bed.access(other, remote(key, BASE, 1), Access::REMOTE_READ), Err(Denied::Protection));
        assert_eq!(bed.access(QP, local(key, BASE, 1), Access::empty()), Err(Denied::Protection));
    }

    #[test]
    fn a_null_region_reads_as_zeros_and_discards_writes() {
        let bed = Bed::new();
        let key = bed.register(Kind::Null, ALL, None);
        assert_eq!(bed.access(QP, local(key, BASE, 1), Access::empty()), Ok(None));
        assert_eq!(bed.access(QP, remote(key, BASE, 1), Access::REMOTE_READ), Err(Denied::Protection));
        let mut bytes = [1; 4];
        let sges = [Sge { addr: BASE, length: 4, lkey: key }];
        bed.with(|memory| {
            memory.scatter(&sges, 0, &bytes).unwrap();
            memory.gather(&sges, 0, &mut bytes).unwrap();
        });
        assert_eq!((bytes, bed.bytes[0].0[0]), ([0; 4], 7));
    }

    #[test]
    fn bytes_are_scattered_and_gathered_in_order() {
        let bed = Bed::new();
        let key = bed.register(Kind::Memory, ALL, None);
        let sges = [
            Sge { addr: BASE + PAGE, length: 3, lkey: key },
            Sge { addr: BASE, length: 0, lkey: 0 },
            Sge { addr: BASE, length: 2, lkey: key },
        ];
        let mut back = [0; 5];
        bed.with(|memory| {
            memory.scatter(&sges, 1, &[1, 2, 3, 4]).unwrap();
            memory.gather(&sges, 0, &mut back).unwrap();
            assert_eq!(memory.scatter(&sges, 1, &[0; 5]), Err(Denied::Protection), "the list is shorter");
            assert_eq!(memory.gather(&sges, 2, &mut [0; 4]), Err(Denied::Protection));
        });
        assert_eq!(back, [7, 1, 2, 3, 4]);
    }

    #[test]
    fn a_missing_page_is_a_page_fault_once_rights_are_checked() {
        let bed = Bed::new();
        let region = bed.on_demand();
        let key = bed.register(Kind::Memory, ALL, Some(Paged::of(&region)));
        let first = region.pages().start;
        assert_eq!(bed.access(QP, remote(key, BASE - 1, 1), Access::REMOTE_WRITE), Err(Denied::Protection));
        assert_eq!(bed.with(|m| m.atomic(remote(key, BASE + 4, 8), AtomicOp::FetchAdd { add: 1 })), {
            Err(Denied::Protection)
        });
        assert!(bed.with(|m| m.check(remote(key, BASE, 1), Access::REMOTE_WRITE)).is_ok(), "pages are not checked");
        assert_eq!(region.counters.own.read().page_faults, 0);

        region.table.enter(first..first + 1, false);
        assert_eq!(bed.access(QP, remote(key, BASE, PAGE), Access::REMOTE_READ), Ok(Some(bed.addr())));

        assert_eq!(bed.access(QP, remote(key, BASE, 1), Access::REMOTE_WRITE), Err(Denied::PageFault), "only readable");
        assert_eq!(region.counters.own.read().page_faults, 1);
        bed.faults.end(Side::Responder, Some((first, true)));
        assert_eq!(bed.access(QP, remote(key, BASE, 1), Access::REMOTE_WRITE), Err(Denied::Unmapped), "not populated");
        region.table.enter(first..first + 3, true);
        assert_eq!(bed.access(QP, remote(key, BASE, 3 * PAGE), Access::REMOTE_WRITE), Ok(Some(bed.addr())));
    }

    #[test]
    fn memory_that_is_gone_is_unmapped_or_a_page_fault() {
        // SAFETY: a new mapping without permissions, which stays.
        let addr = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), PAGE as usize, libc::PROT_NONE, flags, -1, 0)
        } as u64;
        let bed = Bed::new();
        let pinned =
            Region { key: 0, pd: QP.pd, addr, iova: BASE, len: PAGE, access: ALL, kind: Kind::Memory, paged: None };
        let key = bed.regions.insert(pinned).unwrap();
        let write = |key| bed.with(|m| m.write(remote(key, BASE, 2), Access::REMOTE_WRITE, &[0; 2]));
        assert_eq!(write(key), Err(Denied::Unmapped));
        let resolver = Resolver::new(Weak::<NoAdapter>::new() as Weak<dyn Owner>, &Profile::ideal());
        let pair = Pair::new(counters::of_device("access-test"));
        let region = Arc::new(OnDemand::new(addr, PAGE, true, pair, resolver).unwrap());
        assert!(region.table.make_room(region.pages()));
        region.table.enter(region.pages(), true);
        let key = bed.regions.insert(Region { paged: Some(Paged::of(&region)), ..pinned }).unwrap();
        assert_eq!(write(key), Err(Denied::PageFault), "it is missing in fact");
        assert_eq!(region.table.present(), 0, "it leaves the table");
    }
}
