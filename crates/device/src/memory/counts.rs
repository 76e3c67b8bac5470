//! The number of regions that pin each page, and how many of them have it locked.
//!
//! Nothing is allocated or freed while the counts are locked: memory hooks of the program call back into
//! `ibv_dereg_mr` from within malloc and free. So the caller provides the nodes of the tree.

use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};
use std::cell::Cell;

/// Page ranges as a tree of edges. The counts of an edge apply up to the next edge.
#[derive(Default)]
pub struct Counts {
    edges: RBTree<ByAddress>,
}

struct Edge {
    link: RBTreeLink,
    at: u64,
    /// Regions that pin these pages.
    pinned: Cell<u32>,
    /// Of these, regions for which the kernel has locked them.
    locked: Cell<u32>,
}

intrusive_adapter!(ByAddress = Box<Edge>: Edge { link => RBTreeLink });

impl<'a> KeyAdapter<'a> for ByAddress {
    type Key = u64;
    fn get_key(&self, edge: &'a Edge) -> u64 {
        edge.at
    }
}

/// Unused edges: as many as a region needs when it is added and when it is removed.
#[allow(clippy::vec_box)] // The tree takes boxes.
pub struct Spare(Vec<Box<Edge>>);

/// A region needs at most two new edges when it is added. It needs two again when it is removed, because changes of
/// other regions may have deleted its edges.
const MADE: usize = 4;
/// At most two edges are deleted each time.
const ENDED: usize = 4;

impl Spare {
    /// Enough edges to add a region.
    pub fn new() -> Spare {
        let mut edges = Vec::with_capacity(MADE + ENDED);
        edges.resize_with(MADE, Box::<Edge>::default);
        Spare(edges)
    }
}

impl Default for Edge {
    fn default() -> Self {
        Edge { link: RBTreeLink::new(), at: 0, pinned: Cell::new(0), locked: Cell::new(0) }
    }
}

impl Edge {
    fn counts(&self) -> (u32, u32) {
        (self.pinned.get(), self.locked.get())
    }
}

impl Counts {
    /// Counts a region of these pages. Returns the number of bytes that no other region pins.
    pub fn add(&mut self, start: u64, end: u64, locked: bool, spare: &mut Spare) -> u64 {
        let mut first = 0;
        self.change(start, end, spare, |edge, next| {
            if edge.pinned.get() == 0 {
                first += next - edge.at;
            }
            edge.pinned.set(edge.pinned.get() + 1);
            edge.locked.set(edge.locked.get() + u32::from(locked));
        });
        first
    }

    /// No longer counts a region that was added with the same arguments. Returns the number of bytes that no region
    /// pins any more. If the region had its pages locked, it calls `unlock` with each range that no region has locked
    /// any more.
    pub fn remove(
        &mut self,
        start: u64,
        end: u64,
        locked: bool,
        spare: &mut Spare,
        mut unlock: impl FnMut(u64, u64),
    ) -> u64 {
        let mut last = 0;
        self.change(start, end, spare, |edge, next| {
            edge.pinned.set(edge.pinned.get() - 1);
            if edge.pinned.get() == 0 {
                last += next - edge.at;
            }
            edge.locked.set(edge.locked.get() - u32::from(locked));
            if locked && edge.locked.get() == 0 {
                unlock(edge.at, next);
            }
        });
        last
    }

    /// Calls `each` with every edge of these pages, and with the end of its range.
    fn change(&mut self, start: u64, end: u64, spare: &mut Spare, mut each: impl FnMut(&Edge, u64)) {
        self.split(start, spare);
        self.split(end, spare);
        let mut cursor = self.edges.lower_bound(Bound::Included(&start));
        while let Some(edge) = cursor.get().filter(|edge| edge.at < end) {
            cursor.move_next();
            each(edge, cursor.get().map_or(end, |next| next.at));
        }
        self.join(start, spare);
        self.join(end, spare);
    }

    /// Inserts an edge at `at` unless there is an edge already.
    fn split(&mut self, at: u64, spare: &mut Spare) {
        let below = self.edges.upper_bound(Bound::Included(&at)).get();
        if below.is_some_and(|edge| edge.at == at) {
            return;
        }
        let (pinned, locked) = below.map_or((0, 0), Edge::counts);
        let mut edge = spare.0.pop().expect("a region brings four spare edges and needs no more");
        (edge.at, edge.pinned, edge.locked) = (at, Cell::new(pinned), Cell::new(locked));
        self.edges.insert(edge);
    }

