//! A host's memory: regions with or without contents, the presence of their pages, and the page faults under way.

use crate::ids::HostId;
use crate::packet::Payload;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use weir_transport::{AtomicOp, Chance, Denied, FaultEvents, Instant, PageFaults, Profile, Sge, Side};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// The contents of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// No contents: this many bytes, which read as zeros and need no memory.
    Phantom(u64),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// How a region is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// All pages are always present.
    Pinned,
    /// ODP memory; initially no page is present.
    OnDemand,
}

/// A registered region; it starts at a page boundary. Peers have all permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub host: HostId,
    /// Virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Local and remote key.
    pub key: u32,
}

impl Region {
    /// An SGE of a part of it.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr + offset, length, lkey: self.key }
    }
}

#[derive(Debug)]
struct RegionState {
    addr: u64,
    len: u64,
    bytes: Option<Vec<u8>>,
    /// For each page [`ABSENT`], [`PRESENT`], or the number of its fault; `None`: pinned.
    pages: Option<Vec<u32>>,
}

const ABSENT: u32 = u32::MAX;
const PRESENT: u32 = u32::MAX - 1;

/// A page fault under way. Several accesses may wait for it.
#[derive(Debug)]
struct Fault {
    region: usize,
    pages: Vec<u64>,
    /// QPs, by number, and their sides.
    waiters: Vec<(u32, Side)>,
    ends: Instant,
}

/// The side of a QP that accesses memory, and the time of the access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub now: Instant,
    pub qp: u32,
    pub side: Side,
}

#[derive(Debug)]
pub(crate) struct Memory {
    regions: Vec<RegionState>,
    next_addr: u64,
    faults: Vec<Option<Fault>>,
    free_faults: Vec<u32>,
    /// New faults; their ends are not in the event queue yet.
    pub begun: VecDeque<(Instant, u32)>,
    /// Page fault times of the adapter's profile.
    page_faults: PageFaults,
    /// The host's own time for a fault, a lower bound.
    least: Duration,
    /// The adapter's page-fault events, served one after the other.
    pub events: FaultEvents,
    chance: Chance,
    /// Number of faults so far.
    pub faulted: u64,
    /// Number of accesses so far that met a missing page.
    pub missed: u64,
}

impl Memory {
    /// Memory without regions; `least` is the shortest time of a page fault.
    pub fn new(profile: &Profile, least: Duration, seed: u64) -> Self {
        Memory {
            regions: Vec::new(),
            next_addr: 0x10_0000,
            faults: Vec::new(),
            free_faults: Vec::new(),
            begun: VecDeque::new(),
            page_faults: profile.page_faults,
            least,
            events: FaultEvents::new(profile.flood),
            chance: Chance::seeded(seed),
            faulted: 0,
            missed: 0,
        }
    }

    /// Registers a region at a new address.
    pub fn register(&mut self, host: HostId, backing: Backing, paging: Paging) -> Region {
        let (len, bytes) = match backing {
            Backing::Phantom(len) => (len, None),
            Backing::Bytes(bytes) => (bytes.len() as u64, Some(bytes)),
        };
        let pages = (paging == Paging::OnDemand).then(|| vec![ABSENT; len.div_ceil(PAGE) as usize]);
        let addr = self.next_addr;
        // An unregistered page separates the regions.
        self.next_addr += len.next_multiple_of(PAGE) + PAGE;
        self.regions.push(RegionState { addr, len, bytes, pages });
        Region { host, addr, len, key: (self.regions.len() as u32) << 8 }
    }

    /// Makes the pages of a range present or absent. A fault that is under way continues.
    pub fn set_present(&mut self, key: u32, bytes: Range<u64>, present: bool) {
        if let Some(index) = self.index(key)
            && let Some(pages) = &mut self.regions[index].pages
        {
            for page in &mut pages[(bytes.start / PAGE) as usize..bytes.end.div_ceil(PAGE) as usize] {
                *page = if present { PRESENT } else { ABSENT };
            }
        }
    }

