//! The QPs of an engine by number.

use crate::Errno;
use crate::engine::peers::connection::Connection;
use crate::engine::peers::identity::PeerId;
use crate::engine::qpn_order::{Keys, NUMBERS, QpnOrder};
use crate::engine::waiting::{Links, Waiting};
use crate::limits::LIMITS;
use crate::paging::held::Held;
use crate::shared::qp::QpShared;
use crate::slot::INDEX_BITS;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weir_transport::{InFlight, Instant, Retransmissions};

/// QPs that exist, and QPs that were destroyed a short time ago (retired).
pub struct Table {
    slot: u16,
    entries: Vec<Option<Box<Entry>>>,
    count: usize,
    order: QpnOrder,
    /// Retired QPs, the oldest first, and when they are removed. Some of them may have been removed already.
    retired: VecDeque<(u16, Instant)>,
    /// Number of retired QPs that are still there.
    retired_count: usize,
    removed: Removed,
}

/// QPs that are removed and not freed yet: a list through their entries.
#[derive(Default)]
pub struct Removed(Option<Box<Entry>>);

/// A QP's entry.
pub struct Entry {
    pub shared: Arc<QpShared>,
    /// Its peer, if it is bound.
    pub peer: Option<PeerId>,
    /// Its connection, with the proof of its peer.
    pub connection: Connection,
    /// Its bytes in flight that count against its peer's window.
    pub counted: InFlight,
    /// Its retransmission counters that are counted already.
    pub retransmissions: Retransmissions,
    /// It is in the ready list.
    pub ready: bool,
    /// It is in a waiting list.
    pub waiting: Option<Waiting>,
    /// It is in the list of delayed ACKs.
    pub ack_delayed: bool,
    /// Its earliest deadline in the timers (nanoseconds); `u64::MAX` if none.
    pub deadline: u64,
    /// It was destroyed, and acknowledges duplicates until then.
    pub retired: Option<Instant>,
    /// Keeps the adapter open while the QP is retired.
    keeps: Option<Opened>,
    /// How its packets travel.
    pub path: Path,
    /// When it last sent responses to READs or atomics by UDP, if no request has come by a ring since.
    pub responded_by_udp: Option<Instant>,
    /// UC: a packet waited in a ring for a receive until its time was over, and no receive was seen since.
    pub without_receive: bool,
    /// Packets that wait for a page, or for READs.
    pub held: Held,
    /// Of `held`, requests wait for READs.
    pub holds_after_reads: bool,
    /// The QP that was removed before it.
    next_removed: Option<Box<Entry>>,
}

/// How the packets of a QP travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// None has left.
    New,
    /// By UDP.
    Udp,
    /// By shared memory.
    Ring,
}

/// A reference that keeps the adapter open; the engine does not look into it.
pub type Opened = Arc<dyn Any + Send + Sync>;

/// How long a retired QP acknowledges duplicates, unless the table is full before.
const RETIRED_TIME: Duration = Duration::from_millis(300);

/// The number of QP indices.
pub const INDICES: usize = 1 << INDEX_BITS;
const _: () = assert!(INDICES == NUMBERS as usize && (LIMITS.max_qp as usize) < INDICES);

impl Table {
    /// An empty table. The order of QP numbers is random for each process, so that a new process does not get packets
    /// for an old one.
    pub fn new(slot: u16) -> Result<Table, Errno> {
        let mut keys = Keys::default();
        for key in &mut keys {
            *key = getrandom::u64().map_err(|_| Errno(libc::EAGAIN))?;
        }
        let mut entries = Vec::new();
        entries.resize_with(INDICES, || None);
        let retired = VecDeque::with_capacity(INDICES);
        Ok(Table {
            slot,
            entries,
            count: 0,
            order: QpnOrder::new(keys),
            retired,
            retired_count: 0,
            removed: Removed::default(),
        })
    }

    /// All indices.
    pub fn indices(&self) -> std::ops::Range<u16> {
        0..INDICES as u16
    }

    /// Number of QPs, including retired ones.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The oldest retired QP, if it must be removed so that another QP can be added.
    pub fn retired_to_evict(&mut self) -> Option<u16> {
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

    /// Adds the QP that `make` creates for its number. ENOMEM if the table or the limit of QPs is reached; retired QPs
    /// must have been removed before. Otherwise the error of `make`.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> Result<Arc<QpShared>, Errno>) -> Result<Arc<QpShared>, Errno> {
        if self.count == INDICES || self.count - self.retired_count >= LIMITS.max_qp as usize {
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
            retransmissions: Retransmissions::default(),
            ready: false,
            waiting: None,
            ack_delayed: false,
            deadline: u64::MAX,
            retired: None,
            keeps: None,
            path: Path::New,
            responded_by_udp: None,
            without_receive: false,
            held: Held::default(),
            holds_after_reads: false,
            next_removed: None,
        }));
        self.count += 1;
        Ok(shared)
    }

    /// The index of a number, if there is a QP of that number.
    pub fn index(&self, num: u32) -> Option<u16> {
        let index = (num & (INDICES as u32 - 1)) as u16;
        self.get(index).filter(|entry| entry.shared.num == num).map(|_| index)
    }

    /// The entry of an index; `None` if no QP has it.
    pub fn get(&self, index: u16) -> Option<&Entry> {
        self.entries.get(usize::from(index))?.as_deref()
    }

    /// As [`get`](Self::get), mutable.
    pub fn get_mut(&mut self, index: u16) -> Option<&mut Entry> {
        self.entries.get_mut(usize::from(index))?.as_deref_mut()
    }

    /// A QP was destroyed by its owner. Its adapter stays open as long as the QP acknowledges duplicates, also after
    /// the program has closed the device.
    pub fn retire(&mut self, index: u16, now: Instant, opened: Opened) {
        if let Some(entry) = self.get_mut(index) {
            let until = now + RETIRED_TIME;
            entry.keeps = Some(opened);
            if entry.retired.replace(until).is_none() {
                self.retired_count += 1;
            }
            // The list is full only if it has entries of removed QPs.
            if self.retired.len() == INDICES {
                let entries = &self.entries;
                self.retired.retain(|(index, until)| {
                    entries[usize::from(*index)].as_ref().is_some_and(|entry| entry.retired == Some(*until))
                });
            }
            self.retired.push_back((index, until));
        }
    }

    /// Removes a QP, so that its number is free. Returns its entry.
    pub fn remove(&mut self, index: u16) -> Option<Box<Entry>> {
        let entry = self.entries[usize::from(index)].take()?;
        self.count -= 1;
        self.retired_count -= usize::from(entry.retired.is_some());
        Some(entry)
    }

    /// Keeps a removed QP until it is freed. Whether it is the first since the last
    /// [`take_removed`](Self::take_removed).
    pub fn free_later(&mut self, mut entry: Box<Entry>) -> bool {
        entry.next_removed = self.removed.0.take();
        let first = entry.next_removed.is_none();
        self.removed.0 = Some(entry);
        first
    }

    /// The QPs that wait to be freed.
    pub fn take_removed(&mut self) -> Removed {
        std::mem::take(&mut self.removed)
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        // One after another: a long list must not recurse.
        while let Some(mut entry) = self.0.take() {
            self.0 = entry.next_removed.take();
        }
    }
}

impl Links for Table {
    fn link(&mut self, index: u16) -> Option<&mut Option<Waiting>> {
        self.get_mut(index).map(|entry| &mut entry.waiting)
    }
}

impl Entry {
    /// Clears its doorbell, which may ring again.
    pub fn clear_doorbell(&mut self) {
        self.shared.bell.clear();
        self.shared.unsent.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
