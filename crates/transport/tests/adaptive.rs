//! Adaptive retransmission: the first timeouts in a row are shorter than T_o, and most of them are not retries.

use std::time::Duration;
use weir_transport::testing::{Fate, PagingSetup, Pair, Setup, address, write};
use weir_transport::*;

/// The schedule of a ConnectX-6 on RoCE (profile `connectx6-roce`), up to the step that is longer than 2 T_tr with n = 16.
const STEPS: [u64; 9] = [12_500, 8_400, 16_700, 33_700, 67_100, 100_600, 201_400, 536_800, 805_300];

/// The first PSN of the requester.
const FIRST: Psn = Psn::new(0x10_0000);

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// T_o: 2 T_tr.
fn t_o(exponent: u8) -> Duration {
    Duration::from_nanos(2 * (4096 << exponent))
}

/// An adapter with adaptive retransmission. T_o is 2 T_tr, and n is at least 16.
fn adaptive(timeout: u8, retry_cnt: u8) -> Setup {
    let mut profile = Profile::ideal();
    profile.ack_timeout = AckTimeout {
        least_exponent: 16,
        floor: Duration::ZERO,
        factor: Spread::exactly(2.0),
        growth: 1,
        adaptive: Adaptive { steps: STEPS.map(us).into(), retries: 2 },
    };
    Setup { timeout, retry_cnt, profile, ..Setup::default() }
}

/// Posts a WRITE to a peer that does not respond. The times between its packets, the end of the QP included.
fn waits(setup: Setup) -> Vec<Duration> {
    let mut pair = setup.pair();
    pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, write(0), 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::RetryExceeded)]);
    let times: Vec<Instant> = sent(&pair).chain([pair.now]).collect();
    times.windows(2).map(|two| two[1] - two[0]).collect()
}

/// When packets of the requester left.
fn sent(pair: &Pair) -> impl Iterator<Item = Instant> {
    pair.wire.log.iter().filter(|packet| packet.from == 0).map(|packet| packet.at)
}

#[test]
fn the_timeouts_in_a_row_follow_the_schedule_and_end_with_t_o() {
    // Exponents below 16 count as 16: seven steps are at most T_tr = 268 ms, and the eighth is below T_o = 536.87 ms.
    for timeout in [1, 14, 16] {
        let waited = waits(adaptive(timeout, 7));
        assert_eq!(waited[..8], STEPS.map(us)[..8]);
        assert_eq!(waited[8..], [t_o(16); 5]);
        let total: Duration = waited.iter().sum();
        // Measured: 3661.8 ms.
        assert!(total.abs_diff(us(3_661_800)) < us(1000), "{total:?}");
    }
    // T_tr = 537 ms and T_o = 1074 ms: the step of 805 ms is an ordinary timeout. Measured: 7151.7 ms.
    let waited = waits(adaptive(17, 7));
    assert_eq!(waited[..9], STEPS.map(us));
    assert_eq!(waited[9..], [t_o(17); 5]);
    let total: Duration = waited.iter().sum();
    assert!(total.abs_diff(us(7_151_700)) < us(1000), "{total:?}");
}

#[test]
fn the_steps_up_to_t_tr_count_as_two_retries() {
    // Of seven steps the last two count; a retry count of 0 ends with the first that counts.
    for (retry_cnt, expirations) in [(0, 6), (1, 7), (2, 8), (7, 13)] {
        assert_eq!(waits(adaptive(14, retry_cnt)).len(), expirations, "retry_cnt {retry_cnt}");
    }
    // An eighth step is at most T_tr.
    assert_eq!(waits(adaptive(17, 7)).len(), 14);
    // Without adaptive retransmission: retry_cnt + 1.
    let mut plain = adaptive(14, 7);
    plain.profile.ack_timeout.adaptive = Adaptive::default();
    assert_eq!(waits(plain), [t_o(16); 8]);
}