    /// Begins to make the pages of a range present, and returns when they are: `now` if they are already. A thread of the
    /// host does this beside the queue of page-fault events, so it does not wait for them.
    pub fn prefetch(&mut self, now: Instant, key: u32, bytes: Range<u64>) -> Instant {
        let Some(index) = self.index(key) else { return now };
        let Some(pages) = &self.regions[index].pages else { return now };
        let range = bytes.start / PAGE..bytes.end.div_ceil(PAGE).min(pages.len() as u64);
        let states = range.clone().map(|page| pages[page as usize]);
        let under_way = states.clone().filter_map(|state| self.faults.get(state as usize)?.as_ref());
        let mut present = under_way.map(|fault| fault.ends).fold(now, Instant::max);
        if states.into_iter().any(|state| state == ABSENT) {
            let ends = now + self.page_faults.resolve.at(self.chance.share()).max(self.least);
            self.begin(index, range, Vec::new(), ends);
            present = present.max(ends);
        }
        present
    }

    /// A QP waits for no page any more.
    pub fn forget(&mut self, qp: u32) {
        self.events.forget(qp);
        self.faults.iter_mut().flatten().for_each(|fault| fault.waiters.retain(|(waiter, _)| *waiter != qp));
    }

    /// Whether the page at `offset` is present.
    pub fn is_present(&self, key: u32, offset: u64) -> bool {
        let region = self.index(key).map(|index| &self.regions[index]);
        region.is_some_and(|r| r.pages.as_ref().is_none_or(|pages| pages[(offset / PAGE) as usize] == PRESENT))
    }

    /// Contents; `None` if the region has none.
    pub fn contents(&self, key: u32) -> Option<&[u8]> {
        self.regions[self.index(key)?].bytes.as_deref()
    }

    /// Contents, for writing; `None` if the region has none.
    pub fn contents_mut(&mut self, key: u32) -> Option<&mut [u8]> {
        let index = self.index(key)?;
        self.regions[index].bytes.as_deref_mut()
    }

    /// Checks key and bounds only. All regions permit every access.
    pub fn check(&self, key: u32, addr: u64, len: u64) -> Result<(), Denied> {
        self.find(key, addr, len).map(drop)
    }

    /// Checks each SGE that is not empty.
    pub fn check_sges(&self, sges: &[Sge]) -> Result<(), Denied> {
        let filled = sges.iter().filter(|sge| sge.length > 0);
        filled.clone().try_for_each(|sge| self.check(sge.lkey, sge.addr, u64::from(sge.length)))
    }

    /// Checks that a range is present, and returns the index of its region. If it is not present, a fault resolves its
    /// missing pages and those up to `end`.
    #[inline(always)]
    pub fn reach(&mut self, key: u32, addr: u64, len: u64, end: u64, accessor: Accessor) -> Result<usize, Denied> {
        let index = self.find(key, addr, len)?;
        if self.regions[index].pages.is_some() {
            self.reach_pages(index, addr, len, end, accessor)?;
        }
        Ok(index)
    }

    /// As `reach`, in a region of ODP memory.
    #[inline(never)]
    fn reach_pages(&mut self, index: usize, addr: u64, len: u64, end: u64, accessor: Accessor) -> Result<(), Denied> {
        let region = &self.regions[index];
        let Some(pages) = &region.pages else { return Ok(()) };
        let missing = pages_of(region, addr, len).find(|&page| pages[page as usize] != PRESENT);
        match missing.map(|page| (page, pages[page as usize])) {
            None => return Ok(()),
            Some((page, ABSENT)) => {
                let until = pages_of(region, addr, end.saturating_sub(addr).max(len)).end;
                self.begin_of(index, page..until, accessor);
            }
            Some((_, fault)) => {
                if let Some(Fault { waiters, .. }) = &mut self.faults[fault as usize]
                    && !waiters.contains(&(accessor.qp, accessor.side))
                {
                    waiters.push((accessor.qp, accessor.side));
                }
            }
        }
        self.missed += 1;
        Err(Denied::PageFault)
    }

    /// The same for `len` bytes at `offset` of an SGE list; a fault also resolves the bytes after them in each SGE.
    pub fn ensure_sges_present(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: u64,
        accessor: Accessor,
    ) -> Result<(), Denied> {
        for_each_segment(sges, offset, len, |sge, addr, len, _| {
            self.reach(sge.lkey, addr, len, sge.addr + u64::from(sge.length), accessor).map(drop)
        })
    }

