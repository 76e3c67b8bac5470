//! When dummies follow requests, and which requests a completion ends.

use crate::answer::{Action, Completed};
use crate::connection::{Connection, SPARE};
use crate::request::{Kind, Remote, Request};

const MS: u64 = 1_000_000;

fn connection(guards: &str) -> Connection<u64> {
    let mut connection = Connection::new(guards.parse().unwrap());
    connection.connect(1024, 0xff_fffe);
    connection
}

fn request(wr_id: u64, kind: Kind, bytes: u64) -> Request<u64> {
    let remote = Remote { addr: 0x1000u64.wrapping_mul(wr_id), rkey: 7 };
    Request { wr_id, kind, bytes, remote, signaled: true, on_demand: false, repeatable: true, work: wr_id }
}

fn read(wr_id: u64) -> Request<u64> {
    Request { on_demand: true, ..request(wr_id, Kind::Read, 2000) }
}

fn complete(connection: &mut Connection<u64>, now: u64, wr_id: u64) -> (Completed, Vec<u64>) {
    let mut over = vec![];
    if connection.passed(true) {
        return (Completed::Unknown, over);
    }
    let completed = connection.completed(now, wr_id, true, |work, _| over.push(*work));
    (completed, over)
}

#[test]
fn a_completion_ends_silent_requests_before_it() {
    let mut connection = connection("auto");
    connection.post(0, read(1));
    connection.post(0, Request { signaled: false, ..read(2) });
    connection.post(0, read(3));
    // Two threads have polled: the later completion is reported first.
    assert_eq!(complete(&mut connection, 5, 3), (Completed::Theirs, vec![2, 3]));
    assert_eq!(connection.open(), 1);
    assert_eq!(complete(&mut connection, 5, 1), (Completed::Theirs, vec![1]));
    assert_eq!(complete(&mut connection, 5, 1).0, Completed::Unknown);
}

#[test]
fn dummies_follow_an_open_request_and_stay_hidden() {
    let mut connection = connection("dummy");
    assert!(!connection.tracks(Kind::Write), "without a READ nothing is tracked");
    connection.pass(Kind::Write, 10, false);
    connection.post(0, request(1, Kind::Read, 8));
    assert_eq!(connection.next(), Some(2 * MS));
    assert_eq!(connection.poll(2 * MS - 1), None);
    let remote = Remote { addr: 0x1000, rkey: 7 };
    assert_eq!(connection.poll(2 * MS), Some(Action::Dummy { kind: Kind::Read, remote, signaled: false }));
    let dummy = Request { signaled: false, ..request(u64::MAX, Kind::Read, 0) };
    for nth in 0..SPARE {
        let at = connection.next().expect("another dummy");
        assert!(connection.poll(at).is_some(), "{nth}");
        connection.posted_dummy(at, dummy.clone());
    }
    assert_eq!((connection.next(), connection.poll(u64::MAX)), (None, None), "no place is left");
    assert_eq!(complete(&mut connection, 9 * MS, 1).0, Completed::Theirs);
    connection.post(10 * MS, request(2, Kind::Write, 8));
    assert_eq!(complete(&mut connection, 11 * MS, 2).0, Completed::Theirs);
    assert_eq!(connection.open(), 0, "the dummies are over, too");
    connection.post(20 * MS, request(3, Kind::Read, 8));
    let Some(Action::Dummy { kind: Kind::Write, .. }) = connection.poll(40 * MS) else {
        panic!("the peer permits WRITEs")
    };
    connection.posted_dummy(40 * MS, dummy);
    let mut over = vec![];
    assert_eq!(connection.completed(41 * MS, u64::MAX, false, |_, good| over.push(good)), Completed::Dummy);
    assert_eq!(over, [false]);
    assert_eq!(connection.next(), None, "the QP has failed");
}

/// UCX asks for few completions: its last SEND may be lost without any other request behind it.
#[test]
fn a_dummy_with_a_completion_follows_requests_without_one() {
    let mut connection = connection("dummy");
    connection.post(0, request(1, Kind::Read, 8));
    complete(&mut connection, MS, 1);
    let silent = |wr_id| Request { signaled: false, ..request(wr_id, Kind::Send, 8) };
    connection.post(2 * MS, silent(2));
    connection.post(3 * MS, silent(3));
    assert!(!connection.is_idle());
    assert_eq!(connection.next(), Some(5 * MS), "from the last post");
    let remote = Remote { addr: 0x1000, rkey: 7 };
    assert_eq!(connection.poll(5 * MS), Some(Action::Dummy { kind: Kind::Read, remote, signaled: true }));
    let dummy = |signaled| Request { signaled, ..request(u64::MAX, Kind::Read, 0) };
    connection.posted_dummy(5 * MS, dummy(true));
    // The dummy may be lost, too.
    assert_eq!(connection.next(), Some(7 * MS));
    assert_eq!(complete(&mut connection, 6 * MS, u64::MAX), (Completed::Dummy, vec![2, 3, u64::MAX]));
    assert!(connection.is_idle() && connection.next().is_none() && connection.open() == 0);
    // As many as there are places, then none until one of them is over.
    connection.post(10 * MS, silent(4));
    for _ in 0..SPARE {
        let at = connection.next().expect("another dummy");
        connection.posted_dummy(at, dummy(true));
    }
    assert!(!connection.is_idle() && connection.next().is_none());
    connection.post(90 * MS, silent(5));
    assert_eq!(complete(&mut connection, 91 * MS, u64::MAX), (Completed::Dummy, vec![4, u64::MAX]));
    assert!(connection.next().is_some(), "one is left that is behind the dummies");
}

/// The peer of a request that came long after the last READ may be gone, which a dummy would turn into a failure.
#[test]
fn requests_without_completions_have_a_dummy_soon_after_a_read_only() {
    let silent = |wr_id| Request { signaled: false, ..request(wr_id, Kind::Send, 8) };
    let mut connection = connection("dummy");
    connection.post(0, request(1, Kind::Read, 8));
    complete(&mut connection, 50 * MS, 1);
    connection.post(151 * MS, silent(2));
    assert!(connection.is_idle() && connection.next().is_none());
    // One that is behind a READ does not wait for those after it.
    connection.post(160 * MS, request(3, Kind::Read, 8));
    complete(&mut connection, 161 * MS, 3);
    connection.post(162 * MS, silent(4));
    connection.post(300 * MS, silent(5));
    let next = connection.next().unwrap();
    assert!((164 * MS..170 * MS).contains(&next), "{next}");
    connection.set_ready(false);
    assert_eq!(connection.next(), None, "a QP that cannot send has no dummies");
}

#[test]
fn other_guards_leave_requests_without_completions_alone() {
    let mut connection = connection("reissue");
    connection.post(0, Request { signaled: false, ..read(1) });
    assert!(connection.is_idle() && connection.next().is_none());
}

#[test]
fn requests_that_are_not_tracked_prevent_a_start_until_they_are_over() {
    let mut connection = connection("reissue");
    connection.pass(Kind::Send, 10, true);
    connection.post(0, read(1));
    assert_eq!(connection.next(), None);
    // The program gives both the same ID.
    assert_eq!(complete(&mut connection, MS, 1).0, Completed::Unknown);
    assert_eq!((connection.open(), connection.next()), (1, None));
    complete(&mut connection, MS, 1);
    connection.post(2 * MS, read(2));
    assert!(connection.next().is_some());
}
