//! Adapters that differ from the ideal adapter in timing and in features: page faults that take time, no ODP. Times
//! are lower bounds, which hold on a busy machine too; the few upper bounds are generous.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;
mod profile_setup;

use common::open;
use profile_setup::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use weir_device::paging::invalidate;
use weir_device::{Advice, Errno, Rereg};
use weir_transport::{DeviceAttributes, OdpCaps, OdpOps, PageFaults, Profile, Status};

#[test]
fn a_fault_takes_its_time_and_access_to_present_pages_does_not() {
    const TIME: Duration = ms(150);
    let _serial = one_at_a_time();
    let side = Side::new(&slow("takes-its-time", TIME));
    let [qp, _peer] = side.pair(&side);
    exchange_hellos(&qp, &side, &side);
    let (source, target) = (Memory::pinned(&side, 1), Memory::on_demand(&side, 8));
    let write = |offset: usize| {
        let began = Instant::now();
        post_write(&qp, 1, source.sge(0, 8), &target, offset);
        side.ended(1)[0].1 - began
    };
    let (first, again) = (write(0), write(8));
    assert!(first >= TIME && first < LONG, "{first:?}");
    assert!(again < TIME, "{again:?}");
    side.pd.advise_mr(Advice::PrefetchWrite, true, &[target.sge(PAGE, PAGE)]).unwrap();
    let fetched = write(PAGE);
    assert!(fetched < TIME, "{fetched:?}");
    // A fault that merges with a pending fault takes only its remaining time.
    let [other, _peer] = side.pair(&side);
    exchange_hellos(&other, &side, &side);
    post_write(&qp, 1, source.sge(0, 8), &target, 2 * PAGE);
    std::thread::sleep(TIME / 2);
    let joined = Instant::now();
    post_write(&other, 2, source.sge(0, 8), &target, 2 * PAGE + 8);
    let ended = side.ended(2);
    assert!(ended.iter().all(|(_, at)| *at - joined < TIME + TIME / 4), "{:?}", ended[1].1 - joined);
}

#[test]
fn faults_are_resolved_one_after_the_other_where_an_adapter_does_so() {
    const TIME: Duration = ms(30);
    let _serial = one_at_a_time();
    let profile = slow("one-by-one", TIME);
    let serial = Profile { page_faults: PageFaults { serial: true, ..profile.page_faults }, ..profile };
    let side = Side::new(&serial);
    let qps = [side.pair(&side), side.pair(&side), side.pair(&side)];
    qps.iter().for_each(|[qp, _]| exchange_hellos(qp, &side, &side));
    let (source, target) = (Memory::pinned(&side, 1), Memory::on_demand(&side, 3));
    let began = Instant::now();
    for (n, [qp, _]) in qps.iter().enumerate() {
        post_write(qp, n as u64, source.sge(0, 8), &target, n * PAGE);
    }
    let ended = side.ended(3);
    for (n, (number, at)) in ended.iter().enumerate() {
        let took = *at - began;
        assert!(*number == n as u64 && took >= TIME * (n as u32 + 1), "{number}: {took:?}");
    }
}

#[test]
fn pages_invalidated_before_they_are_due_are_brought_in_again() {
    const TIME: Duration = ms(200);
    let _serial = one_at_a_time();
    let side = Side::new(&slow("invalidated", TIME));
    let [qp, _peer] = side.pair(&side);
    exchange_hellos(&qp, &side, &side);
    let (source, target) = (Memory::pinned(&side, 1), Memory::on_demand(&side, 1));
    source.fill(7);
    post_write(&qp, 1, source.sge(0, 8), &target, 0);
    std::thread::sleep(TIME / 4);
    let guard = invalidate::begin(target.addr, PAGE as u64).expect("a region is there");
    // SAFETY: a page of the mapping.
    assert_eq!(unsafe { libc::madvise(target.addr as *mut libc::c_void, PAGE, libc::MADV_DONTNEED) }, 0);
    std::thread::sleep(TIME);
    side.cq.poll(1, |done| panic!("{done:?}, before the invalidation has ended")).unwrap();
    drop(guard);
    side.ended(1);
    assert_eq!(target.word(0).load(Ordering::Relaxed), 7);
}

#[test]
fn long_messages_are_complete_when_pages_are_late() {
    let _serial = one_at_a_time();
    let side = Side::new(&slow("long", ms(2)));
    let [qp, _peer] = side.pair(&side);
    let (source, target) = (Memory::on_demand(&side, 600), Memory::on_demand(&side, 600));
    source.fill(1000);
    post_write(&qp, 1, source.sge(0, 600 * PAGE), &target, 0);
    side.ended(1);
    let back = Memory::on_demand(&side, 600);
    post_read(&qp, 2, back.sge(0, 600 * PAGE), &target, 0);
    side.ended(1);
    for n in 0..600 * PAGE / 8 {
        assert_eq!(back.word(8 * n).load(Ordering::Relaxed), 1000 + n as u64, "word {n}");
    }
}

