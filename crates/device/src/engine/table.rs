//! The QPs of an engine by number.

use crate::Errno;
use crate::context::LIMITS;
use crate::engine::connection::Connection;
use crate::engine::order::{Keys, NUMBERS, Order};
use crate::engine::peer::PeerId;
use crate::paging::held::Held;
use crate::qp::Shared;
use crate::slot::INDEX_BITS;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_transport::{InFlight, Instant, Setbacks};

/// QPs that live or have just been retired.
pub struct Table {
    slot: u16,
    entries: Vec<Option<Box<Entry>>>,
    count: usize,
    order: Order,
    /// Those that were retired, the oldest first, and until when they stay. Some of them may be gone.
    retired: VecDeque<(u16, Instant)>,
    /// How many of them are there.
    resting: usize,
}

/// What the engine knows of a QP.
pub struct Entry {
    pub shared: Arc<Shared>,
    /// Where its packets go.
    pub peer: Option<PeerId>,
    /// What shows that the right process is there.
    pub connection: Connection,
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
    /// The earliest deadline of it in the timers; `u64::MAX` if none.
    pub deadline: u64,
    /// It was destroyed: until then it acknowledges duplicates.
    pub retired: Option<Instant>,
    /// Packets that wait for a page.
    pub held: Held,
}

/// How long a retired QP acknowledges duplicates, unless numbers run out before.
const AFTERLIFE: Duration = Duration::from_millis(300);

/// QPs that there may be at a time.
pub const INDICES: usize = 1 << INDEX_BITS;
const _: () = assert!(INDICES == NUMBERS as usize && (LIMITS.max_qp as usize) < INDICES);

impl Table {
    /// An empty table. Numbers come in an order of this process's own, so that it does not inherit the packets of an
    /// old one.
    pub fn new(slot: u16) -> Result<Table, Errno> {
        let mut keys = Keys::default();
        for key in &mut keys {
            *key = getrandom::u64().map_err(|_| Errno(libc::EAGAIN))?;
        }
        let mut entries = Vec::new();
        entries.resize_with(INDICES, || None);
        let retired = VecDeque::with_capacity(INDICES);
        Ok(Table { slot, entries, count: 0, order: Order::new(keys), retired, resting: 0 })
    }

    /// All that there could be.
    pub fn indices(&self) -> std::ops::Range<u16> {
        0..INDICES as u16
    }

    /// Number of QPs, retired ones among them.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The QP that was retired first, where it must give way to the next that is inserted.
    pub fn must_give_way(&mut self) -> Option<u16> {
        if self.count < INDICES {
            return None;
        }
        while let Some((index, until)) = self.retired.pop_front() {
            if self.get(index).is_some_and(|entry| entry.retired == Some(until)) {
                return Some(index);
            }
        }
        None
    }

    /// Enters the QP that `make` makes for its number. ENOMEM if there are as many QPs as there may be, or no number is
    /// left, retired QPs being asked to give way before. Else the error of `make`.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> Result<Arc<Shared>, Errno>) -> Result<Arc<Shared>, Errno> {
        if self.count == INDICES || self.count - self.resting >= LIMITS.max_qp as usize {
            return Err(Errno(libc::ENOMEM));
        }
        let order = &mut self.order;
        let free = std::iter::repeat_with(|| order.take()).find(|index| self.entries[usize::from(*index)].is_none());
        let free = free.expect("one of all numbers is free");
        let num = u32::from(self.slot) << INDEX_BITS | u32::from(free);
        let shared = make(num)?;
        self.entries[usize::from(free)] = Some(Box::new(Entry {
            shared: shared.clone(),
            peer: None,
            connection: Connection::new(num),
            counted: InFlight::default(),
            setbacks: Setbacks::default(),
            ready: false,
            waiting: false,
            lazy: false,
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
            let until = now + AFTERLIFE;
            if entry.retired.replace(until).is_none() {
                self.resting += 1;
            }
            // What is beyond the room are such as are gone.
            if self.retired.len() == INDICES {
                let entries = &self.entries;
                self.retired.retain(|(index, until)| {
                    entries[usize::from(*index)].as_ref().is_some_and(|entry| entry.retired == Some(*until))
                });
            }
            self.retired.push_back((index, until));
        }
    }

    pub fn remove(&mut self, index: u16) {
        if let Some(entry) = self.entries[usize::from(index)].take() {
            self.count -= 1;
            self.resting -= usize::from(entry.retired.is_some());
        }
    }
}

impl Entry {
    /// Its doorbell was heard: it may ring again.
    pub fn answer(&mut self) {
        self.shared.bell.answer();
        self.shared.unsent.store(0, Ordering::Relaxed);
    }
}
