//! Many connections over a network that loses, repeats and reorders MADs: each is established exactly once on both
//! sides, or ends on both with the right error; and nothing remains.

use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;
use weir_cm::testing::{Faults, Pair, Rng, address, reply, request};
use weir_cm::{Config, ConnectionId, Event, RejectReason, Reply, Request, SidrReply, SidrRequest, Transport};
use weir_transport::Instant;

/// What the passive side does with a request; its private data says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    Accept,
    /// An MRA first, and the answer much later.
    AcceptLate,
    Reject,
    /// The active side rejects the reply.
    Refuse,
}

const PLANS: [Plan; 4] = [Plan::Accept, Plan::AcceptLate, Plan::Reject, Plan::Refuse];
/// How long a late answer takes: longer than the interval of repetitions.
const LATE: Duration = Duration::from_secs(20);

/// What happened to one end.
#[derive(Clone, Debug, Default)]
struct End {
    plan: Option<usize>,
    qpn: u32,
    established: usize,
    rejected: Vec<RejectReason>,
    unreachable: usize,
    disconnected: usize,
    exits: usize,
}

struct Run {
    pair: Pair,
    rng: Rng,
    ends: [HashMap<ConnectionId, End>; 2],
    late: Vec<(Instant, usize, ConnectionId)>,
    resolved: usize,
    unresolved: usize,
    asked: usize,
}

impl Run {
    fn new(seed: u64, faults: Faults) -> Run {
        let pair = Pair::new(seed, faults, Config::default());
        let (ends, late) = (Default::default(), Vec::new());
        Run { pair, rng: Rng(seed ^ 0x55), ends, late, resolved: 0, unresolved: 0, asked: 0 }
    }

