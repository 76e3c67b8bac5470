//! The order in which requests are posted again.

use weir_guard::{Action, Completed, Connection, Flushed, Kind, Remote, Request};

const MS: u64 = 1_000_000;

fn request(wr_id: u64, kind: Kind) -> Request<u64> {
    let remote = Remote { addr: 0x1000 * wr_id, rkey: 7 };
    let on_demand = kind == Kind::Read;
    Request { wr_id, kind, bytes: 100, remote, signaled: true, on_demand, repeatable: true, work: wr_id }
}

/// A connection of READs 1, 3 and 5, WRITEs 2 and 4, and a dummy, that is about to start again.
fn stuck(guards: &str) -> Connection<u64> {
    let mut connection = Connection::new(guards.parse().unwrap());
    connection.connect(1024, 10);
    for wr_id in 1..=5 {
        let kind = if wr_id % 2 == 1 { Kind::Read } else { Kind::Write };
        connection.post(0, Request { signaled: wr_id != 4, ..request(wr_id, kind) });
    }
    connection.posted_dummy(2 * MS, Request { bytes: 0, signaled: false, on_demand: false, ..request(99, Kind::Read) });
    assert_eq!(connection.poll(5 * MS), Some(Action::StartAgain));
    assert!((1..=5).chain([99]).all(|wr_id| connection.flushed(wr_id) == Flushed::Kept) && connection.is_quiet());
    assert_eq!(connection.resume(|_| panic!("none is over")), 10);
    connection
}

fn again(connection: &mut Connection<u64>, now: u64) -> Vec<u64> {
    connection.again_in_turn(now).map(|request| request.wr_id).collect()
}

#[test]
fn each_read_that_the_peer_may_know_ends_before_the_next_request() {
    let mut connection = stuck("reissue");
    assert!(connection.is_starting());
    let mut now = 6 * MS;
    for (posted, ends) in [(vec![1], vec![1]), (vec![2, 3], vec![2, 3])] {
        assert_eq!(again(&mut connection, now), posted);
        assert_eq!(again(&mut connection, now), []);
        for wr_id in ends {
            now += 80_000;
            assert_eq!(connection.completed(now, wr_id, true, |_, _| {}), Completed::Theirs);
        }
    }
    assert_eq!(again(&mut connection, now), [4, 5]);
    assert!(connection.is_starting(), "the dummy");
    connection.completed(now, 5, true, |_, _| {});
    assert_eq!(again(&mut connection, now), [99]);
    assert!(!connection.is_starting());
    // A new request has the PSN behind the dummy's.
    connection.post(now, request(6, Kind::Read));
    connection.poll(now + 5 * MS);
    assert_eq!((connection.flushed(99), connection.flushed(6)), (Flushed::Kept, Flushed::Kept));
    assert_eq!(connection.resume(|_| panic!("none is over")), 15);
}

#[test]
fn what_follows_takes_the_place_of_a_dummy_if_the_first_is_late() {
    let mut connection = stuck("dummy,reissue");
    assert_eq!(again(&mut connection, 6 * MS), [1]);
    let late = connection.next().unwrap();
    assert_eq!((connection.poll(late - 1), connection.poll(late)), (None, Some(Action::PostAgain)));
    assert_eq!(again(&mut connection, late), [2, 3, 4, 5, 99]);
    assert!(!connection.is_starting());
}

#[test]
fn after_an_error_nothing_waits() {
    let mut connection = stuck("reissue");
    assert_eq!(again(&mut connection, 6 * MS), [1]);
    assert_eq!(connection.completed(7 * MS, 1, false, |_, good| assert!(!good)), Completed::Theirs);
    assert_eq!(again(&mut connection, 7 * MS), [2, 3, 4, 5, 99]);
}

#[test]
fn more_reads_than_a_peer_serves_at_once_leave_together() {
    let mut connection = Connection::new("reissue".parse().unwrap());
    connection.connect(1024, 0);
    (0..40).for_each(|wr_id| connection.post(0, request(wr_id, Kind::Read)));
    (0..40).for_each(|wr_id| assert_eq!(connection.flushed(wr_id), Flushed::Kept));
    connection.resume(|_| {});
    for wr_id in 0..16 {
        assert_eq!(again(&mut connection, MS), [wr_id]);
        connection.completed(MS, wr_id, true, |_, _| {});
    }
    assert_eq!(again(&mut connection, MS).len(), 24);
}

#[test]
fn requests_that_are_over_without_a_completion_are_not_flushed() {
    let mut connection = Connection::new("reissue".parse().unwrap());
    connection.connect(1024, 0);
    let silent = |work| Request { signaled: false, work, ..request(99, Kind::Read) };
    // The first is over when the QP goes to ERROR, and so is the dummy behind the second.
    connection.post(0, Request { work: 1, ..silent(1) });
    connection.post(0, request(2, Kind::Read));
    connection.posted_dummy(0, silent(3));
    connection.post(0, Request { wr_id: 4, ..silent(4) });
    connection.posted_dummy(0, silent(5));
    let completed = connection.completed(MS, 2, true, |_, _| {});
    assert_eq!((completed, connection.flushed(4)), (Completed::Theirs, Flushed::Kept));
    assert!(!connection.is_quiet());
    assert_eq!((connection.flushed(99), connection.is_quiet()), (Flushed::Kept, true));
    let mut over = vec![];
    assert_eq!(connection.resume(|work| over.push(work)), 3);
    assert_eq!(over, [3]);
    assert_eq!(connection.again(MS).map(|request| request.work).collect::<Vec<_>>(), [4, 5]);
    // A request that fails tells that those before it have succeeded.
    let mut over = vec![];
    assert_eq!(connection.completed(MS, 99, false, |work, good| over.push((work, good))), Completed::Dummy);
    assert_eq!(over, [(4, true), (5, false)]);
}

#[test]
fn each_request_has_its_own_starts() {
    let mut connection = Connection::new("reissue".parse().unwrap());
    connection.connect(1024, 0);
    (0..2).for_each(|wr_id| connection.post(0, request(wr_id, Kind::Read)));
    let mut now = 0;
    let mut starts = 0;
    while let Some(next) = connection.next() {
        now = next;
        assert_eq!(connection.poll(now), Some(Action::StartAgain));
        (0..2).for_each(|wr_id| assert_eq!(connection.flushed(wr_id), Flushed::Kept));
        connection.resume(|_| panic!("none is over"));
        assert_eq!(connection.again(now).count(), 2);
        starts += 1;
    }
    assert!((2..10).contains(&starts), "a peer that does not respond: {starts}");
    connection.completed(now, 0, true, |_, _| {});
    assert!(connection.next().is_some(), "the second was not the reason for those");
}
