//! Stalls in virtual time: those of the thesis, and others that look alike.

use super::*;
use crate::trace::{Qp, Request};
use crate::verbs::{READ, SEND, WRITE};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// QPs with the attributes of the thesis: RNR 1.28 ms, C_ACK 1.
fn process(qps: usize) -> Trace {
    let qp = Qp { device: "mlx5_0".into(), service: 2, min_rnr_timer: 14, timeout: 1, retry_cnt: 7, ..Qp::default() };
    let mut trace = Trace { program: "micro".into(), ..Trace::default() };
    trace.qps = (0..qps).map(|n| Qp { number: n as u32 + 1, ..qp.clone() }).collect();
    trace
}

/// Adds a request that completes; those of a QP in the order in which they complete.
fn add(trace: &mut Trace, qp: usize, opcode: u8, posted: u64, done: u64) -> &mut Request {
    let before = trace.requests.iter().filter(|request| request.qp == qp).map(|request| request.done).max();
    let begun = posted.max(before.unwrap_or(0));
    trace.requests.push(Request { qp, posted, begun, done, missing: done, bytes: 100, opcode, ..Request::default() });
    trace.requests.last_mut().unwrap()
}

fn found(trace: &mut Trace) -> Vec<(Kind, usize)> {
    trace.requests.sort_by_key(|request| (request.done, request.posted));
    detect(trace).iter().map(|finding| (finding.kind, finding.requests)).collect()
}

#[test]
fn the_dammed_read_of_fig_5_3_on_either_side() {
    for (odp, first, second) in [(false, 4_051 * US, 541_751 * US), (true, 861 * US, 435_912 * US)] {
        let mut trace = process(1);
        add(&mut trace, 0, READ, 0, first).odp = odp;
        add(&mut trace, 0, READ, 500 * US, second).odp = odp;
        assert_eq!(found(&mut trace), [(Kind::Damming, 1), (Kind::PageFault, 1)]);
        let finding = &detect(&trace)[0];
        assert_eq!((finding.qp, finding.from, finding.to), (Some(1), 500 * US, second));
        assert!(finding.cost_ns > second - first - MS && finding.confidence > 0.9);
        assert!(finding.advice.iter().any(|advice| advice.setting == "UCX_IB_REG_METHODS=rcache,direct"));
    }
}

#[test]
fn the_send_of_fig_6_2_is_posted_after_the_read_and_dammed_all_the_same() {
    let mut trace = process(1);
    (trace.qps[0].min_rnr_timer, trace.qps[0].timeout) = (13, 18);
    add(&mut trace, 0, READ, 0, 5_300 * US);
    add(&mut trace, 0, SEND, 5_326 * US, 1_666_000 * US);
    assert_eq!(found(&mut trace)[0], (Kind::Damming, 1));
    // A request that comes later is another matter: the peer repeats nothing then.
    let mut late = process(1);
    add(&mut late, 0, READ, 0, 5_300 * US);
    add(&mut late, 0, SEND, 9_000 * US, 509 * MS);
    assert_eq!(found(&mut late)[0].0, Kind::Timeout);
}

#[test]
fn a_lost_packet_is_not_damming() {
    // Nothing is ahead of the request, or a READ that was lost itself.
    let mut trace = process(2);
    add(&mut trace, 0, READ, 0, 480 * MS);
    add(&mut trace, 1, READ, 0, 480 * MS);
    add(&mut trace, 1, READ, 10 * US, 960 * MS);
    assert_eq!(found(&mut trace), [(Kind::Timeout, 2), (Kind::Timeout, 1)]);
}

#[test]
fn a_later_request_reveals_the_lost_one_so_that_a_timeout_means_more_losses() {
    let mut trace = process(1);
    add(&mut trace, 0, READ, 0, 800 * US).odp = true;
    add(&mut trace, 0, READ, 400 * US, 480 * MS).next = 1_200 * US;
    assert_eq!(found(&mut trace), [(Kind::Timeout, 1), (Kind::PageFault, 1)]);
    // Unless it came when the timeout was almost over.
    trace.requests[1].next = 477 * MS;
    assert_eq!(found(&mut trace)[0], (Kind::Damming, 1));
}

#[test]
fn a_read_that_a_later_request_repaired_is_no_page_fault() {
    // The READ was lost, and the request after 0.7 ms revealed that. After an RNR NAK it would have waited longer.
    for (first, kind) in [(800 * US, Kind::Timeout), (3_400 * US, Kind::Damming)] {
        let mut trace = process(1);
        add(&mut trace, 0, READ, 0, first);
        add(&mut trace, 0, READ, 700 * US, 480 * MS);
        assert_eq!(found(&mut trace)[0], (kind, 1));
    }
}

