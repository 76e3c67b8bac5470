use super::*;

type Protocol<T> = RankedMutex<T, { rank::PROTOCOL }>;
type Region<T> = RankedMutex<T, { rank::REGION }>;

#[test]
fn locks_are_taken_in_the_order_of_their_ranks_and_released_in_any_order() {
    let (qp, cq) = (Protocol::new(1), RankedMutex::<_, { rank::CQ_RING }>::new(2));
    let table = RankedRwLock::<u32, { rank::LEAF }>::default();
    for round in 0..2 {
        let mut protocol = qp.lock();
        let ring = cq.lock();
        *protocol += *ring;
        *table.write() += 1;
        assert_eq!(*table.read(), round + 1);
        drop(protocol);
        drop(ring);
    }
    drop(cq.lock());
    assert_eq!(*qp.lock(), 5);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order: rank 9 is wanted by a thread that holds ranks [13]")]
fn a_wrong_order_panics_in_debug_builds() {
    let (qp, cq) = (Protocol::new(()), RankedMutex::<_, { rank::CQ_RING }>::new(()));
    let _ring = cq.lock();
    let _protocol = qp.lock();
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order")]
fn two_locks_of_one_rank_panic_in_debug_builds() {
    let qps = [(); 2].map(Protocol::new);
    let _first = qps[0].lock();
    let _second = qps[1].lock();
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order")]
fn a_lock_under_a_leaf_panics_in_debug_builds() {
    let (leaf, table) = (LeafMutex::new(()), RankedRwLock::<(), { rank::LEAF }>::default());
    let _leaf = leaf.lock();
    let _table = table.read();
}

#[test]
fn a_wait_keeps_the_rank() {
    let (ready, changed) = (&RankedMutex::<_, { rank::EXCLUSION }>::new(false), &RankedCondvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *ready.lock() = true;
            changed.notify_all();
        });
        let mut guard = ready.lock();
        while !*guard {
            guard = changed.wait(guard);
        }
        guard = changed.wait_timeout(guard, Duration::from_millis(1));
        drop(guard);
    });
    assert!(*ready.lock());
}

#[test]
fn a_lock_that_is_tried_may_have_any_rank() {
    let (adapters, leaf) = (RankedMutex::<_, { rank::ADAPTERS }>::new(1), LeafMutex::new(()));
    let held = leaf.lock();
    let found = adapters.try_lock().expect("it is free");
    std::thread::scope(|scope| scope.spawn(|| assert!(adapters.try_lock().is_none())).join()).unwrap();
    assert_eq!(*found, 1);
    drop((found, held));
    drop(adapters.lock());
}

#[test]
fn a_lock_is_tried_until_it_is_released_or_the_time_is_over() {
    let lock = LeafMutex::new(1);
    let held = lock.lock();
    assert!(lock.try_lock_within(Duration::from_millis(3)).is_none(), "this thread holds it");
    std::thread::scope(|scope| {
        let (about_to_try, trying) = std::sync::mpsc::channel();
        let lock = &lock;
        let thread = scope.spawn(move || {
            about_to_try.send(()).unwrap();
            lock.try_lock_within(Duration::from_secs(60)).map(|found| *found)
        });
        trying.recv().unwrap();
        drop(held);
        assert_eq!(thread.join().unwrap(), Some(1));
    });
}

/// `munmap` of the program may lead here, and is no cancellation point. A cancelled thread would end the process.
#[test]
fn a_thread_is_not_cancelled_while_it_tries() {
    let thread = std::thread::spawn(|| {
        // SAFETY: this thread; a cancellation of a thread takes effect at its next cancellation point.
        assert_eq!(unsafe { libc::pthread_cancel(libc::pthread_self()) }, 0);
        let lock = LeafMutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock_within(Duration::from_millis(3)).is_none());
        drop(held);
        // Until the thread ends.
        std::mem::forget(Uncancelled::new());
    });
    thread.join().unwrap();
}

#[test]
fn a_memory_hook_deregisters_a_region_within_a_reregistration_and_within_the_engine() {
    let [outer, inner] = [(); 2].map(Region::new);
    for in_engine in [false, true] {
        let engine = in_engine.then(Held::<{ rank::ENGINE }>::begin);
        let reregistering = (!in_engine).then(|| outer.lock());
        drop(inner.lock_in_hook());
        if reregistering.is_some() {
            drop(Held::<{ rank::ENGINE }>::begin());
        }
        drop((engine, reregistering));
        drop(outer.lock());
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "lock order")]
fn memory_that_is_allocated_under_a_lock_above_the_engine_panics_in_debug_builds() {
    let (region, leaf) = (Region::new(()), LeafMutex::new(()));
    let _leaf = leaf.lock();
    let _region = region.lock_in_hook();
}

#[test]
#[cfg(not(debug_assertions))]
fn release_builds_keep_no_account() {
    assert_eq!(size_of::<RankedGuard<'_, u8, 1>>(), size_of::<MutexGuard<'_, u8>>());
    assert_eq!(size_of::<RankedReadGuard<'_, u8, 1>>(), size_of::<RwLockReadGuard<'_, u8>>());
    assert_eq!(size_of::<RankedWriteGuard<'_, u8, 1>>(), size_of::<RwLockWriteGuard<'_, u8>>());
    assert!(!std::mem::needs_drop::<Held<1>>());
}