    /// Extends the fault that is under way in a range, if any, to all of its absent pages.
    pub fn expect(&mut self, key: u32, addr: u64, len: u64) {
        let Ok(index) = self.find(key, addr, len) else { return };
        let region = &mut self.regions[index];
        let range = pages_of(region, addr, len);
        let Some(pages) = &mut region.pages else { return };
        let under_way = |page: u64| Some(pages[page as usize]).filter(|&state| state != ABSENT && state != PRESENT);
        let Some(number) = range.clone().find_map(under_way) else { return };
        let Some(fault) = &mut self.faults[number as usize] else { return };
        for page in range {
            if pages[page as usize] == ABSENT {
                pages[page as usize] = number;
                fault.pages.push(page);
            }
        }
    }

    /// The addresses of the pages that a fault under way resolves.
    pub fn pages_of_fault(&self, number: u32) -> Vec<u64> {
        let Some(fault) = &self.faults[number as usize] else { return Vec::new() };
        fault.pages.iter().map(|page| self.regions[fault.region].addr + page * PAGE).collect()
    }

    /// Ends a fault: its pages are present. Returns the sides of QPs that waited.
    pub fn end_fault(&mut self, number: u32) -> Vec<(u32, Side)> {
        let Some(fault) = self.faults[number as usize].take() else { return Vec::new() };
        self.free_faults.push(number);
        if let Some(pages) = &mut self.regions[fault.region].pages {
            for page in fault.pages {
                // Unless it was made absent meanwhile.
                if pages[page as usize] == number {
                    pages[page as usize] = PRESENT;
                }
            }
        }
        fault.waiters
    }

    /// Payload from `len` bytes at `offset` of SGEs; a fault resolves missing pages, as in `ensure_sges_present`.
    #[inline(always)]
    pub fn gather(&mut self, sges: &[Sge], offset: u64, len: usize, accessor: Accessor) -> Result<Payload, Denied> {
        // Most payload comes from a single SGE.
        if let [sge] = sges
            && offset + len as u64 <= u64::from(sge.length)
        {
            let end = sge.addr + u64::from(sge.length);
            let region = self.reach(sge.lkey, sge.addr + offset, len as u64, end, accessor)?;
            return Ok(self.load(region, sge.addr + offset, len));
        }
        self.gather_segments(sges, offset, len, accessor)
    }

    /// As `gather`, from several SGEs.
    #[inline(never)]
    fn gather_segments(
        &mut self,
        sges: &[Sge],
        offset: u64,
        len: usize,
        accessor: Accessor,
    ) -> Result<Payload, Denied> {
        let mut phantom = true;
        for_each_segment(sges, offset, len as u64, |sge, addr, len, _| {
            let region = self.reach(sge.lkey, addr, len, sge.addr + u64::from(sge.length), accessor)?;
            phantom &= self.regions[region].bytes.is_none();
            Ok(())
        })?;
        if phantom {
            return Ok(Payload::Phantom(len as u32));
        }
        let mut bytes = vec![0; len];
        for_each_segment(sges, offset, len as u64, |sge, addr, len, at| {
            self.read(sge.lkey, addr, &mut bytes[at as usize..][..len as usize])
        })?;
        Ok(Payload::Bytes(bytes.into()))
    }

    /// Payload from a range that `reach` found in this region.
    #[inline(always)]
    pub fn load(&self, region: usize, addr: u64, len: usize) -> Payload {
        let region = &self.regions[region];
        match &region.bytes {
            None => Payload::Phantom(len as u32),
            Some(all) => Payload::Bytes(all[(addr - region.addr) as usize..][..len].into()),
        }
    }

