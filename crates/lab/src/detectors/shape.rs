//! What each family of scenarios is about: it makes some kinds of findings likely, or what looks like them.

use super::draw::Draw;
use super::family::Family;
use super::scenario::{Ending, Operation, Scenario, adapters, micros, millis};
use std::time::Duration;
use weir_sim::Disorder;
use weir_transport::Profile;

impl Scenario {
    /// The scenario of a seed.
    pub fn of(seed: u64) -> Scenario {
        let mut draw = Draw::new(seed);
        // Any row of seeds has all families.
        let family = Family::ALL[(seed % Family::ALL.len() as u64) as usize];
        let mut scenario = Scenario::plain(seed, family, &mut draw);
        shape(&mut scenario, &mut draw);
        scenario
    }
}

/// Gives a plain scenario what its family is about.
fn shape(scenario: &mut Scenario, draw: &mut Draw) {
    apply(scenario, scenario.family, draw);
}

fn apply(scenario: &mut Scenario, family: Family, draw: &mut Draw) {
    match family {
        Family::Clean => {}
        Family::Damming => two_reads(scenario, draw, |profile| profile.damming),
        Family::NoDamming => {
            two_reads(scenario, draw, |profile| profile.on_demand && !profile.damming);
            scenario.network.loss = if draw.chance(0.7) { draw.log_share(0.005, 0.08) } else { 0.0 };
        }
        Family::Flood => {
            many_reads(scenario, draw);
            scenario.profile = draw.one_of(&adapters(|profile| profile.flood.is_some()));
        }
        Family::SlowPages => {
            many_reads(scenario, draw);
            scenario.profile = draw.one_of(&adapters(|profile| profile.on_demand));
            scenario.slow_pages = Some(millis(draw.log(2, 40)));
            scenario.qps = draw.log(1, 12) as u32;
        }
        Family::WriteFlood => many_writes(scenario, draw),
        Family::OnDemand => on_demand(scenario, draw),
        Family::Loss => scenario.network.loss = draw.log_share(0.001, 0.05),
        Family::Bursts => scenario.network.burst = Some((draw.log(2, 30), draw.log(60, 600))),
        Family::Late => {
            let by = micros(draw.log(2, 60));
            scenario.network.disorder = Disorder { late: draw.log_share(0.005, 0.05), by, ..Disorder::NONE };
        }
        Family::Twice => {
            let by = micros(draw.log(1, 40));
            scenario.network.disorder = Disorder { twice: draw.log_share(0.03, 0.3), by, ..Disorder::NONE };
            scenario.ops = scenario.ops.max(20);
        }
        Family::Damaged => {
            scenario.network.disorder = Disorder { damaged: draw.log_share(0.002, 0.05), ..Disorder::NONE };
        }
        Family::Marked => {
            crowd(scenario, draw);
            scenario.network.mark_above = Some(draw.log(2000, 100_000));
        }
        Family::FullBuffers => {
            crowd(scenario, draw);
            scenario.network.buffer = draw.log(20_000, 300_000);
        }
        Family::SlowReceiver => slow_receiver(scenario, draw),
        Family::TimerZero => {
            if draw.chance(0.5) {
                slow_receiver(scenario, draw);
            } else {
                on_demand(scenario, draw);
            }
            scenario.rnr_timer = 0;
            scenario.ops = scenario.ops.min(12);
            scenario.qps = scenario.qps.min(4);
        }
        Family::WrongPeer => {
            scenario.end = Ending::WrongPeer;
            (scenario.qps, scenario.two_way) = (1, false);
            after_the_end(scenario, draw);
        }
        Family::PeerStops => {
            scenario.end = Ending::PeerStops(draw.share());
            scenario.ops = scenario.ops.max(10);
            after_the_end(scenario, draw);
        }
        Family::WrongKey => scenario.end = Ending::WrongKey,
        Family::SmallMessages => {
            scenario.ops = draw.log(600, 3000) as u32;
            scenario.qps = draw.between(1, 2) as u32;
            scenario.sizes = draw.one_of(&[[8, 8], [1, 200], [64, 64], [200, 1000]]);
            scenario.depth = draw.one_of(&[1, 4, 16, 32, 64]);
            scenario.mix = draw.one_of::<&[_]>(&[&[Operation::Write], &[Operation::Send]]);
            (scenario.gap, scenario.two_way) = (Duration::ZERO, false);
        }
        Family::Mixed => {
            const PARTS: [Family; 9] = [
                Family::OnDemand,
                Family::OnDemand,
                Family::Damming,
                Family::Loss,
                Family::Loss,
                Family::Damaged,
                Family::SlowReceiver,
                Family::Marked,
                Family::WrongKey,
            ];
            for _ in 0..2 {
                apply(scenario, draw.one_of(&PARTS), draw);
            }
        }
    }
}

