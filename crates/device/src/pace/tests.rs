//! When a program counts as a poller, and what wakes the thread.

use crate::pace::polling::{LONGEST_TURN, MAX_WAIT, POLLER_AFTER, Polling, STOPPED_AFTER, TICK};
use crate::pace::{Pace, ThreadTasks, Wake, drain, own};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Empty polls every `gap` nanoseconds from `from` on; returns when they make the program a poller.
fn poller_at(polling: &Polling, from: u64, gap: u64) -> Option<u64> {
    (0..1000).map(|n| from + n * gap).find(|now| {
        polling.note_poll(*now);
        polling.note_empty_poll(|| *now)
    })
}

#[test]
fn frequent_polls_make_a_poller() {
    let polling = Polling::new(false);
    assert!(!polling.program_polls());
    let at = poller_at(&polling, 1_000_000_000, 500).unwrap();
    assert!(at <= 1_000_000_000 + 30_000, "after {at}");
    assert!(polling.program_polls());
    assert!(!polling.note_empty_poll(|| unreachable!("it is a poller already")));
}

#[test]
fn a_watchful_thread_never_ticks() {
    let polling = Polling::new(true);
    assert_eq!(poller_at(&polling, 1_000_000_000, 500), None);
    assert!(!polling.program_polls() && !polling.hand_over());
}

#[test]
fn occasional_polls_make_no_poller() {
    assert_eq!(poller_at(&Polling::new(false), 1_000_000_000, 100_000), None);
    // A program that sleeps in between is no poller either, however often it polls before.
    let polling = Polling::new(false);
    for event in 0..1000 {
        for _ in 0..POLLER_AFTER / 2 {
            assert!(!polling.note_empty_poll(|| event * 10_000));
        }
        assert!(!polling.hand_over());
    }
}

#[test]
fn a_hand_over_is_reported_once() {
    let polling = Polling::new(false);
    poller_at(&polling, 1_000_000_000, 500).unwrap();
    assert!(polling.hand_over() && !polling.program_polls());
    assert!(!polling.hand_over());
}

#[test]
fn a_poller_that_stops_is_noticed() {
    let polling = Polling::new(false);
    let mut last = poller_at(&polling, 1_000_000_000, 500).unwrap();
    for check in 1..10 {
        let now = 1_000_000_000 + check * 8 * TICK;
        last = now - STOPPED_AFTER;
        polling.note_poll(last);
        assert!(polling.still_polled(now, false) && polling.program_polls());
    }
    assert!(polling.still_polled(last + LONGEST_TURN, true), "it takes a long turn");
    assert!(!polling.still_polled(last + STOPPED_AFTER + 1, false), "however often it polled before");
    assert!(!polling.program_polls());
    polling.note_poll(last + TICK);
    assert!(!polling.still_polled(last + TICK, true), "one poll makes no poller");
}

#[test]
fn the_longer_a_program_polls_the_longer_a_check_may_wait() {
    let polling = Polling::new(false);
    let at = poller_at(&polling, 1_000_000_000, 500).unwrap();
    let waits =
        [0, 8 * TICK - 1, 8 * TICK, 16 * TICK, 1000 * TICK].map(|polled_for| polling.check_may_wait(at + polled_for));
    assert_eq!(waits, [0, 0, TICK, 2 * TICK, MAX_WAIT]);
    assert!(!polling.still_polled(at + 1000 * TICK, true), "it only posts");
    let again = poller_at(&polling, at + 1001 * TICK, 500).unwrap();
    assert_eq!(polling.check_may_wait(again + TICK), 0, "it polls anew");
}

/// Polls that make the program a poller.
fn poll_until_ticking(pace: &Pace) {
    while !pace.program_polls() {
        pace.polled(true, Some(false));
    }
}

#[test]
fn a_task_does_not_wait_for_the_tick() {
    let pace = Pace::new(Vec::new(), None, None, false).unwrap();
    poll_until_ticking(&pace);
    pace.ask_thread(ThreadTasks::LOCAL);
    assert_eq!((pace.wait(|| false), pace.take_tasks()), (Wake::Nothing, ThreadTasks::LOCAL));
    assert!(pace.program_polls());
    // Ticks of full length find that the program has stopped.
    let waits = (0..10).map(|_| pace.wait(|| false)).position(|wake| wake == Wake::Stopped);
    assert!(waits.is_some() && !pace.program_polls());
}

#[test]
fn a_flush_that_was_requested_before_a_look_does_not_wait() {
    let pace = Pace::new(Vec::new(), None, None, false).unwrap();
    let ticket = pace.ask_flush();
    pace.look();
    assert_eq!(pace.wait(|| false), Wake::Watch);
    assert_eq!(pace.flush_requested(), Some(ticket));
    pace.flushed(ticket);
}

/// A standby that became doubtful, with these descriptors of packets and of messages about rings.
fn doubtful(packets: Vec<RawFd>, local: Option<RawFd>) -> Pace {
    let pace = Pace::new(packets, None, local, false).unwrap();
    poll_until_ticking(&pace);
    (0..3).for_each(|_| pace.note_stop(true));
    while !pace.standby.is_doubtful() {
        pace.may_stop();
        pace.polled(true, Some(false));
    }
    drain(&pace.kick);
    pace
}

fn ready_descriptor() -> OwnedFd {
    // SAFETY: the call creates a descriptor.
    unsafe { own(libc::eventfd(1, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)).unwrap() }
}

#[test]
fn a_thread_that_packets_wake_tests_whether_it_is_needed() {
    let ready = ready_descriptor();
    for (packets, local) in [(vec![ready.as_raw_fd()], None), (Vec::new(), Some(ready.as_raw_fd()))] {
        let pace = doubtful(packets, local);
        pace.may_stop();
        pace.wait(|| false);
        assert!(pace.looks_at_memory() && !pace.standby.is_doubtful(), "the program did not poll");
    }
}

#[test]
fn the_standby_ends_when_the_program_polls_in_all_tests() {
    let ready = ready_descriptor();
    let pace = doubtful(vec![ready.as_raw_fd()], None);
    let polls = |pace: &Pace| {
        pace.polls(pace.polling.last_poll() + 1);
        false
    };
    let tests = (1..100).find(|_| {
        pace.test_standby(polls);
        !pace.looks_at_memory()
    });
    assert_eq!(tests, Some(8));
}

#[test]
fn nothing_is_tested_while_the_thread_has_other_work() {
    let pace = doubtful(Vec::new(), None);
    let idle = |_: &Pace| false;
    let ticket = pace.ask_flush();
    pace.test_standby(idle);
    assert!(pace.standby.is_doubtful());
    pace.flushed(ticket);
    pace.test_standby(|_| true);
    assert!(pace.standby.is_doubtful(), "the thread was kicked meanwhile");
    pace.hand_to_thread();
    pace.test_standby(idle);
    assert!(pace.standby.is_doubtful(), "the program does not poll");
    poll_until_ticking(&pace);
    pace.test_standby(idle);
    assert!(!pace.standby.is_doubtful());
}
