//! A link fails in the middle of a transfer, and is mended: what the connection carries meanwhile.

use super::configuration::Configuration;
use super::job::{Done, Sample};
use super::row::Row;
use serde::Serialize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_stage::{Failure, Stage};

/// The link that fails.
pub const LINK: usize = 1;
/// Of the time after a change, so much does not count as the rate of what comes then, seconds.
const SETTLING: f64 = 0.05;
/// Length of a moment of the report, seconds.
const MOMENT: f64 = 0.01;

/// One failure on one set of links.
#[derive(Debug, Serialize)]
pub struct FailureRow {
    /// The whole transfer.
    #[serde(flatten)]
    pub row: Row,
    pub failure: String,
    /// Operations that were performed, and that failed.
    pub operations: u64,
    pub failed_operations: u64,
    /// How the first of them has.
    pub why: Option<String>,
    /// The link that fails; `eth0` is 0.
    pub link: usize,
    /// When it fails and when it is mended, seconds from the beginning.
    pub fails: f64,
    pub mended: f64,
    /// Without the first 50 ms.
    pub before: Phase,
    pub failed: Phase,
    /// The second half of the time after it is mended.
    pub after: Phase,
    /// The longest time without a packet of an operation from the failure on, milliseconds: at most so long, as samples are
    /// 2 ms apart. Before it: what a busy machine does.
    pub stall_ms: f64,
    pub stall_before_ms: f64,
    /// The longest time in which no operation was complete, milliseconds.
    pub pause_ms: f64,
    /// Moments of 10 ms.
    pub timeline: Vec<Moment>,
}

/// A part of the transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Gbit/s of operations' bytes that have come.
    pub gigabits: f64,
    /// The share of the link that fails in what has come.
    pub share: f64,
}

/// What has come in a moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Its middle, seconds from the beginning.
    pub at: f64,
    /// Gbit/s of operations' bytes.
    pub gigabits: f64,
    /// Gbit/s that each link has brought, with all headers.
    pub links: Vec<f64>,
}

/// When the link failed and was mended, seconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    fails: f64,
    /// The commands that let it fail have ended.
    failed: f64,
    mended: f64,
}