    /// Connections in both directions, with QPs of their own.
    fn connect(&mut self, count: u32) {
        for number in 0..count {
            let from = self.rng.below(2) as usize;
            let plan = self.rng.below(PLANS.len() as u64) as usize;
            let transport = [Transport::Rc, Transport::Uc, Transport::Xrc][number as usize % 3];
            let private = vec![plan as u8];
            let request = Request { ca_guid: from as u64 + 1, transport, private, ..request(number + 1) };
            let id = self.pair.cms[from].connect(self.pair.now, &address(from), &request).unwrap();
            self.ends[from].insert(id, End { plan: Some(plan), qpn: number + 1, ..End::default() });
            if number % 5 == 0 {
                self.pair.cms[from].resolve_service(self.pair.now, &address(from), &SidrRequest::default()).unwrap();
                self.asked += 1;
            }
            self.pair.run(Duration::from_millis(self.rng.below(50)));
            self.react();
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.pair.now + time;
        while self.pair.now < until {
            let mut step = until;
            if let Some((at, ..)) = self.late.iter().min() {
                step = step.min(*at);
            }
            // The programs answer within the millisecond.
            self.pair.run((step - self.pair.now).min(Duration::from_millis(1)));
            if !self.pair.step(step) {
                self.pair.now = step;
            }
            self.react();
        }
    }

    fn react(&mut self) {
        let now = self.pair.now;
        for (_, process, id) in self.late.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>() {
            // The peer may have given up.
            let qpn = self.ends[process][&id].qpn;
            let reply = Reply { ca_guid: process as u64 + 1, ..reply(qpn) };
            let _ = self.pair.cms[process].accept(now, id, &reply);
        }
        for process in 0..2 {
            let mut events = std::mem::take(&mut self.pair.events[process]);
            while let Some(event) = events.pop_front() {
                // The peer may give up before the program answers.
                let ends = events.iter().any(|later| later.id() == event.id());
                self.event(process, event, ends);
            }
        }
    }

    /// `ends`: there is another event of the same connection already.
    fn event(&mut self, process: usize, event: Event, ends: bool) {
        let (now, cm) = (self.pair.now, &mut self.pair.cms[process]);
        let id = event.id();
        match event {
            Event::Request { request, .. } => {
                let plan = usize::from(request.private[0]);
                let qpn = request.qpn + 0x10_0000;
                let end = End { plan: Some(plan), qpn, ..End::default() };
                assert!(self.ends[process].insert(id, end).is_none(), "an ID comes once");
                let answer = match PLANS[plan] {
                    Plan::Accept | Plan::Refuse => {
                        let reply = Reply { ca_guid: process as u64 + 1, ..reply(qpn) };
                        cm.accept(now, id, &reply)
                    }
                    Plan::AcceptLate => cm.delay(now, id, 24, &[]),
                    Plan::Reject => cm.reject(now, id, RejectReason::CONSUMER, &[], &[]),
                };
                match PLANS[plan] {
                    _ if answer.is_err() => assert!(ends, "{answer:?}, and nothing has happened to it"),
                    Plan::Accept | Plan::Refuse => {}
                    Plan::AcceptLate => self.late.push((now + LATE, process, id)),
                    Plan::Reject => {
                        cm.forget(now, id);
                        self.ends[process].remove(&id);
                    }
                }
            }
            Event::Reply { .. } => {
                let end = self.ends[process].get_mut(&id).unwrap();
                if PLANS[end.plan.unwrap()] == Plan::Refuse {
                    return cm.reject(now, id, RejectReason::CONSUMER, &[], &[]).unwrap();
                }
                cm.ready(id, &[]).unwrap();
                end.established += 1;
            }
            Event::Established { .. } => self.end(process, id).established += 1,
            Event::Rejected { reason, .. } => self.end(process, id).rejected.push(reason),
            Event::Unreachable { .. } => self.end(process, id).unreachable += 1,
            Event::DisconnectRequest { .. } => {
                cm.disconnect(now, id, &[]).unwrap();
                self.end(process, id).disconnected += 1;
            }
            Event::Disconnected { .. } => self.end(process, id).disconnected += 1,
            Event::TimewaitExit { .. } => self.end(process, id).exits += 1,
            Event::Delayed { .. } => (),
            Event::ServiceRequest { .. } => {
                cm.answer_service(now, id, &SidrReply::default()).unwrap();
                cm.forget(now, id);
            }
            Event::ServiceReply { .. } => {
                self.resolved += 1;
                cm.forget(now, id);
            }
            Event::ServiceUnreachable { .. } => {
                self.unresolved += 1;
                cm.forget(now, id);
            }
        }
    }

    fn end(&mut self, process: usize, id: ConnectionId) -> &mut End {
        self.ends[process].get_mut(&id).expect("an event of a connection that is known")
    }

    /// Disconnects what is established, from either side or from both, or forgets it.
    fn disconnect(&mut self) {
        let now = self.pair.now;
        for process in 0..2 {
            let established: Vec<_> =
                self.ends[process].iter().filter(|(_, end)| end.established > 0).map(|(id, _)| *id).collect();
            for id in established {
                if self.rng.chance(0.6) {
                    // The peer's DREQ may have come.
                    let _ = self.pair.cms[process].disconnect(now, id, &[]);
                }
            }
        }
    }
}

/// The other end of a connection: the passive side's QPN tells.
fn passive_qpn(qpn: u32) -> u32 {
    qpn + 0x10_0000
}

fn check(seed: u64, faults: Faults, certain: bool) {
    let mut run = Run::new(seed, faults);
    run.connect(40);
    run.run(Duration::from_secs(400));
    let mut connections = 0;
    for process in 0..2 {
        for end in run.ends[process].values().filter(|end| end.qpn < 0x10_0000) {
            let qpn = passive_qpn(end.qpn);
            let others: Vec<&End> = run.ends[1 - process].values().filter(|other| other.qpn == qpn).collect();
            assert!(end.established <= 1 && others.iter().map(|other| other.established).sum::<usize>() <= 1);
            match PLANS[end.plan.unwrap()] {
                Plan::Accept | Plan::AcceptLate => {
                    let on_both = others.iter().map(|other| other.established).sum::<usize>();
                    assert!(!certain || (end.established, on_both) == (1, 1), "{end:?}, {others:?}");
                    // The passive side can miss all RTUs, and give up: then it says so to the active side.
                    let given_up = others.iter().any(|other| other.unreachable == 1);
                    let ended = end.unreachable + end.rejected.len();
                    let twice = end.established == 1 && given_up && end.rejected == [RejectReason::TIMEOUT];
                    assert!(end.established + ended == 1 || twice, "established or an error: {end:?}, {others:?}");
                    assert!(on_both == end.established || given_up, "{end:?}, {others:?}");
                    connections += on_both;
                }
                Plan::Reject => {
                    assert_eq!(end.established, 0);
                    let reasons = &end.rejected[..];
                    assert!(reasons == [RejectReason::CONSUMER] || (!certain && end.unreachable == 1), "{end:?}");
                    // A request is forgotten when it is rejected, so that a repetition is another request. The program
                    // cannot reject that if the active side gives up, and its REJ comes before the program looks.
                    for other in others {
                        let given_up = end.unreachable == 1 && end.rejected.is_empty();
                        assert!(given_up && other.rejected == [RejectReason::TIMEOUT], "{end:?}, {other:?}");
                    }
                }
                Plan::Refuse => {
                    assert_eq!(end.established + others.iter().map(|other| other.established).sum::<usize>(), 0);
                    for other in others {
                        let reasons = &other.rejected[..];
                        let unanswered = other.unreachable == 1 || reasons == [RejectReason::INVALID_COMM_ID];
                        let given_up = end.unreachable == 1 && reasons == [RejectReason::TIMEOUT];
                        assert!(reasons == [RejectReason::CONSUMER] || unanswered || given_up, "{end:?}, {other:?}");
                    }
                }
            }
        }
    }
    assert!(!certain || connections > 0);
    assert_eq!(run.resolved + run.unresolved, run.asked);
    assert!(!certain || run.unresolved == 0);

    run.disconnect();
    run.run(Duration::from_secs(400));
    for process in 0..2 {
        for (id, end) in run.ends[process].clone() {
            assert!(end.disconnected <= 1 && end.exits <= 1, "{end:?}");
            run.pair.cms[process].forget(run.pair.now, id);
        }
    }
    run.run(Duration::from_secs(400));
    assert!(run.pair.cms.iter().all(|cm| cm.is_empty()), "nothing remains");
}

fn faults(loss: f64, duplication: f64, most: u64) -> Faults {
    Faults { loss, duplication, latency: (Duration::from_micros(20), Duration::from_micros(most)) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases((ProptestConfig::default().cases / 4).max(60)))]

    /// The repetitions outlast that loss: 16 losses in a row have a probability of 10^-14.
    #[test]
    fn moderate_loss_fails_no_connection(seed in any::<u64>(), loss in 0.0..0.13, duplication in 0.0..0.5) {
        check(seed, faults(loss, duplication, 20_000), true);
    }

    #[test]
    fn reordering_over_seconds_establishes_nothing_twice(seed in any::<u64>(), duplication in 0.0..0.5) {
        check(seed, faults(0.0, duplication, 3_000_000), true);
    }

    #[test]
    fn heavy_loss_ends_every_connection(seed in any::<u64>(), loss in 0.5..1.0) {
        check(seed, faults(loss, 0.1, 20_000), false);
    }
}