#[test]
fn missing_memory_is_reported_when_a_fault_takes_its_time() {
    let _serial = one_at_a_time();
    let side = Side::new(&slow("missing", ms(5)));
    let [qp, _peer] = side.pair(&side);
    let (source, target) = (Memory::pinned(&side, 1), Memory::on_demand(&side, 2));
    // SAFETY: a page of the mapping.
    let done = unsafe { libc::mprotect(target.addr as *mut libc::c_void, PAGE, libc::PROT_NONE) };
    assert_eq!(done, 0);
    post_write(&qp, 1, source.sge(0, 8), &target, 0);
    let until = Instant::now() + LONG;
    let mut status = None;
    while status.is_none() && Instant::now() < until {
        side.cq.poll(1, |completion| status = Some(completion.status)).unwrap();
    }
    assert_eq!(status, Some(Status::RemoteOperation));
}

#[test]
fn an_adapter_without_odp_refuses_odp_calls() {
    let _serial = one_at_a_time();
    let profile = Profile { name: "without".into(), on_demand: false, ..Profile::ideal() };
    let side = Side::new(&profile);
    assert!(!side.context.has_on_demand() && open().has_on_demand());
    let pinned = Memory::pinned(&side, 1);
    let refused = Err(Errno(libc::EOPNOTSUPP));
    let registered = |addr, len| side.pd.reg_on_demand_mr(addr, len, addr, ALL, false).map(drop);
    assert_eq!(registered(pinned.addr, PAGE as u64), refused);
    assert_eq!(registered(0, u64::MAX), refused, "all of memory");
    assert_eq!(side.pd.advise_mr(Advice::Prefetch, true, &[pinned.sge(0, 8)]), refused);
    let change = Rereg { on_demand: Some(true), ..Rereg::default() };
    assert_eq!(pinned.mr.rereg(&change), refused);
    let [qp, _peer] = side.pair(&side);
    post_write(&qp, 1, pinned.sge(0, 8), &pinned, 8);
    side.ended(1);
}

#[test]
fn an_operation_without_odp_fails_at_a_missing_page_only() {
    let _serial = one_at_a_time();
    let ideal = Profile::ideal();
    let odp = OdpCaps { rc: OdpOps::all() - OdpOps::WRITE, ..ideal.device.odp };
    let device = DeviceAttributes { odp, ..ideal.device };
    let side = Side::new(&Profile { name: "no-odp-writes".into(), device, ..ideal });
    let (source, target) = (Memory::pinned(&side, 1), Memory::on_demand(&side, 2));
    source.fill(7);
    let [qp, _peer] = side.pair(&side);
    side.pd.advise_mr(Advice::PrefetchWrite, true, &[target.sge(0, PAGE)]).unwrap();
    post_write(&qp, 1, source.sge(0, 8), &target, 0);
    side.ended(1);
    assert_eq!(target.word(0).load(Ordering::Relaxed), 7);
    post_write(&qp, 2, source.sge(0, 8), &target, PAGE);
    let until = Instant::now() + LONG;
    let mut ended = None;
    while ended.is_none() && Instant::now() < until {
        side.cq.poll(1, |completion| ended = Some((completion.wr_id, completion.status))).unwrap();
    }
    assert_eq!(ended, Some((2, Status::RemoteOperation)));
}

#[test]
fn an_adapter_without_implicit_regions_refuses_them() {
    let _serial = one_at_a_time();
    let ideal = Profile::ideal();
    let odp = OdpCaps { implicit: false, ..ideal.device.odp };
    let device = DeviceAttributes { odp, ..ideal.device };
    let side = Side::new(&Profile { name: "explicit".into(), device, ..ideal });
    let all = side.pd.reg_on_demand_mr(0, u64::MAX, 0, ALL, false).map(drop);
    assert_eq!(all, Err(Errno(libc::EINVAL)));
    Memory::on_demand(&side, 1);
}

#[test]
fn an_ideal_adapter_sends_no_rnr_naks_and_loses_nothing() {
    let _serial = one_at_a_time();
    let side = Side::new(&Profile { name: "perfect".into(), ..Profile::ideal() });
    let [qp, _peer] = side.pair(&side);
    exchange_hellos(&qp, &side, &side);
    let (here, there) = (Memory::on_demand(&side, 64), Memory::on_demand(&side, 64));
    let before = counts();
    for page in 0..64 {
        post_read(&qp, 1, here.sge(page * PAGE, 100), &there, page * PAGE);
        side.ended(1);
    }
    let counted = since(before);
    assert_eq!((counted.rnr_naks, counted.lost), (0, 0), "{counted:?}");
    assert!(counted.sent < 4 * 64, "{counted:?}");
}