impl Times {
    /// Lets the link fail after `seconds`, and mends it after as many more.
    pub fn inflict(stage: &Stage, links: &Configuration, failure: Failure, seconds: f64) -> anyhow::Result<Times> {
        let (part, rate) = (Duration::from_secs_f64(seconds), links.rates[LINK]);
        std::thread::sleep(part);
        let fails = now();
        stage.fail(LINK, rate, failure)?;
        let failed = now();
        std::thread::sleep(part);
        // What comes from now on may come over the link.
        let mended = now();
        stage.mend(LINK, rate, failure)?;
        Ok(Times { fails, failed, mended })
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

impl FailureRow {
    /// The samples are those of the receiver.
    pub fn new(links: &Configuration, mtu: u32, done: &Done, failure: Failure, times: Times) -> FailureRow {
        let samples = &done.server.samples;
        let begin = samples.first().map_or(0.0, |first| first.at);
        let [fails, failed, mended] = [times.fails, times.failed, times.mended].map(|time| time - begin);
        let samples: Vec<Sample> = samples.iter().map(|s| Sample { at: s.at - begin, ..s.clone() }).collect();
        let end = done.job.seconds.min(samples.last().map_or(0.0, |last| last.at));
        FailureRow {
            row: Row::new(links, mtu, done, false),
            failure: failure.to_string(),
            operations: done.client.operations,
            failed_operations: done.client.failed,
            why: done.client.failure.clone(),
            link: LINK,
            fails,
            mended,
            before: phase(&samples, SETTLING, fails),
            failed: phase(&samples, failed + SETTLING, mended.min(end)),
            after: phase(&samples, (mended + end) / 2.0, end),
            stall_ms: stall(&samples, fails, end) * 1e3,
            stall_before_ms: stall(&samples, 0.0, fails) * 1e3,
            pause_ms: done.client.pause.unwrap_or(f64::NAN) * 1e3,
            timeline: timeline(&samples),
        }
    }
}

/// What has come between two times.
fn phase(samples: &[Sample], from: f64, until: f64) -> Phase {
    let mut within = samples.iter().filter(|sample| sample.at >= from && sample.at <= until);
    let Some(first) = within.next() else { return Phase::default() };
    let last = within.next_back().unwrap_or(first);
    let links: Vec<u64> = difference(&last.link_bytes, &first.link_bytes).collect();
    let all = links.iter().sum::<u64>().max(1);
    Phase {
        gigabits: (last.bytes - first.bytes) as f64 * 8e-9 / (last.at - first.at).max(1e-9),
        share: links.get(LINK).map_or(0.0, |bytes| *bytes as f64 / all as f64),
    }
}

/// The longest time between two times in which no more bytes came.
fn stall(samples: &[Sample], from: f64, end: f64) -> f64 {
    let within = || samples.iter().filter(|sample| sample.at >= from && sample.at <= end);
    let (mut longest, mut since) = (0.0, within().next());
    for sample in within() {
        if let Some(before) = since.filter(|before| before.bytes < sample.bytes) {
            longest = f64::max(longest, sample.at - before.at);
            since = Some(sample);
        }
    }
    // The end of the time is none of the transfer's stalls unless nothing came up to it.
    since.map_or(longest, |before| longest.max(end - before.at))
}

fn timeline(samples: &[Sample]) -> Vec<Moment> {
    let mut all = vec![];
    let mut before: Option<&Sample> = samples.first();
    for sample in samples.iter().skip(1) {
        let Some(from) = before.filter(|from| sample.at - from.at >= MOMENT) else { continue };
        let seconds = sample.at - from.at;
        let rate = |bytes: u64| bytes as f64 * 8e-9 / seconds;
        all.push(Moment {
            at: (from.at + sample.at) / 2.0,
            gigabits: rate(sample.bytes - from.bytes),
            links: difference(&sample.link_bytes, &from.link_bytes).map(rate).collect(),
        });
        before = Some(sample);
    }
    all
}

fn difference(later: &[u64], earlier: &[u64]) -> impl Iterator<Item = u64> {
    later.iter().zip(earlier).map(|(later, earlier)| later - earlier)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sample every 2 ms, of two links; the second one brings nothing in the middle, and nothing comes for 20 ms.
    fn samples() -> Vec<Sample> {
        let (mut bytes, mut links) = (0, vec![0, 0]);
        let sample = |n: u64| {
            let (stalls, fails) = ((100..110).contains(&n), (100..200).contains(&n));
            let each = |is: bool| if is { 250_000 } else { 0 };
            let more = [each(!stalls), each(!fails)];
            links.iter_mut().zip(more).for_each(|(link, more)| *link += more);
            bytes += more.iter().sum::<u64>();
            Sample { at: n as f64 * 0.002, bytes, link_bytes: links.clone() }
        };
        (0..300).map(sample).collect()
    }

    #[test]
    fn phases_and_stalls_follow_from_samples() {
        let samples = samples();
        let before = phase(&samples, SETTLING, 0.199);
        assert!((before.gigabits - 2.0).abs() < 1e-9 && (before.share - 0.5).abs() < 1e-9, "{before:?}");
        let failed = phase(&samples, 0.2 + SETTLING, 0.39);
        assert!((failed.gigabits - 1.0).abs() < 1e-9 && failed.share == 0.0, "{failed:?}");
        assert!((stall(&samples, 0.1, 0.6) - 0.022).abs() < 1e-9, "{}", stall(&samples, 0.1, 0.6));
        assert!((stall(&samples, 0.0, 0.19) - 0.002).abs() < 1e-9, "{}", stall(&samples, 0.0, 0.19));
        assert_eq!(phase(&samples, 7.0, 8.0), Phase::default());
    }

    #[test]
    fn a_timeline_has_the_rates_of_all_links() {
        let timeline = timeline(&samples());
        assert!(timeline.len() > 50 && timeline.windows(2).all(|two| two[0].at < two[1].at));
        let near = |at: f64| timeline.iter().min_by(|a, b| (a.at - at).abs().total_cmp(&(b.at - at).abs())).unwrap();
        assert!((near(0.1).gigabits - 2.0).abs() < 1e-6, "{:?}", near(0.1));
        assert!((near(0.3).gigabits - 1.0).abs() < 1e-6 && near(0.3).links[1] == 0.0, "{:?}", near(0.3));
    }
}