/// Requests that follow a READ on ODP memory within some milliseconds (T fig 5.1 to 5.6).
fn two_reads(scenario: &mut Scenario, draw: &mut Draw, is: impl Fn(&Profile) -> bool) {
    const MIXES: [&[Operation]; 3] = [
        &[Operation::Read],
        &[Operation::Read, Operation::Write],
        &[Operation::Read, Operation::Write, Operation::Send],
    ];
    scenario.profile = draw.one_of(&adapters(is));
    scenario.mix = draw.one_of(&MIXES);
    scenario.odp = draw.one_of(&[[false, true], [false, true], [true, false], [true, true]]);
    scenario.touched = if draw.chance(0.5) { 0.0 } else { draw.share() };
    scenario.apart = draw.chance(0.5);
    scenario.qps = draw.log(1, 6) as u32;
    scenario.ops = draw.log(2, 40) as u32;
    (scenario.depth, scenario.max_rd_atomic) = (64, 16);
    scenario.gap = micros(draw.log(150, 8000));
    scenario.rnr_timer = draw.one_of(&[14, 14, 12, 16, 1]);
    scenario.two_way = false;
}

/// A READ or some of each of many QPs into ODP memory of the client (T fig 5.7, 5.9).
fn many_reads(scenario: &mut Scenario, draw: &mut Draw) {
    scenario.mix = &[Operation::Read];
    scenario.odp = [true, draw.chance(0.3)];
    scenario.qps = draw.log(4, 200) as u32;
    scenario.ops = draw.log(1, 24).min(1 + 400 / u64::from(scenario.qps)) as u32;
    scenario.sizes = draw.one_of(&[[32, 32], [100, 100], [32, 400], [1000, 1000], [4096, 4096]]);
    scenario.apart = draw.chance(0.2);
    scenario.touched = draw.one_of(&[0.0, 0.0, 0.5, 1.0]);
    (scenario.depth, scenario.gap) = (draw.log(1, 16) as u32, Duration::ZERO);
    (scenario.two_way, scenario.ack_timeout) = (false, 18);
}

/// Many WRITEs or SENDs, on pages that are missing at either side (T 5.2.4).
fn many_writes(scenario: &mut Scenario, draw: &mut Draw) {
    on_demand(scenario, draw);
    scenario.mix = draw.one_of::<&[_]>(&[&[Operation::Write], &[Operation::Write], &[Operation::Send]]);
    scenario.sizes = draw.one_of(&[[512, 512], [2000, 2000], [4096, 4096], [64, 4096]]);
    scenario.qps = draw.log(1, 32) as u32;
    scenario.ops = draw.log(16, 128).min(1500 / u64::from(scenario.qps)) as u32;
    (scenario.depth, scenario.gap) = (draw.log(8, 128) as u32, Duration::ZERO);
    (scenario.two_way, scenario.ack_timeout) = (false, 18);
}

fn on_demand(scenario: &mut Scenario, draw: &mut Draw) {
    scenario.profile = draw.one_of(&adapters(|profile| profile.on_demand));
    scenario.odp = draw.one_of(&[[true, false], [false, true], [true, true]]);
    scenario.touched = draw.one_of(&[0.0, 0.3, 0.9, 1.0]);
    // No adapter executes atomics on ODP memory.
    if scenario.mix.contains(&Operation::FetchAdd) {
        scenario.mix = &[Operation::Read, Operation::Write];
    }
}

/// Messages that come before their receives.
fn slow_receiver(scenario: &mut Scenario, draw: &mut Draw) {
    scenario.mix = draw.one_of::<&[_]>(&[&[Operation::Send], &[Operation::Send, Operation::Write]]);
    scenario.receive_every = Some(micros(draw.log(20, 20_000)));
    scenario.ops = draw.log(3, 40) as u32;
    scenario.qps = draw.log(1, 4) as u32;
    (scenario.two_way, scenario.gap) = (false, micros(draw.log(1, 2000)));
    if draw.chance(0.2) {
        scenario.rnr_retry = draw.between(1, 5) as u8;
        after_the_end(scenario, draw);
    }
}

/// Hosts that send to the server as fast as they can.
fn crowd(scenario: &mut Scenario, draw: &mut Draw) {
    scenario.network.load = (draw.between(1, 3) as u32, draw.log(40, 200) as u32);
    (scenario.ops, scenario.depth) = (scenario.ops.max(20), scenario.depth.max(4));
    scenario.sizes = draw.one_of(&[[512, 4096], [64, 20_000], [4096, 30_000]]);
}

/// The capture goes on when a QP has given up, and others still send.
fn after_the_end(scenario: &mut Scenario, draw: &mut Draw) {
    scenario.witness = draw.chance(0.85).then(|| millis(draw.between(5, 100)));
    scenario.tail = millis(draw.log(1500, 9000));
}
