use super::*;
use crate::engine::testing::{cq, qp};
use crate::shared::doorbells::Doorbells;
use weir_transport::Service;

const SLOT: u16 = 5;

/// A table, and the QP that all entries share where only their indices matter.
struct Bed {
    table: Table,
    any: Arc<QpShared>,
}

impl Bed {
    fn new() -> Bed {
        Bed { table: Table::new(SLOT).unwrap(), any: qp(0, Service::Rc, &cq(&Arc::default())) }
    }

    /// Adds an entry; its index.
    fn add(&mut self) -> Result<u16, Errno> {
        let mut index = 0;
        self.table.insert(|num| {
            index = (num % INDICES as u32) as u16;
            Ok(self.any.clone())
        })?;
        Ok(index)
    }

    /// Adds as many QPs as an adapter may have; their indices.
    fn fill(&mut self) -> Vec<u16> {
        (0..LIMITS.max_qp).map(|_| self.add().unwrap()).collect()
    }

    fn retire(&mut self, index: u16, at: u64) {
        self.table.retire(index, Instant(at), Arc::new(()));
    }
}

#[test]
fn a_qp_is_found_by_its_whole_number_until_it_is_removed() {
    let (mut table, cq) = (Table::new(SLOT).unwrap(), cq(&Arc::default()));
    let qps = [(); 3].map(|()| table.insert(|num| Ok(qp(num, Service::Rc, &cq))).unwrap());
    for qp in &qps {
        assert_eq!(qp.num >> INDEX_BITS, u32::from(SLOT));
        let index = table.index(qp.num).unwrap();
        assert!(u32::from(index) == qp.num % INDICES as u32 && Arc::ptr_eq(&table.get(index).unwrap().shared, qp));
        assert_eq!(table.index(qp.num ^ 1 << INDEX_BITS), None, "the same index in another slot");
    }
    let index = table.index(qps[1].num).unwrap();
    for _ in 0..2 {
        table.remove(index);
        assert!(table.index(qps[1].num).is_none() && table.get(index).is_none() && table.len() == 2);
    }
    assert!(table.index(qps[0].num).is_some() && table.index(qps[2].num).is_some());
}

#[test]
fn a_qp_that_cannot_be_made_is_not_added() {
    let mut table = Table::new(SLOT).unwrap();
    let mut refused = 0;
    let error = table.insert(|num| {
        refused = num;
        Err(Errno(libc::EDOM))
    });
    assert_eq!(error.map(drop), Err(Errno(libc::EDOM)));
    assert_eq!((table.len(), table.index(refused)), (0, None));
}

#[test]
fn a_number_is_assigned_again_after_all_others() {
    let mut bed = Bed::new();
    let mut used = bed.fill();
    assert_eq!((bed.add(), bed.table.len()), (Err(Errno(libc::ENOMEM)), LIMITS.max_qp as usize));
    // Two numbers were never used: they come before those of removed QPs.
    for _ in 0..2 {
        bed.table.remove(used[100]);
        let index = bed.add().unwrap();
        assert!(!used.contains(&index));
        used.push(index);
        used.swap_remove(100);
    }
    let freed = used[200];
    bed.table.remove(freed);
    let index = bed.add().unwrap();
    assert!(bed.table.get(index).is_some() && bed.table.len() == LIMITS.max_qp as usize);
}

#[test]
fn retired_qps_make_room_the_oldest_first() {
    let mut bed = Bed::new();
    let indices = bed.fill();
    let [a, b, c, d] = [indices[9], indices[8], indices[7], indices[6]];
    for (at, index) in [a, b].into_iter().enumerate() {
        bed.retire(index, at as u64);
        assert_eq!(bed.table.retired_to_evict(), None, "there is room");
        bed.add().unwrap();
    }
    bed.retire(c, 2);
    assert_eq!((bed.table.len(), bed.add()), (INDICES, Err(Errno(libc::ENOMEM))), "retired QPs still have numbers");
    // It is removed because its time is over, and another QP gets its number.
    bed.table.remove(a);
    assert_eq!(bed.table.retired_to_evict(), None);
    assert_eq!(bed.add(), Ok(a));
    // The later time of a QP counts.
    bed.retire(b, 3);
    for (time, next, oldest) in [(4, d, c), (5, indices[5], b), (6, indices[4], d)] {
        bed.retire(next, time);
        assert_eq!(bed.table.retired_to_evict(), Some(oldest));
        bed.table.remove(oldest);
        assert_eq!(bed.add(), Ok(oldest), "the only number that is free");
    }
}

#[test]
fn a_qp_that_is_retired_twice_counts_once_and_the_list_does_not_grow() {
    let mut bed = Bed::new();
    let indices = bed.fill();
    let capacity = bed.table.retired.capacity();
    for at in 0..3 * INDICES {
        bed.retire(indices[at % 2], at as u64);
    }
    assert_eq!((bed.table.retired_count, bed.table.retired.capacity()), (2, capacity));
    assert_eq!([(); 3].map(|()| bed.add().is_ok()), [true, true, false], "two QPs are retired");
    let opened: Opened = Arc::new(());
    bed.table.retire(indices[0], Instant(0), opened.clone());
    assert_eq!(Arc::strong_count(&opened), 2, "the adapter stays open");
    bed.table.remove(indices[0]);
    assert_eq!(Arc::strong_count(&opened), 1);
}

#[test]
fn a_doorbell_rings_again_when_it_was_cleared() {
    let (mut table, doorbells, mut rung) = (Table::new(SLOT).unwrap(), Doorbells::new(), Vec::new());
    let qp = table.insert(|num| Ok(qp(num, Service::Rc, &cq(&Arc::default())))).unwrap();
    for _ in 0..2 {
        doorbells.ring(&qp.bell, qp.num);
        doorbells.ring(&qp.bell, qp.num);
        qp.count_unsent(7);
        doorbells.take(&mut rung);
        assert_eq!(std::mem::take(&mut rung), [qp.num], "once");
        let index = table.index(qp.num).unwrap();
        table.get_mut(index).unwrap().clear_doorbell();
        assert_eq!(qp.unsent.load(Ordering::Relaxed), 0);
    }
}
