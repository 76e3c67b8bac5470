//! The data of the page: the document in fewer bytes, with times that a JavaScript number holds.
//!
//! Times are in ns since the start of the capture: those since 1970 exceed 2^53. Directions of connections are columns,
//! advice that several findings give is stored once, and a timeline is a string that the page reads when it draws it.

use crate::advice::Advice;
use crate::report::document::{Capture, Connection, Document, FindingEntry, Half, Interval, Peer};
use crate::report::ladder::{LadderStep, Mark};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

/// The data as JSON.
pub(super) fn json(document: &Document) -> String {
    serde_json::to_string(&Data::new(document)).expect("the data has no maps with other keys than strings")
}

#[derive(Serialize)]
struct Data<'a> {
    files: &'a [String],
    capture: &'a Capture,
    /// Time of the first frame, ms since 1970.
    start_ms: u64,
    advice: Vec<Setting<'a>>,
    findings: Vec<Finding<'a>>,
    directions: Directions<'a>,
}

/// Advice, with the setting as a user writes it.
#[derive(Serialize)]
struct Setting<'a> {
    purpose: &'a str,
    layer: &'a str,
    written: String,
    remark: &'a str,
}

#[derive(Serialize)]
struct Finding<'a> {
    kind: &'static str,
    title: &'static str,
    connections: &'a [usize],
    requester: &'a Peer,
    responder: &'a Peer,
    frames: &'a [u64],
    frame_files: &'a [u16],
    from: u64,
    to: u64,
    count: u64,
    cost_ns: u64,
    cost_packets: u64,
    cost_bytes: u64,
    confidence: f64,
    text: &'a str,
    /// Indices in the data's `advice`.
    advice: Vec<usize>,
    ladder: Vec<Step<'a>>,
}

/// Time in ns, frame, whether the requester sent it, name, PSN, note, mark.
#[derive(Serialize)]
struct Step<'a>(u64, u64, u8, &'static str, u32, &'a str, Mark);

/// A column for each property; a line for each direction of each connection.
#[derive(Default, Serialize)]
struct Directions<'a> {
    connection: Vec<usize>,
    pairing: Vec<&'static str>,
    from: Vec<&'a str>,
    from_qp: Vec<Option<u32>>,
    to: Vec<&'a str>,
    to_qp: Vec<Option<u32>>,
    packets: Vec<u64>,
    messages: Vec<u64>,
    requests: Vec<u64>,
    repeats: Vec<u64>,
    bytes: Vec<u64>,
    duration: Vec<u64>,
    rate: Vec<u64>,
    acks: Vec<u64>,
    rnr_naks: Vec<u64>,
    sequence_naks: Vec<u64>,
    marks: Vec<u64>,
    bad_icrcs: Vec<u64>,
    outstanding: Vec<u32>,
    p50: Vec<Option<u64>>,
    p90: Vec<Option<u64>>,
    p99: Vec<Option<u64>>,
    max: Vec<Option<u64>>,
    timeline_start: Vec<u64>,
    timeline_interval: Vec<u64>,
    timeline: Vec<String>,
}

impl<'a> Data<'a> {
    fn new(document: &'a Document) -> Data<'a> {
        let start = document.capture.start;
        let mut advice: Vec<Setting<'_>> = Vec::new();
        let mut places: HashMap<(&str, &str, &str), usize> = HashMap::new();
        let mut place = |entry: &'a Advice| {
            *places.entry((entry.purpose, entry.setting, &entry.value)).or_insert_with(|| {
                let Advice { purpose, layer, remark, .. } = entry;
                advice.push(Setting { purpose, layer: layer.name(), written: entry.written(), remark });
                advice.len() - 1
            })
        };
        let findings = document.findings.iter();
        let findings = findings.map(|entry| finding(entry, start, entry.advice.iter().map(&mut place).collect()));
        let findings = findings.collect();
        let mut directions = Directions::default();
        for connection in &document.connections {
            for half in &connection.halves {
                directions.push(connection, half.requester, Some(half), start);
            }
            // All connections have a line, so that each finding has a place to lead to.
            if connection.halves.is_empty() {
                directions.push(connection, 0, None, start);
            }
        }
        let (files, capture) = (&document.files, &document.capture);
        Data { files, capture, start_ms: start / 1_000_000, advice, findings, directions }
    }
}

