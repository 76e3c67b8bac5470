use super::*;
use crate::paging::counters::{self, Pair};
use crate::paging::resolver::Resolver;
use crate::paging::table::PAGE;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;
use weir_transport::{Profile, Side};

#[derive(Default)]
struct Adapter {
    quiesced: AtomicU32,
    /// How long an access takes that is under way at a quiesce.
    access_ms: AtomicU32,
}

impl Owner for Adapter {
    fn quiesce(&self) {
        self.quiesced.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(self.access_ms.load(Ordering::SeqCst).into()));
    }

    fn resolved(&self, _: &[(u32, Side)]) {}
}

struct Bed {
    exclusion: &'static Exclusion,
    adapter: Arc<Adapter>,
    region: Arc<OnDemand>,
}

/// A region of a hundred pages from page number 1000 on, all present.
fn bed() -> Bed {
    let exclusion: &'static Exclusion = Box::leak(Box::new(Exclusion::new()));
    let adapter = Arc::new(Adapter::default());
    let owner: std::sync::Weak<dyn Owner> = Arc::downgrade(&(adapter.clone() as Arc<dyn Owner>));
    let pair = Pair::new(counters::of_device("invalidate-test"));
    let resolver = Resolver::new(owner, &Profile::ideal());
    let region = OnDemand::new(1000 * PAGE, 100 * PAGE, true, pair, resolver).unwrap();
    let region = Arc::new(region);
    assert!(region.table.make_room(1000..1100));
    region.table.enter(1000..1100, true);
    exclusion.enter(region.clone()).unwrap();
    Bed { exclusion, adapter, region }
}

#[test]
fn begin_returns_when_pages_are_removed_and_accesses_have_ended() {
    let bed = bed();
    assert!(bed.exclusion.begin(0, 1000 * PAGE).is_none(), "outside of the region");
    let guard = bed.exclusion.begin(1010 * PAGE + 5, 10).unwrap();
    assert_eq!(bed.adapter.quiesced.load(Ordering::SeqCst), 1);
    assert_eq!(bed.region.table.first_missing(1000..1100, false), Some(1010));
    drop(guard);
    // Absent pages are not in use: the engine is not quiesced.
    drop(bed.exclusion.begin(1010 * PAGE, PAGE).unwrap());
    assert_eq!(bed.adapter.quiesced.load(Ordering::SeqCst), 1);
    let values = bed.region.counters.own.read();
    assert_eq!((values.page_invalidations, values.page_invalidations_handled), (2, 2));
    assert_eq!(values.page_invalidation_pages, 1);
}

/// The time of the invalidations so far: removal from tables, quiesce, the rest.
fn cost(region: &OnDemand) -> [Duration; 3] {
    let v = region.counters.own.read();
    let parts = [v.page_invalidation_table_ns, v.page_invalidation_quiesce_ns, v.page_invalidation_rest_ns];
    assert_eq!(parts.iter().sum::<u64>(), v.page_invalidation_ns, "{parts:?}");
    parts.map(Duration::from_nanos)
}

#[test]
fn an_access_under_way_and_a_busy_list_take_time_of_their_own() {
    const LONG: Duration = Duration::from_millis(20);
    let bed = bed();
    // On a busy machine a thread may wait for a core in any part. So one of ten rounds must have the right times.
    let one_round = |first: u64, invalidate: &dyn Fn(u64), is_right: &dyn Fn([Duration; 3]) -> bool| {
        (first..first + 10).any(|page| {
            let before = cost(&bed.region);
            invalidate(page);
            let after = cost(&bed.region);
            is_right(std::array::from_fn(|part| after[part] - before[part]))
        })
    };
    let alone = |page| drop(bed.exclusion.begin(page * PAGE, PAGE));
    let beside_a_busy_list = |page| {
        thread::scope(|scope| {
            let state = bed.exclusion.lock();
            scope.spawn(move || alone(page));
            thread::sleep(2 * LONG);
            drop(state);
        });
    };
    let quick = |[table, quiesce, rest]: [Duration; 3]| !table.is_zero() && table + quiesce + rest < LONG;
    assert!(one_round(1010, &alone, &quick));
    bed.adapter.access_ms.store(20, Ordering::SeqCst);
    assert!(one_round(1030, &alone, &|[table, quiesce, rest]| quiesce >= LONG && table + rest < LONG));
    bed.adapter.access_ms.store(0, Ordering::SeqCst);
    assert!(one_round(1050, &beside_a_busy_list, &|[table, quiesce, rest]| rest >= LONG && table + quiesce < LONG));
}

#[test]
fn an_overlapping_invalidation_quiesces_although_pages_are_gone() {
    let bed = bed();
    let first = bed.exclusion.begin(1010 * PAGE, PAGE).unwrap();
    let second = bed.exclusion.begin(1010 * PAGE, PAGE).unwrap();
    assert_eq!(bed.adapter.quiesced.load(Ordering::SeqCst), 2);
    drop((first, second));
    assert!(bed.exclusion.lock().active.is_empty());
}