#[test]
fn after_an_rnr_wait_the_first_request_is_dammed_and_not_the_second() {
    let mut trace = process(1);
    trace.qps[0].max_rd_atomic = 4;
    add(&mut trace, 0, READ, 0, 5 * MS);
    add(&mut trace, 0, READ, MS, 5_100 * US);
    add(&mut trace, 0, READ, 2 * MS, 505 * MS).ahead = 2;
    assert_eq!(found(&mut trace)[0].0, Kind::Timeout);
    // If the queue is deep, the last one may have left with another READ.
    trace.requests[2].ahead = 4;
    assert_eq!(found(&mut trace)[0].0, Kind::Damming);
}

#[test]
fn a_request_that_left_before_the_nak_completes_between_the_read_and_the_dammed_one() {
    for (third, kind) in [(213 * US, Kind::Damming), (900 * US, Kind::Timeout)] {
        let mut trace = process(1);
        trace.qps[0].max_rd_atomic = 4;
        add(&mut trace, 0, READ, 0, 5_490 * US);
        add(&mut trace, 0, READ, 108 * US, 5_550 * US).ahead = 1;
        add(&mut trace, 0, READ, third, 523_982 * US).ahead = 2;
        assert_eq!(found(&mut trace)[0].0, kind);
    }
}

#[test]
fn more_than_one_timeout_means_that_packets_are_lost() {
    // One request needs two timeouts, or two requests that were repeated together need one each.
    let mut trace = process(2);
    add(&mut trace, 0, READ, 0, 5 * MS);
    add(&mut trace, 0, READ, MS, 1_300 * MS);
    assert_eq!(found(&mut trace)[0].0, Kind::Timeout);
    let mut trace = process(1);
    trace.qps[0].max_rd_atomic = 4;
    add(&mut trace, 0, READ, 0, 5 * MS);
    add(&mut trace, 0, READ, MS, 505 * MS).ahead = 1;
    add(&mut trace, 0, READ, 2 * MS, 1_000 * MS).ahead = 2;
    assert_eq!(found(&mut trace)[0], (Kind::Timeout, 2));
}

#[test]
fn a_program_that_polls_rarely_posts_after_the_end_of_the_read() {
    let mut trace = process(1);
    let read = add(&mut trace, 0, READ, 0, 6 * MS);
    (read.odp, read.missing) = (true, 3 * MS);
    add(&mut trace, 0, READ, 6_020 * US, 480 * MS);
    assert_eq!(found(&mut trace)[0].0, Kind::Timeout);
    trace.requests[0].missing = 6 * MS;
    assert_eq!(found(&mut trace)[0].0, Kind::Damming);
}

#[test]
fn only_reads_are_repeated_so_that_requests_behind_them_are_dammed() {
    let mut trace = process(1);
    add(&mut trace, 0, WRITE, 0, 5 * MS);
    add(&mut trace, 0, WRITE, 500 * US, 505 * MS);
    assert!(found(&mut trace).iter().all(|(kind, _)| *kind != Kind::Damming));
}

#[test]
fn timeouts_without_a_read_ahead_make_damming_less_certain_or_exclude_it() {
    let dammed = |trace: &mut Trace, at: u64| {
        add(trace, 0, READ, at, at + 4 * MS);
        add(trace, 0, READ, at + MS, at + 500 * MS);
    };
    let mut trace = process(3);
    (0..3).for_each(|n| dammed(&mut trace, 600 * MS * n));
    found(&mut trace);
    let confidence =
        |trace: &Trace| Some(detect(trace).first().filter(|first| first.kind == Kind::Damming)?.confidence);
    let sure = confidence(&trace).unwrap();
    add(&mut trace, 1, READ, 0, 500 * MS);
    found(&mut trace);
    let unsure = confidence(&trace).unwrap();
    assert!(sure > 0.9 && unsure < sure, "{sure} {unsure}");
    // At the same time: one event.
    add(&mut trace, 2, READ, 0, 500 * MS);
    found(&mut trace);
    assert!(confidence(&trace).unwrap() < unsure);
    (1..3).for_each(|n| _ = add(&mut trace, 1, READ, 600 * MS * n, 600 * MS * n + 500 * MS));
    found(&mut trace);
    assert_eq!(confidence(&trace), None, "as many of them as behind READs");
}

/// READs of 128 QPs to one page; the first `stale` complete at 6 ms and not after 1 ms (T fig 5.9).
fn one_page(stale: usize) -> Trace {
    let mut trace = process(128);
    for qp in 0..128 {
        let done = if qp < stale { 6 * MS } else { MS } + qp as u64 * US;
        let request = add(&mut trace, qp, READ, qp as u64, done);
        (request.odp, request.address, request.bytes) = (true, 0x7000 + 32 * qp as u64, 32);
    }
    trace
}

#[test]
fn requests_that_stay_open_after_their_page_has_come_are_a_flood() {
    let found = |stale| found(&mut one_page(stale)).into_iter().find(|(kind, _)| *kind == Kind::Flood);
    assert_eq!(found(40), Some((Kind::Flood, 40)));
    assert_eq!(found(0), None, "the page comes for all of them");
    let mut trace = one_page(40);
    trace.requests.iter_mut().for_each(|request| request.odp = false);
    assert!(detect(&trace).iter().all(|finding| finding.kind != Kind::Flood));
}