#[test]
fn no_step_is_longer_than_t_o() {
    // T_tr = 4.2 ms and T_o = 8.4 ms: all steps are longer than T_tr, so each timeout is a retry.
    let mut setup = adaptive(10, 3);
    setup.profile.ack_timeout.least_exponent = 0;
    assert_eq!(waits(setup), [t_o(10); 4]);
}

#[test]
fn progress_restarts_the_schedule() {
    // Each of two packets needs four tries.
    let mut pair = adaptive(14, 7).pair();
    let mut tries = std::collections::HashMap::new();
    pair.wire.rule = Some(Box::new(move |from, packet| {
        let count = tries.entry(packet.headers.bth.psn).or_insert(0);
        *count += 1;
        if from == 0 && *count < 4 { Fate::Drop } else { Fate::Pass }
    }));
    for wr_id in 0..2 {
        pair.post(wr_id, write(0), 0, 10);
        pair.run_until_idle();
        let times: Vec<Instant> = sent(&pair).skip(4 * wr_id as usize).collect();
        let waited: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(waited, STEPS.map(us)[..3], "packet {wr_id}");
    }
    assert_eq!(pair.outcomes(0, Queue::Send), [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn an_acknowledgement_restarts_the_schedule_for_the_packets_behind_it() {
    // The first packet needs three tries, the second five.
    let mut pair = adaptive(14, 7).pair();
    let mut tries = std::collections::HashMap::new();
    pair.wire.rule = Some(Box::new(move |from, packet| {
        let count = tries.entry(packet.headers.bth.psn).or_insert(0);
        *count += 1;
        let needed = if packet.headers.bth.psn == FIRST { 3 } else { 5 };
        if from == 0 && *count < needed { Fate::Drop } else { Fate::Pass }
    }));
    pair.post(1, write(0), 0, 10);
    pair.post(2, write(0), 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), [(1, Status::Success), (2, Status::Success)]);
    let second = pair.wire.log.iter().filter(|packet| packet.from == 0 && packet.headers.bth.psn != FIRST);
    let times: Vec<Instant> = second.map(|packet| packet.at).collect();
    let waited: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert_eq!(waited[..2], STEPS.map(us)[..2]);
    // The ACK of the first packet comes some microseconds after the third try.
    assert!(waited[2] > us(12_500) && waited[2] < us(12_600), "{waited:?}");
    assert_eq!(waited[3], us(8_400));
}

#[test]
fn the_timeout_after_a_page_fault_is_the_first_step() {
    // The second of two packets waits for its page, far longer than the first step.
    let paging = PagingSetup { resolve: us(400_000), ..PagingSetup::default() };
    let mut pair = Setup { paging: Some(paging), ..adaptive(14, 7) }.pair();
    pair.paging(0).prefetch(address(0), 1000, true);
    pair.run_until_idle();
    pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, write(0), 0, 2000);
    pair.transmit();
    assert_eq!(pair.nodes[0].qp.requester_state(), RequesterState::PageFault);
    assert!(pair.run_until(|pair| pair.nodes[0].qp.requester_state() != RequesterState::PageFault));
    let resumed = pair.now;
    pair.run_until_idle();
    let first = pair.wire.log.iter().filter(|packet| packet.headers.bth.psn == FIRST).map(|packet| packet.at);
    let tries: Vec<Instant> = first.collect();
    assert_eq!(tries[1] - resumed, us(12_500));
    assert_eq!(tries[2] - tries[1], us(8_400));
}

#[test]
fn a_timeout_attribute_of_0_is_infinite() {
    let mut pair = adaptive(0, 7).pair();
    pair.wire.rule = Some(Box::new(|_, _| Fate::Drop));
    pair.post(1, write(0), 0, 10);
    pair.run_until_idle();
    assert_eq!(pair.outcomes(0, Queue::Send), []);
    assert_eq!(pair.nodes[0].qp.poll_timeout(), None);
}
