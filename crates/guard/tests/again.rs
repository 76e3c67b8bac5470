//! The order in which requests are posted again.

use weir_guard::{Action, Completed, Connection, Flushed, Kind, Remote, Request};

const MS: u64 = 1_000_000;

fn request(wr_id: u64, kind: Kind) -> Request<u64> {
    let remote = Remote { addr: 0x1000 * wr_id, rkey: 7 };
    let on_demand = kind == Kind::Read;
    Request { wr_id, kind, bytes: 100, remote, signaled: true, on_demand, repeatable: true, work: wr_id }
}

#[test]
fn requests_follow_in_order_and_new_ones_behind_them() {
    let mut connection = Connection::new("reissue".parse().unwrap());
    connection.connect(1024, 10);
    for wr_id in 1..=5 {
        let kind = if wr_id % 2 == 1 { Kind::Read } else { Kind::Write };
        connection.post(0, Request { signaled: wr_id != 4, ..request(wr_id, kind) });
    }
    connection.posted_dummy(2 * MS, Request { bytes: 0, signaled: false, on_demand: false, ..request(99, Kind::Read) });
    assert_eq!(connection.poll(5 * MS), Some(Action::StartAgain));
    assert!((1..=5).chain([99]).all(|wr_id| connection.flushed(wr_id) == Flushed::Kept) && connection.is_quiet());
    assert_eq!(connection.resume(|_| panic!("none is over")), 10);
    assert_eq!(connection.again(6 * MS).map(|request| request.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 99]);
    // A new request has the PSN behind the dummy's.
    (1..=5).filter(|wr_id| *wr_id != 4).for_each(|wr_id| _ = connection.completed(7 * MS, wr_id, true, |_, _| {}));
    connection.post(7 * MS, request(6, Kind::Read));
    assert_eq!((connection.flushed(99), connection.flushed(6)), (Flushed::Kept, Flushed::Kept));
    assert_eq!(connection.resume(|_| panic!("none is over")), 15);
}

/// The program gives all requests the same ID. Their number tells which are flushed.
#[test]
fn equal_ids_are_told_apart_by_their_number() {
    let mut connection = Connection::new("reissue".parse().unwrap());
    connection.connect(1024, 0);
    let same = |work| Request { work, ..request(7, Kind::Read) };
    connection.post(0, Request { signaled: false, ..same(1) });
    (2..=4).for_each(|work| connection.post(0, same(work)));
    (2..=4).for_each(|_| assert_eq!(connection.flushed(7), Flushed::Kept));
    let mut over = vec![];
    assert_eq!(connection.resume(|work| over.push(*work)), 1);
    assert_eq!(over, [1]);
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
    assert_eq!(connection.resume(|work| over.push(*work)), 3);
    assert_eq!(over, [3]);
    assert_eq!(connection.again(MS).map(|request| request.work).collect::<Vec<_>>(), [4, 5]);
    // A request that fails tells that those before it have succeeded.
    let mut over = vec![];
    assert_eq!(connection.completed(MS, 99, false, |work, good| over.push((*work, good))), Completed::Dummy);
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

#[test]
fn a_stuck_read_starts_again_at_its_psn() {
    let mut connection = Connection::new("reissue".parse().unwrap());
    connection.connect(1024, 0xff_fffe);
    let read = |wr_id| Request { bytes: 2000, ..request(wr_id, Kind::Read) };
    let complete = |connection: &mut Connection<u64>, now, wr_id| connection.completed(now, wr_id, true, |_, _| {});
    connection.post(0, read(1));
    connection.post(0, Request { signaled: false, bytes: 5000, ..request(2, Kind::Write) });
    connection.post(0, read(3));
    assert_eq!(complete(&mut connection, MS, 1), Completed::Theirs);
    // PSNs: 0xfffffe and 0xffffff, 0 to 4, 5 and 6. A request that is not repeatable prevents it.
    let inline = Request { repeatable: false, ..request(4, Kind::Send) };
    assert_eq!(connection.next(), None, "the WRITE is the oldest");
    assert_eq!(connection.flushed(3), Flushed::Kept);
    assert!(connection.is_quiet());
    let mut over = vec![];
    assert_eq!(connection.resume(|work| over.push(*work)), 5);
    assert_eq!(over, [2], "the WRITE was over");
    assert_eq!(connection.again(2 * MS).map(|request| request.wr_id).collect::<Vec<_>>(), [3]);
    assert_eq!(connection.next(), Some(10 * MS), "the next start comes later");
    assert_eq!(connection.into_pinned().count(), 0);
    complete(&mut connection, 3 * MS, 3);
    connection.post(4 * MS, read(5));
    assert_eq!(connection.next(), Some(8 * MS));
    assert_eq!(connection.poll(8 * MS), Some(Action::StartAgain));
    connection.post(8 * MS, inline);
    assert!(!connection.may_start_again(9 * MS));
    connection.refused(Kind::Send, 100, true);
    assert!(connection.may_start_again(9 * MS));
    assert_eq!(connection.into_pinned().count(), 1);
    connection.cannot_start_again();
    assert_eq!(connection.next(), None);
}

/// The last request of the program completes while the QP is on its way to ERROR, and the dummy behind it has succeeded.
#[test]
fn a_dummy_that_has_succeeded_is_not_waited_for() {
    let mut connection = Connection::new("auto".parse().unwrap());
    connection.connect(1024, 7);
    connection.post(0, request(1, Kind::Read));
    connection.posted_dummy(2 * MS, Request { bytes: 0, signaled: false, on_demand: false, ..request(99, Kind::Read) });
    assert_eq!(connection.poll(5 * MS), Some(Action::StartAgain));
    assert!(!connection.is_quiet() && !connection.may_be_quiet(), "the READ has a completion");
    assert_eq!(connection.completed(5 * MS, 1, true, |_, _| {}), Completed::Theirs);
    assert!(!connection.is_quiet() && connection.may_be_quiet(), "the dummy need not have one");
    let mut over = vec![];
    assert_eq!(connection.resume(|work| over.push(*work)), 9, "behind both");
    assert_eq!((over, connection.dummies(), connection.open()), (vec![99], 0, 0));
}
