//! Deadlines of QPs, one for each QP. Most ACKs move a deadline to a later time: the earlier entry then stays, and the
//! QP is checked when it is due. An earlier deadline replaces the entry.

/// QPs by deadline: a heap, with the position of each QP in it.
pub struct Timers {
    /// Deadline (nanoseconds) and index of a QP. The entry at position n is not later than those at 2n + 1 and 2n + 2.
    heap: Vec<(u64, u16)>,
    /// The position of each QP in the heap.
    positions: Box<[u16]>,
}

const NOT_QUEUED: u16 = u16::MAX;

impl Timers {
    /// An empty heap for QPs with an index below `indices`, which is below 65535.
    pub fn new(indices: usize) -> Timers {
        Timers { heap: Vec::new(), positions: vec![NOT_QUEUED; indices].into() }
    }

    /// Makes room, outside of the hot path.
    pub fn reserve(&mut self, qps: usize) {
        self.heap.reserve(qps.saturating_sub(self.heap.len()));
    }

    /// Sets a QP's deadline, unless it has an earlier one.
    pub fn set(&mut self, deadline: u64, index: u16) {
        let position = self.positions[usize::from(index)];
        let at = if position == NOT_QUEUED {
            self.heap.push((deadline, index));
            self.heap.len() - 1
        } else {
            usize::from(position)
        };
        if deadline <= self.heap[at].0 {
            self.heap[at].0 = deadline;
            self.rise(at);
        }
    }

    /// Takes a QP if its deadline has passed.
    #[inline(always)]
    pub fn pop_due(&mut self, now: u64) -> Option<u16> {
        if self.next()? > now { None } else { Some(self.take_first()) }
    }

    fn take_first(&mut self) -> u16 {
        let (_, index) = self.heap.swap_remove(0);
        self.positions[usize::from(index)] = NOT_QUEUED;
        if !self.heap.is_empty() {
            self.sink(0);
        }
        index
    }

    /// The earliest deadline.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        self.heap.first().map(|(deadline, _)| *deadline)
    }

    /// Moves an entry up to its position, and notes that.
    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.heap.swap(at, (at - 1) / 2);
            self.note(at);
            at = (at - 1) / 2;
        }
        self.note(at);
    }

    /// Moves an entry down to its position, and notes that.
    fn sink(&mut self, mut at: usize) {
        loop {
            let below = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let Some(least) = below.min_by_key(|child| self.heap[*child]) else { break };
            if self.heap[at] <= self.heap[least] {
                break;
            }
            self.heap.swap(at, least);
            self.note(at);
            at = least;
        }
        self.note(at);
    }

    fn note(&mut self, at: usize) {
        self.positions[usize::from(self.heap[at].1)] = at as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_qp_is_due_once_at_its_earliest_deadline() {
        let mut rng = 1u64;
        let mut draw = |below: u64| {
            rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (rng >> 33) % below
        };
        let mut timers = Timers::new(40);
        let mut model: BTreeMap<u16, u64> = BTreeMap::new();
        timers.reserve(40);
        let room = timers.heap.capacity();
        for now in 0..20_000 {
            let (index, deadline) = (draw(40) as u16, now + draw(300));
            timers.set(deadline, index);
            let known = model.entry(index).or_insert(deadline);
            *known = deadline.min(*known);
            assert_eq!(timers.next(), model.values().min().copied());
            while let Some(index) = timers.pop_due(now) {
                let deadline = model.remove(&index).expect("it was set");
                assert!(deadline <= now && model.values().all(|other| *other >= deadline));
            }
            assert!(model.values().all(|deadline| *deadline > now));
        }
        assert_eq!(timers.heap.capacity(), room);
    }
}