#[test]
fn page_faults_one_after_the_other_are_no_flood() {
    let mut trace = process(64);
    for page in 0..64 {
        for n in 0..4 {
            let request = add(&mut trace, page, READ, 0, (page as u64 + 1) * 600 * US + n * US);
            (request.odp, request.address) = (true, page as u64 * 4096);
        }
    }
    let found = found(&mut trace);
    assert!(!found.is_empty() && found.iter().all(|(kind, _)| *kind == Kind::PageFault), "{found:?}");
}

#[test]
fn a_send_that_is_late_by_the_rnr_delay_waits_for_a_receive() {
    let mut trace = process(3);
    add(&mut trace, 0, SEND, 0, 5 * MS);
    add(&mut trace, 1, SEND, 0, 90 * US);
    add(&mut trace, 2, SEND, 0, 4 * MS).status = crate::verbs::RNR_RETRY_EXCEEDED;
    assert_eq!(found(&mut trace), [(Kind::RnrWait, 1), (Kind::RnrWait, 1)]);
    let sure = |trace: &Trace| detect(trace).iter().map(|finding| finding.confidence).fold(1.0, f64::min);
    assert_eq!(sure(&trace), 0.8);
    trace.requests.iter_mut().for_each(|request| request.armed = true);
    assert_eq!(sure(&trace), 0.5, "the program may have waited for a processor");
}

#[test]
fn a_send_that_is_late_by_the_ack_timeout_lost_a_packet() {
    let mut trace = process(4);
    trace.qps.iter_mut().for_each(|qp| qp.timeout = 14);
    // T_tr is 67.1 ms, and Soft-RoCE's timer comes early by ticks of the kernel.
    for (qp, late) in [61, 68, 131].into_iter().enumerate() {
        add(&mut trace, qp, SEND, 0, late * MS);
    }
    add(&mut trace, 3, SEND, 0, 100 * MS);
    let kinds: Vec<Kind> = found(&mut trace).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [Kind::Timeout, Kind::Timeout, Kind::Timeout, Kind::RnrWait]);
}

#[test]
fn a_write_that_is_late_by_less_than_the_ack_timeout_may_have_lost_a_packet() {
    let mut trace = process(2);
    trace.qps.iter_mut().for_each(|qp| (qp.timeout, qp.min_rnr_timer) = (14, 12));
    add(&mut trace, 0, WRITE, 0, 40 * MS);
    add(&mut trace, 1, WRITE, 0, 68 * MS);
    assert_eq!(found(&mut trace), [(Kind::Timeout, 1), (Kind::Timeout, 1)]);
    let sure: Vec<f64> = detect(&trace).iter().map(|finding| finding.confidence).collect();
    assert_eq!(sure, [0.5, 0.3]);
    // A peer waits for its page for so long, if its RNR delay is long.
    trace.qps[0].min_rnr_timer = 20;
    assert_eq!(found(&mut trace), [(Kind::Timeout, 1), (Kind::PageFault, 1)]);
}

#[test]
fn the_peer_of_a_device_without_odp_has_no_page_faults() {
    let mut trace = process(1);
    add(&mut trace, 0, WRITE, 0, 5 * MS);
    assert_eq!(found(&mut trace), [(Kind::PageFault, 1)]);
    trace.qps[0].no_odp = true;
    assert_eq!(found(&mut trace), []);
}

#[test]
fn errors_and_open_requests_are_timeouts() {
    let mut trace = process(2);
    add(&mut trace, 0, WRITE, 0, 4_300 * MS).status = crate::verbs::RETRY_EXCEEDED;
    add(&mut trace, 1, WRITE, 0, 900 * MS).open = true;
    assert_eq!(found(&mut trace), [(Kind::Timeout, 1), (Kind::Timeout, 1)]);
    assert!(detect(&trace)[0].what.contains("IBV_WC_RETRY_EXC_ERR"));
    assert!(detect(&trace)[1].what.contains("was open"));
}

#[test]
fn a_program_that_does_not_poll_has_no_stall() {
    let mut trace = process(1);
    add(&mut trace, 0, READ, 0, 500 * MS).missing = 0;
    assert_eq!(found(&mut trace), []);
}

#[test]
fn libraries_that_register_on_demand_are_named_and_the_program_is_not() {
    let mut trace = process(1);
    let source = |path: &str| Source { path: path.into(), regions: 3, bytes: 5 << 20, ..Source::default() };
    trace.sources = vec![source("/usr/lib/ucx/libuct_ib.so.0"), source("./micro")];
    let findings = detect(&trace);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].what, "libuct_ib.so.0 registered 5.0 MiB on demand, in 3 regions");
    assert_eq!(findings[0].advice[0].of, "UCX");
}