fn finding(entry: &FindingEntry, start: u64, advice: Vec<usize>) -> Finding<'_> {
    let ladder = entry.ladder.iter().map(|step| {
        let LadderStep { time_ns, frame, from_requester, what, psn, note, mark } = step;
        Step(*time_ns, *frame, u8::from(*from_requester), what, *psn, note, *mark)
    });
    Finding {
        kind: entry.kind,
        title: entry.title,
        connections: &entry.connections,
        requester: &entry.requester,
        responder: &entry.responder,
        frames: &entry.frames,
        frame_files: &entry.frame_files,
        from: entry.from.saturating_sub(start),
        to: entry.to.saturating_sub(start),
        count: entry.count,
        cost_ns: entry.cost_ns,
        cost_packets: entry.cost_packets,
        cost_bytes: entry.cost_bytes,
        confidence: entry.confidence,
        text: &entry.text,
        advice,
        ladder: ladder.collect(),
    }
}

impl<'a> Directions<'a> {
    fn push(&mut self, connection: &'a Connection, requester: usize, half: Option<&Half>, start: u64) {
        let [from, to] = [requester, 1 - requester].map(|end| &connection.ends[end]);
        self.connection.push(connection.id);
        self.pairing.push(connection.pairing);
        self.from.push(&from.address);
        self.from_qp.push(from.qp);
        self.to.push(&to.address);
        self.to_qp.push(to.qp);
        let count = |of: fn(&Half) -> u64| half.map_or(0, of);
        self.packets.push(count(|half| half.packets));
        self.messages.push(count(|half| half.messages));
        self.requests.push(count(|half| half.requests));
        self.repeats.push(count(|half| half.repeats));
        self.bytes.push(count(|half| half.bytes));
        self.duration.push(count(|half| half.duration_ns));
        self.rate.push(count(|half| half.bytes_per_second.round() as u64));
        self.acks.push(count(|half| half.acks));
        self.rnr_naks.push(count(|half| half.rnr_naks));
        self.sequence_naks.push(count(|half| half.sequence_naks));
        self.marks.push(count(|half| half.congestion_marks));
        self.bad_icrcs.push(count(|half| half.bad_icrcs));
        self.outstanding.push(half.map_or(0, |half| half.most_outstanding));
        self.p50.push(half.and_then(|half| half.latency_p50_ns));
        self.p90.push(half.and_then(|half| half.latency_p90_ns));
        self.p99.push(half.and_then(|half| half.latency_p99_ns));
        self.max.push(half.and_then(|half| half.latency_max_ns));
        self.timeline_start.push(count(|half| half.timeline_start).saturating_sub(start));
        self.timeline_interval.push(count(|half| half.timeline_interval_ns));
        self.timeline.push(half.map_or_else(String::new, |half| timeline(&half.timeline)));
    }
}

/// Intervals with `;` between them: bytes, packets, repeats and outstanding requests with `,` between them. An interval
/// without any is empty.
fn timeline(intervals: &[Interval]) -> String {
    let mut text = String::new();
    for (at, interval) in intervals.iter().enumerate() {
        if at > 0 {
            text.push(';');
        }
        let Interval { bytes, packets, repeats, outstanding } = *interval;
        if (bytes, packets, repeats, outstanding) != (0, 0, 0, 0) {
            let _ = write!(text, "{bytes},{packets},{repeats},{outstanding}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_keeps_the_places_of_empty_intervals() {
        let busy = Interval { bytes: 4096, packets: 2, repeats: 1, outstanding: 3 };
        let idle = Interval { bytes: 0, packets: 0, repeats: 0, outstanding: 0 };
        assert_eq!(timeline(&[busy, idle, idle, busy]), "4096,2,1,3;;;4096,2,1,3");
        assert_eq!(timeline(&[]), "");
    }
}
