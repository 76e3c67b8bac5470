//! Which completions raise an event that the program requests.

use crate::events::AsyncEvent;
use crate::objects::channel::CompChannel;
use crate::os::notify::Notify;
use crate::shared::cq::{AllCqs, CqShared, FollowUp, Options, RetiredWqes};
use std::sync::Arc;
use weir_transport::{Completion, Network, Queue, Status, WcFlags, WcOpcode};

/// A CQ and its channel.
struct Bed {
    cq: Arc<CqShared>,
    channel: Arc<CompChannel>,
}

impl Bed {
    fn new() -> Bed {
        let channel = Arc::new(CompChannel::new().unwrap());
        let options = Options { channel: Some(channel.clone()), cookie: 7, timestamps: false, ignore_overrun: false };
        let events: Arc<Notify<AsyncEvent>> = Arc::new(Notify::new().unwrap());
        Bed { cq: CqShared::new(4, options, events, Arc::new(AllCqs::default())).unwrap(), channel }
    }

    fn complete(&self, solicited: bool) {
        self.complete_of(1, Status::Success, solicited);
    }

    fn complete_of(&self, qp_num: u32, status: Status, solicited: bool) {
        let completion = Completion {
            wr_id: 0,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
            imm: 0,
            flags: WcFlags::empty(),
            vendor_err: 0,
            qp_num,
            src_qp: 0,
            network: Network::default(),
            tag: 0,
            app_ctx: 0,
            retired: 1,
        };
        self.cq.push(Queue::Receive, completion, &Arc::new(RetiredWqes::default()), solicited);
    }

    fn poll(&self, max: usize) -> usize {
        self.cq.take(max, |_| {}).unwrap()
    }

    fn arm(&self, solicited_only: bool) {
        let follow_up = self.cq.arm(solicited_only);
        self.cq.follow_up(follow_up);
    }

    /// The number of pending events, which this takes.
    fn events(&self) -> usize {
        std::iter::from_fn(|| self.channel.pop_event()).count()
    }
}

/// UCX polls until nothing comes, requests an event, and waits: what comes in between would never wake it.
#[test]
fn a_completion_between_the_last_poll_and_the_request_raises_the_event() {
    let bed = Bed::new();
    assert_eq!(bed.poll(4), 0);
    bed.complete(false);
    bed.arm(false);
    assert_eq!(bed.events(), 1);
    // It is raised once.
    bed.complete(false);
    assert_eq!(bed.events(), 0);
}

/// Most programs take the event, request the next one, and then poll.
#[test]
fn a_completion_of_which_an_event_has_told_raises_no_other() {
    let bed = Bed::new();
    bed.arm(false);
    bed.complete(false);
    assert_eq!(bed.events(), 1);
    bed.arm(false);
    assert_eq!((bed.events(), bed.poll(4)), (0, 1));
    bed.complete(false);
    assert_eq!(bed.events(), 1);
}

#[test]
fn an_event_tells_of_all_completions_before_it() {
    let bed = Bed::new();
    bed.complete(false);
    bed.arm(true);
    bed.complete(true);
    assert_eq!(bed.events(), 1);
    bed.arm(false);
    assert_eq!(bed.events(), 0);
}

#[test]
fn polled_completions_raise_nothing() {
    let bed = Bed::new();
    (0..4).for_each(|_| bed.complete(false));
    assert_eq!(bed.poll(3), 3);
    bed.arm(false);
    assert_eq!(bed.events(), 1);
    assert_eq!(bed.poll(4), 1);
    bed.arm(false);
    assert_eq!(bed.events(), 0);
}

#[test]
fn a_request_for_solicited_completions_heeds_these_only() {
    let bed = Bed::new();
    bed.complete(false);
    bed.arm(true);
    assert_eq!(bed.events(), 0);
    assert_eq!(bed.poll(4), 1);
    // The request still stands.
    bed.complete(true);
    assert_eq!(bed.events(), 1);
    bed.complete(false);
    bed.complete(true);
    bed.complete(false);
    bed.arm(true);
    assert_eq!(bed.events(), 1);
}

#[test]
fn moderation_holds_such_an_event_back_too() {
    let bed = Bed::new();
    bed.cq.moderate(2, 1000).unwrap();
    bed.complete(false);
    let follow_up = bed.cq.arm(false);
    assert!(matches!(follow_up, FollowUp::Wait(_)));
    bed.cq.follow_up(follow_up);
    assert_eq!(bed.events(), 0);
    bed.complete(false);
    assert_eq!(bed.events(), 1);
}

#[test]
fn completions_of_a_destroyed_qp_raise_nothing() {
    let bed = Bed::new();
    bed.arm(false);
    bed.complete_of(1, Status::Success, false);
    assert_eq!(bed.events(), 1);
    bed.complete_of(2, Status::Success, false);
    bed.cq.purge(2);
    bed.arm(false);
    assert_eq!(bed.events(), 0, "an event has told of the one that is left");
}

/// With moderation an event waits for more completions, but a failed one does not wait.
#[test]
fn a_failed_completion_raises_the_event_whatever_came_after_it() {
    let bed = Bed::new();
    bed.cq.moderate(4, 1000).unwrap();
    bed.complete_of(1, Status::Success, false);
    bed.arm(false);
    assert_eq!(bed.events(), 0);
    assert_eq!(bed.poll(4), 1);
    bed.cq.moderate(0, 0).unwrap();
    assert_eq!(bed.events(), 1);
    bed.cq.moderate(4, 1000).unwrap();
    bed.complete_of(1, Status::WrFlushed, false);
    bed.complete_of(1, Status::Success, false);
    bed.arm(false);
    assert_eq!(bed.events(), 1);
    assert_eq!(bed.poll(4), 2);
    (0..4).for_each(|_| bed.complete(false));
    bed.arm(false);
    assert_eq!(bed.events(), 1, "so many have come");
}
