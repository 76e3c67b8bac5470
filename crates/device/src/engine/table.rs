//! The QPs of an engine by number.

use crate::Errno;
use crate::engine::peers::PeerId;
use crate::paging::held::Held;
use crate::qp::Shared;
use crate::slot::INDEX_BITS;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_transport::{InFlight, Instant, Setbacks};

/// QPs that live or have just been retired.
pub struct Table {
    slot: u16,
    entries: Vec<Option<Box<Entry>>>,
    count: usize,
    next: u16,
}

/// What the engine knows of a QP.
pub struct Entry {
    pub shared: Arc<Shared>,
    /// Where its packets go.
    pub peer: Option<PeerId>,
    /// The peer process's epoch when the first packet went there.
    pub epoch: Option<u64>,
    /// What is on its peer's account.
    pub counted: InFlight,
    /// What of its troubles is counted already.
    pub setbacks: Setbacks,
    /// It stands in the ready list.
    pub ready: bool,
    /// It stands in its peer's waiting list.
    pub waiting: bool,
    /// It stands in the list of lazy ACKs.
    pub lazy: bool,
    /// Its owner has posted something since an ACK last waited in vain.
    pub answers: bool,
    /// The earliest deadline of it in the timers; `u64::MAX` if none.
    pub deadline: u64,
    /// It was destroyed: until then it acknowledges duplicates.
    pub retired: Option<Instant>,
    /// Packets that wait for a page.
    pub held: Held,
}

/// How long a retired QP acknowledges duplicates.
const AFTERLIFE: Duration = Duration::from_millis(300);

/// QPs that there may be at a time.
pub const INDICES: usize = 1 << INDEX_BITS;

impl Table {
    /// An empty table. Numbers start anywhere, so that a new process does not inherit the packets of an old one.
    pub fn new(slot: u16) -> Result<Table, Errno> {
        let start = getrandom::u32().map_err(|_| Errno(libc::EAGAIN))?;
        let mut entries = Vec::new();
        entries.resize_with(INDICES, || None);
        Ok(Table { slot, entries, count: 0, next: start as u16 % INDICES as u16 })
    }

    /// All that there could be.
    pub fn indices(&self) -> std::ops::Range<u16> {
        0..INDICES as u16
    }

    /// Number of QPs.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Enters the QP that `make` makes for its number. ENOMEM if there is no number left.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> Arc<Shared>) -> Result<Arc<Shared>, Errno> {
        let free = (0..INDICES as u16)
            .map(|step| self.next.wrapping_add(step) % INDICES as u16)
            .find(|index| self.entries[usize::from(*index)].is_none())
            .ok_or(Errno(libc::ENOMEM))?;
        self.next = (free + 1) % INDICES as u16;
        let shared = make(u32::from(self.slot) << INDEX_BITS | u32::from(free));
        self.entries[usize::from(free)] = Some(Box::new(Entry {
            shared: shared.clone(),
            peer: None,
            epoch: None,
            counted: InFlight::default(),
            setbacks: Setbacks::default(),
            ready: false,
            waiting: false,
            lazy: false,
            answers: false,
            deadline: u64::MAX,
            retired: None,
            held: Held::default(),
        }));
        self.count += 1;
        Ok(shared)
    }

    /// The index of a number that is there.
    pub fn index(&self, num: u32) -> Option<u16> {
        let index = (num & (INDICES as u32 - 1)) as u16;
        self.get(index).filter(|entry| entry.shared.num == num).map(|_| index)
    }

    pub fn get(&self, index: u16) -> Option<&Entry> {
        self.entries.get(usize::from(index))?.as_deref()
    }

    pub fn get_mut(&mut self, index: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(index))?.as_deref_mut()
    }

    /// Its owner is done with it.
    pub fn retire(&mut self, index: u16, now: Instant) {
        if let Some(entry) = self.get_mut(index) {
            entry.retired = Some(now + AFTERLIFE);
        }
    }

    pub fn remove(&mut self, index: u16) {
        if self.entries[usize::from(index)].take().is_some() {
            self.count -= 1;
        }
    }
}

impl Entry {
    pub fn bind(&mut self, peer: PeerId) {
        self.peer = Some(peer);
        self.epoch = None;
    }

    pub fn unbind(&mut self) -> Option<PeerId> {
        self.epoch = None;
        self.peer.take()
    }

    /// Its doorbell was heard: it may ring again.
    pub fn answer(&mut self) {
        self.shared.bell.answer();
        self.shared.unsent.store(0, Ordering::Relaxed);
        self.answers = true;
    }
}
