//! The number of regions that pin each page.
//!
//! Nothing is allocated or freed while the counts are locked: memory hooks of the program call back into
//! `ibv_dereg_mr` from within malloc and free. So the caller provides the nodes of the tree.

use crate::os::locks::LeafMutex;
use crate::os::per_process::PerProcess;
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};
use std::cell::Cell;

/// The counts of this process. A forked child inherits no locked pages.
pub static COUNTS: PerProcess<LeafMutex<Counts>> = PerProcess::new();

/// Page ranges as a tree of edges. The count of an edge applies up to the next edge.
#[derive(Default)]
pub struct Counts {
    edges: RBTree<ByAddress>,
}

struct Edge {
    link: RBTreeLink,
    at: u64,
    count: Cell<u32>,
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
        edges.resize_with(MADE, || Box::new(Edge { link: RBTreeLink::new(), at: 0, count: Cell::new(0) }));
        Spare(edges)
    }
}

impl Counts {
    /// Increments the count of these pages.
    pub fn add(&mut self, start: u64, end: u64, spare: &mut Spare) {
        self.split(start, spare);
        self.split(end, spare);
        let mut cursor = self.edges.lower_bound(Bound::Included(&start));
        while let Some(edge) = cursor.get().filter(|edge| edge.at < end) {
            edge.count.set(edge.count.get() + 1);
            cursor.move_next();
        }
        self.join(start, spare);
        self.join(end, spare);
    }

    /// Decrements the count of these pages; calls `gone` with each range that no region pins any more.
    pub fn remove(&mut self, start: u64, end: u64, spare: &mut Spare, mut gone: impl FnMut(u64, u64)) {
        self.split(start, spare);
        self.split(end, spare);
        let mut cursor = self.edges.lower_bound(Bound::Included(&start));
        while let Some(edge) = cursor.get().filter(|edge| edge.at < end) {
            edge.count.set(edge.count.get() - 1);
            cursor.move_next();
            if edge.count.get() == 0 {
                gone(edge.at, cursor.get().map_or(end, |next| next.at));
            }
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
        let count = below.map_or(0, |edge| edge.count.get());
        let mut edge = spare.0.pop().expect("a region brings four spare edges and needs no more");
        (edge.at, edge.count) = (at, Cell::new(count));
        self.edges.insert(edge);
    }

    /// Deletes the edge at `at` if the count does not change there.
    fn join(&mut self, at: u64, spare: &mut Spare) {
        let before = self.edges.upper_bound(Bound::Excluded(&at)).get().map_or(0, |edge| edge.count.get());
        let mut cursor = self.edges.find_mut(&at);
        if cursor.get().is_some_and(|edge| edge.count.get() == before) {
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
        regions: Vec<(u64, u64, Spare)>,
        gone: Vec<(u64, u64)>,
    }

    impl Bed {
        fn add(&mut self, start: u64, end: u64) {
            let mut spare = Spare::new();
            self.counts.add(start, end, &mut spare);
            self.regions.push((start, end, spare));
        }

        fn remove(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
            let position = self.regions.iter().position(|(a, b, _)| (*a, *b) == (start, end)).unwrap();
            let (_, _, mut spare) = self.regions.swap_remove(position);
            self.counts.remove(start, end, &mut spare, |a, b| self.gone.push((a, b)));
            assert!(spare.0.capacity() == MADE + ENDED, "the vector did not grow");
            std::mem::take(&mut self.gone)
        }
    }

    #[test]
    fn overlapping_regions_unlock_when_the_last_is_removed() {
        let mut bed = Bed::default();
        bed.add(0x1000, 0x5000);
        bed.add(0x3000, 0x8000);
        bed.add(0x3000, 0x4000);
        assert_eq!(bed.remove(0x1000, 0x5000), [(0x1000, 0x3000)]);
        assert_eq!(bed.remove(0x3000, 0x8000), [(0x4000, 0x8000)]);
        assert_eq!(bed.remove(0x3000, 0x4000), [(0x3000, 0x4000)]);
        assert!(bed.counts.edges.is_empty());
    }

    #[test]
    fn adjacent_regions_inside_a_removed_region_are_unlocked() {
        let mut bed = Bed::default();
        bed.add(0, 4);
        bed.add(0, 2);
        bed.add(2, 4);
        assert_eq!(bed.remove(0, 4), []);
        assert_eq!(bed.remove(0, 2), [(0, 2)]);
        assert_eq!(bed.remove(2, 4), [(2, 4)]);
        assert!(bed.counts.edges.is_empty());
    }

    #[test]
    fn every_page_is_unlocked_when_its_last_region_is_removed() {
        let mut bed = Bed::default();
        let mut pages = [0u32; 32];
        let mut random = 12345u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            if bed.regions.len() < 20 && next(2) == 0 {
                let start = next(31);
                let end = start + 1 + next(31 - start);
                bed.add(start, end);
                (start..end).for_each(|page| pages[page as usize] += 1);
            } else if !bed.regions.is_empty() {
                let (start, end, _) = bed.regions[next(bed.regions.len() as u64) as usize];
                let mut gone = bed.remove(start, end).into_iter().flat_map(|(a, b)| a..b).collect::<Vec<_>>();
                gone.sort_unstable();
                (start..end).for_each(|page| pages[page as usize] -= 1);
                let expected: Vec<u64> = (start..end).filter(|page| pages[*page as usize] == 0).collect();
                assert_eq!(gone, expected);
            }
        }
    }
}
