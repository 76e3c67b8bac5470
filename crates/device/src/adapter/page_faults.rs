//! The page faults of an adapter's QPs: the resolver, and the engine's turn when pages have come.

use crate::Errno;
use crate::adapter::Adapter;
use crate::os::grow::Grow;
use crate::paging::held::HeldPackets;
use crate::paging::{Owner, Resolver};
use std::sync::{Arc, Weak};
use std::time::Duration;
use weir_transport::Side;

impl Adapter {
    /// The resolver of page faults, started by the first call. EAGAIN if the system gives no threads.
    pub fn resolver(self: &Arc<Self>) -> Result<Arc<Resolver>, Errno> {
        let owner: Weak<Adapter> = Arc::downgrade(self);
        let resolver = self.resolver.get_or_init(|| Resolver::new(owner, &self.profile));
        resolver.start()?;
        self.provide_held_buffers()?;
        let count = self.with_engine(|engine| engine.qps());
        self.make_room_for_faults(resolver, count)?;
        Ok(resolver.clone())
    }

    /// Gives the engine buffers for packets that wait. ENOMEM if there is no memory.
    pub(super) fn provide_held_buffers(&self) -> Result<(), Errno> {
        // Each registration on demand asks; to allocate the buffers takes longer than all the rest of it.
        if self.with_engine(|engine| engine.has_held_buffers()) {
            return Ok(());
        }
        let spare = Box::new(HeldPackets::new()?);
        let spare = self.with_engine(|engine| engine.provide_held_buffers(spare));
        drop(spare);
        Ok(())
    }

    /// Makes room for the page faults of `qps` QPs. ENOMEM if there is no memory; the lists stay as they were.
    pub(super) fn make_room_for_faults(&self, resolver: &Resolver, qps: usize) -> Result<(), Errno> {
        resolver.reserve(qps)?;
        // Allocated outside of the locks. Each turn swaps the lists: no turn may come between growing the two.
        let room = 4 * qps + 64;
        let mut larger = [Vec::for_capacity(room)?, Vec::for_capacity(room)?];
        let [one, two] = &mut larger;
        self.with_engine(|engine| {
            exchange(engine.resolved(), one);
            exchange(&mut self.state.resolved(), two);
        });
        Ok(())
    }

    /// Has the engine process resolved pages in a turn.
    fn schedule_resolved(&self) {
        self.note_resolved();
        self.request_turn();
    }
}

impl Owner for Adapter {
    fn quiesce(&self) {
        /// Long enough for a turn on a busy machine. The thread that unmaps memory goes on after it: an access that is
        /// still under way then finds whatever the processor's page tables map there.
        const LONGEST_WAIT: Duration = Duration::from_millis(100);
        self.quiesce_within(LONGEST_WAIT);
    }

    fn resolved(&self, sides: &[(u32, Side)]) {
        if self.check().is_ok() {
            self.state.resolved().extend_from_slice(sides);
            self.schedule_resolved();
        }
    }

    fn pages_deferred(&self) {
        if self.check().is_ok() {
            self.schedule_resolved();
        }
    }

    fn panicked(&self) {
        self.mark_failed();
    }
}

/// Replaces a list by one with a larger capacity, and keeps its items.
fn exchange(list: &mut Vec<(u32, Side)>, longer: &mut Vec<(u32, Side)>) {
    if list.capacity() < longer.capacity() {
        longer.append(list);
        std::mem::swap(list, longer);
    }
}