    /// Deletes the edge at `at` if the counts do not change there.
    fn join(&mut self, at: u64, spare: &mut Spare) {
        let before = self.edges.upper_bound(Bound::Excluded(&at)).get().map_or((0, 0), Edge::counts);
        let mut cursor = self.edges.find_mut(&at);
        if cursor.get().is_some_and(|edge| edge.counts() == before) {
            spare.0.extend(cursor.remove());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Bed {
        counts: Counts,
        regions: Vec<(u64, u64, bool, Spare)>,
        bytes: u64,
        unlocked: Vec<(u64, u64)>,
    }

    impl Bed {
        fn add(&mut self, start: u64, end: u64, locked: bool) {
            let mut spare = Spare::new();
            self.bytes += self.counts.add(start, end, locked, &mut spare);
            self.regions.push((start, end, locked, spare));
        }

        /// The ranges that are unlocked.
        fn remove(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
            let position = self.regions.iter().position(|(a, b, ..)| (*a, *b) == (start, end)).unwrap();
            self.remove_nth(position)
        }

        fn remove_nth(&mut self, position: usize) -> Vec<(u64, u64)> {
            let (start, end, locked, mut spare) = self.regions.swap_remove(position);
            self.bytes -= self.counts.remove(start, end, locked, &mut spare, |a, b| self.unlocked.push((a, b)));
            assert!(spare.0.capacity() == MADE + ENDED, "the vector did not grow");
            std::mem::take(&mut self.unlocked)
        }
    }

    #[test]
    fn overlapping_regions_unlock_when_the_last_is_removed() {
        let mut bed = Bed::default();
        bed.add(0x1000, 0x5000, true);
        bed.add(0x3000, 0x8000, true);
        bed.add(0x3000, 0x4000, true);
        assert_eq!(bed.bytes, 0x7000, "each page once");
        assert_eq!(bed.remove(0x1000, 0x5000), [(0x1000, 0x3000)]);
        assert_eq!(bed.remove(0x3000, 0x8000), [(0x4000, 0x8000)]);
        assert_eq!(bed.bytes, 0x1000);
        assert_eq!(bed.remove(0x3000, 0x4000), [(0x3000, 0x4000)]);
        assert!(bed.counts.edges.is_empty() && bed.bytes == 0);
    }

    #[test]
    fn adjacent_regions_inside_a_removed_region_are_unlocked() {
        let mut bed = Bed::default();
        bed.add(0, 4, true);
        bed.add(0, 2, true);
        bed.add(2, 4, true);
        assert_eq!(bed.remove(0, 4), []);
        assert_eq!(bed.remove(0, 2), [(0, 2)]);
        assert_eq!(bed.remove(2, 4), [(2, 4)]);
        assert!(bed.counts.edges.is_empty());
    }

    #[test]
    fn pages_that_the_kernel_did_not_lock_are_counted_and_never_unlocked() {
        let mut bed = Bed::default();
        bed.add(0, 4, false);
        bed.add(2, 6, true);
        assert_eq!(bed.bytes, 6);
        assert_eq!(bed.remove(2, 6), [(2, 4), (4, 6)], "the other region has nothing locked");
        assert_eq!((bed.remove(0, 4), bed.bytes), (vec![], 0));
        assert!(bed.counts.edges.is_empty());
    }

    #[test]
    fn every_page_is_unlocked_when_its_last_region_is_removed() {
        let mut bed = Bed::default();
        let (mut pinned, mut locked) = ([0u32; 32], [0u32; 32]);
        let mut random = 12345u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            if bed.regions.len() < 20 && next(2) == 0 {
                let start = next(31);
                let end = start + 1 + next(31 - start);
                let lock = next(4) > 0;
                bed.add(start, end, lock);
                for page in start as usize..end as usize {
                    pinned[page] += 1;
                    locked[page] += u32::from(lock);
                }
            } else if !bed.regions.is_empty() {
                let position = next(bed.regions.len() as u64) as usize;
                let (start, end, lock, _) = bed.regions[position];
                let mut unlocked = bed.remove_nth(position).into_iter().flat_map(|(a, b)| a..b).collect::<Vec<_>>();
                unlocked.sort_unstable();
                for page in start as usize..end as usize {
                    pinned[page] -= 1;
                    locked[page] -= u32::from(lock);
                }
                let expected: Vec<u64> = (start..end).filter(|page| lock && locked[*page as usize] == 0).collect();
                assert_eq!(unlocked, expected);
            }
            assert_eq!(bed.bytes, pinned.iter().filter(|count| **count > 0).count() as u64);
        }
    }
}
