//! QP numbers: as many as the adapter reports, at any rate of creation, and a number is reused as late as possible.

#[allow(dead_code)] // Nothing is connected here.
mod common;

use common::{create, open};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use weir_device::{Context, Cq, Errno, Pd, Qp, QpCreate};
use weir_transport::{QpCaps, Service};

/// The tests take turns, because each may use all numbers of this process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct Maker {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    max: usize,
}

impl Maker {
    fn new(context: &Arc<Context>) -> Maker {
        let max = context.limits().max_qp as usize;
        Maker { pd: context.alloc_pd().unwrap(), cq: context.create_cq(64, None, 0).unwrap(), max }
    }

    fn make(&self) -> Result<Arc<Qp>, Errno> {
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        self.pd.create_qp(&QpCreate { caps, ..create(Service::Rc) }, &self.cq, &self.cq)
    }
}

#[test]
fn qps_that_come_and_go_fast_get_each_number_as_late_as_possible() {
    let _serial = one_at_a_time();
    let maker = Maker::new(&open());
    // More QPs than there are numbers, in less time than a retired QP keeps its number.
    let mut seen = HashMap::new();
    let mut soonest = usize::MAX;
    for nth in 0..40_000usize {
        let qp = maker.make().unwrap_or_else(|error| panic!("QP {nth}: {error:?}"));
        if let Some(before) = seen.insert(qp.num(), nth) {
            soonest = soonest.min(nth - before);
        }
        qp.destroy().unwrap();
    }
    // A number comes again only after nearly all others.
    assert!(soonest > maker.max - 100, "a number came again after {soonest}");
}

#[test]
fn ten_thousand_qps_are_destroyed_and_created_again() {
    let _serial = one_at_a_time();
    let maker = Maker::new(&open());
    for round in 0..3 {
        let made: Vec<_> = (0..10_000)
            .map(|nth| maker.make().unwrap_or_else(|error| panic!("round {round}, QP {nth}: {error:?}")))
            .collect();
        made.iter().for_each(|qp| qp.destroy().unwrap());
    }
}

#[test]
fn max_qp_queue_pairs_can_exist_and_no_more() {
    let _serial = one_at_a_time();
    let maker = Maker::new(&open());
    // Retired QPs do not count.
    for _ in 0..100 {
        maker.make().unwrap().destroy().unwrap();
    }
    let mut made: Vec<_> = (0..maker.max).map(|_| maker.make().unwrap()).collect();
    assert_eq!(maker.make().err(), Some(Errno(libc::ENOMEM)));
    for _ in 0..3 {
        made.pop().unwrap().destroy().unwrap();
        made.push(maker.make().unwrap());
        assert_eq!(maker.make().err(), Some(Errno(libc::ENOMEM)));
    }
}