    /// Stores bytes in a range that `reach` found in this region, if the region has contents.
    #[inline(always)]
    pub fn store(&mut self, region: usize, addr: u64, bytes: &[u8]) {
        let region = &mut self.regions[region];
        if let Some(all) = &mut region.bytes {
            all[(addr - region.addr) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Checks a range, and stores bytes there.
    fn write(&mut self, key: u32, addr: u64, bytes: &[u8]) -> Result<(), Denied> {
        let region = self.find(key, addr, bytes.len() as u64)?;
        self.store(region, addr, bytes);
        Ok(())
    }

    /// Stores bytes to an SGE list.
    pub fn scatter(&mut self, sges: &[Sge], offset: u64, bytes: &[u8]) -> Result<(), Denied> {
        for_each_segment(sges, offset, bytes.len() as u64, |sge, addr, len, at| {
            self.write(sge.lkey, addr, &bytes[at as usize..][..len as usize])
        })
    }

    /// Executes an atomic; without contents, on a zero that does not change.
    pub fn atomic(&mut self, key: u32, addr: u64, op: AtomicOp) -> Result<u64, Denied> {
        let mut word = [0; 8];
        self.read(key, addr, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = match op {
            AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
            AtomicOp::CompareSwap { .. } => before,
            AtomicOp::FetchAdd { add } => before.wrapping_add(add),
        };
        self.write(key, addr, &after.to_ne_bytes())?;
        Ok(before)
    }

    fn read(&self, key: u32, addr: u64, into: &mut [u8]) -> Result<(), Denied> {
        let region = &self.regions[self.find(key, addr, into.len() as u64)?];
        match &region.bytes {
            None => into.fill(0),
            Some(all) => into.copy_from_slice(&all[(addr - region.addr) as usize..][..into.len()]),
        }
        Ok(())
    }

    /// Begins the fault of an access.
    fn begin_of(&mut self, region: usize, range: Range<u64>, accessor: Accessor) {
        let time = self.page_faults.resolve.at(self.chance.share()).max(self.least);
        let requester = (accessor.side == Side::Requester).then_some(accessor.qp);
        let in_turn = self.page_faults.serial || self.events.resume_requesters();
        let ends = if in_turn { self.events.fault(accessor.now, time, requester) } else { accessor.now + time };
        self.begin(region, range, vec![(accessor.qp, accessor.side)], ends);
        self.faulted += 1;
    }

    fn begin(&mut self, region: usize, range: Range<u64>, waiters: Vec<(u32, Side)>, ends: Instant) {
        let number = self.free_faults.pop().unwrap_or(self.faults.len() as u32);
        if number as usize == self.faults.len() {
            self.faults.push(None);
        }
        let pages = self.regions[region].pages.as_mut().expect("only ODP memory has faults");
        let range: Vec<u64> = range.filter(|&page| pages[page as usize] == ABSENT).collect();
        for &page in &range {
            pages[page as usize] = number;
        }
        self.faults[number as usize] = Some(Fault { region, pages: range, waiters, ends });
        self.begun.push_back((ends, number));
    }

    #[inline]
    fn index(&self, key: u32) -> Option<usize> {
        let index = ((key >> 8) as usize).checked_sub(1)?;
        (key & 0xff == 0 && index < self.regions.len()).then_some(index)
    }

    #[inline]
    fn find(&self, key: u32, addr: u64, len: u64) -> Result<usize, Denied> {
        let index = self.index(key).ok_or(Denied::Protection)?;
        let region = &self.regions[index];
        let offset = addr.checked_sub(region.addr).ok_or(Denied::Protection)?;
        let end = offset.checked_add(len).ok_or(Denied::Protection)?;
        if end <= region.len { Ok(index) } else { Err(Denied::Protection) }
    }
}

fn pages_of(region: &RegionState, addr: u64, len: u64) -> Range<u64> {
    let offset = addr - region.addr;
    offset / PAGE..(offset + len).div_ceil(PAGE)
}

/// Calls `each` for the parts of the SGE list that `len` bytes at `offset` cover, with the SGE, address, length, and
/// offset within the `len` bytes.
pub(crate) fn for_each_segment(
    sges: &[Sge],
    mut offset: u64,
    len: u64,
    mut each: impl FnMut(&Sge, u64, u64, u64) -> Result<(), Denied>,
) -> Result<(), Denied> {
    let mut done = 0;
    for sge in sges {
        let length = u64::from(sge.length);
        if offset >= length {
            offset -= length;
            continue;
        }
        let take = (len - done).min(length - offset);
        if take > 0 {
            each(sge, sge.addr + offset, take, done)?;
        }
        done += take;
        offset = 0;
    }
    Ok(())
}