#[test]
fn an_event_of_a_known_invalidation_is_not_counted_again() {
    let bed = bed();
    let guard = bed.exclusion.begin(1010 * PAGE, 4 * PAGE).unwrap();
    bed.exclusion.report_change(1011 * PAGE, PAGE);
    assert_eq!(bed.region.counters.own.read().page_invalidations, 1);
    bed.exclusion.report_change(1012 * PAGE, 4 * PAGE);
    drop(guard);
    bed.exclusion.report_change(1020 * PAGE, PAGE);
    assert_eq!(bed.region.counters.own.read().page_invalidations, 3);
    assert_eq!(bed.region.table.first_missing(1014..1100, false), Some(1014));
    assert_eq!(bed.region.table.present(), 100 - 6 - 1);
    let guard = bed.exclusion.begin(1030 * PAGE, PAGE).unwrap();
    bed.exclusion.quiesce_all();
    drop(guard);
    bed.exclusion.report_change(1030 * PAGE, PAGE);
    assert_eq!(bed.region.counters.own.read().page_invalidations, 4);
    bed.exclusion.quiesce_all();
    bed.exclusion.report_change(1030 * PAGE, PAGE);
    assert_eq!(bed.region.counters.own.read().page_invalidations, 5);
    assert!(bed.exclusion.lock().active.is_empty());
}

#[test]
fn a_populate_that_was_invalidated_is_not_entered() {
    let bed = bed();
    let populate = bed.exclusion.populate(&bed.region, 1000..1016);
    let beside = bed.exclusion.populate(&bed.region, 1050..1051);
    drop(bed.exclusion.begin(1015 * PAGE, PAGE));
    assert_eq!(populate.finish(|| ()), None);
    assert_eq!(beside.finish(|| 7), Some(7));
    assert_eq!(bed.exclusion.populate(&bed.region, 1000..1016).finish(|| ()), Some(()));
    assert!(bed.exclusion.lock().populates.is_empty());
}

#[test]
fn faults_wait_for_the_end_of_an_invalidation() {
    let bed = bed();
    let guard = bed.exclusion.begin(1010 * PAGE, PAGE).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| bed.exclusion.populate(&bed.region, 1008..1012).finish(|| ()));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        drop(guard);
        assert_eq!(waiter.join().unwrap(), Some(()));
    });
    assert_eq!(bed.region.counters.own.read().page_contentions, 1);
}

/// An engine that checks that it never uses a page that is changing. It holds its lock while it looks at the
/// table and accesses memory, as a turn does.
#[derive(Default)]
struct Engine {
    turn: Mutex<()>,
    changing: [AtomicU32; 4],
}

impl Owner for Engine {
    fn quiesce(&self) {
        drop(self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    fn resolved(&self, _: &[(u32, Side)]) {}
}

/// Pages are removed and populated again while other threads use them.
#[test]
fn no_page_is_used_while_it_changes() {
    const USES: u32 = 5000;
    let exclusion: &'static Exclusion = Box::leak(Box::new(Exclusion::new()));
    let engine = Arc::new(Engine::default());
    let owner: std::sync::Weak<dyn Owner> = Arc::downgrade(&(engine.clone() as Arc<dyn Owner>));
    let pair = Pair::new(counters::of_device("race-test"));
    let resolver = Resolver::new(owner, &Profile::ideal());
    let region = Arc::new(OnDemand::new(0, 4 * PAGE, true, pair, resolver).unwrap());
    assert!(region.table.make_room(0..4));
    exclusion.enter(region.clone()).unwrap();
    let (engine, region, used) = (&engine, &region, &AtomicU32::new(0));
    let until = Instant::now() + Duration::from_secs(60);
    let goes_on = || used.load(Ordering::SeqCst) < USES && Instant::now() < until;
    let change = |thread: u64| {
        for round in (thread..).take_while(|_| goes_on()) {
            // The ranges of the two threads overlap in part.
            let first = round % 3;
            let guard = exclusion.begin(first * PAGE, 2 * PAGE).unwrap();
            for page in &engine.changing[first as usize..][..2] {
                page.fetch_add(1, Ordering::SeqCst);
                thread::yield_now();
                page.fetch_sub(1, Ordering::SeqCst);
            }
            drop(guard);
            (0..round % 4).for_each(|_| thread::yield_now());
        }
    };
    let populate_and_enter = |pages: Range<u64>, write: bool| {
        while goes_on() {
            let populate = exclusion.populate(region, pages.clone());
            thread::yield_now();
            populate.finish(|| region.table.enter(pages.clone(), write));
        }
    };
    let turn = || {
        while goes_on() {
            let turn = engine.turn.lock().unwrap();
            for page in (0..4).filter(|page| region.table.has(page * PAGE, 8, false)) {
                thread::yield_now();
                assert_eq!(engine.changing[page as usize].load(Ordering::SeqCst), 0, "page {page}");
                used.fetch_add(1, Ordering::SeqCst);
            }
            drop(turn);
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| change(0));
        scope.spawn(|| change(1));
        scope.spawn(|| populate_and_enter(0..2, true));
        scope.spawn(|| populate_and_enter(1..4, false));
        // A failure ends the other threads, too.
        let ended = scope.spawn(turn).join();
        used.store(USES, Ordering::SeqCst);
        ended.expect("no page changes while it is used");
    });
    assert!(Instant::now() < until, "pages were rarely present");
    assert!(region.counters.own.read().page_invalidation_pages > 0, "no page was ever removed");
}

#[test]
fn the_list_of_regions_grows_and_shrinks() {
    let bed = bed();
    let more: Vec<_> = (0..100).map(|_| bed.region.clone()).collect();
    for region in &more {
        bed.exclusion.enter(region.clone()).unwrap();
    }
    assert_eq!(bed.exclusion.lock().regions.len(), 101);
    for region in &more {
        assert!(bed.exclusion.leave(region).is_some());
    }
    assert!(bed.exclusion.leave(&bed.region).is_some());
    assert!(bed.exclusion.leave(&bed.region).is_none());
    assert!(bed.exclusion.begin(1000 * PAGE, PAGE).is_none());
}
