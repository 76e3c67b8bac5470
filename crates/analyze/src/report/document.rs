//! The report as data: plain values, with all indices and times resolved. Its JSON is stable (`docs/analyze.md`).

use super::ladder::{self, LadderStep};
use crate::advice::Advice;
use crate::analysis::{Report, Totals};
use crate::finding::Finding;
use crate::flow::{Flow, FlowId, Pairing};
use serde::Serialize;
use std::collections::HashMap;

/// All of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Version of the schema: it grows if a field changes its meaning or goes.
    pub schema: u32,
    /// The captures, in the order of their first frames.
    pub files: Vec<String>,
    pub capture: Capture,
    pub findings: Vec<FindingEntry>,
    pub connections: Vec<Connection>,
}

/// Counts over all files.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Capture {
    pub frames: u64,
    /// RDMA packets among them.
    pub packets: u64,
    /// Packets of RC and XRC.
    pub reliable: u64,
    /// Packets of UC and UD, and of management.
    pub unreliable: u64,
    /// Congestion notification packets.
    pub cnps: u64,
    /// RDMA packets that could not be parsed.
    pub unparsed: u64,
    /// Packets that a connection with several links carried again; they count nowhere else.
    pub copies: u64,
    /// Hellos, acknowledgements and other datagrams of such connections that carry no packet of a QP.
    pub link_datagrams: u64,
    /// Packets that running processes reported and that were not read in time; 0 for files.
    pub missed: u64,
    /// Bytes of all frames on the wire.
    pub bytes: u64,
    /// Time of the first frame, ns since 1970.
    pub start: u64,
    pub duration_ns: u64,
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct FindingEntry {
    /// Such as `damming`; the kinds are stable.
    pub kind: &'static str,
    /// The kind in words.
    pub title: &'static str,
    /// `id` of its connection, of the first if there are several.
    pub connection: usize,
    /// All of its connections.
    pub connections: Vec<usize>,
    /// The QP that sends the requests, and the QP that they go to.
    pub requester: Peer,
    pub responder: Peer,
    /// Numbers of frames that show it, as Wireshark counts them; a part of them if there are many.
    pub frames: Vec<u64>,
    /// For each of these the index of its file.
    pub frame_files: Vec<u16>,
    /// Time of the first and of the last evidence, ns since 1970.
    pub from: u64,
    pub to: u64,
    /// How often it happened.
    pub count: u64,
    /// Time in which requests waited.
    pub cost_ns: u64,
    /// Packets and bytes of payload that crossed the wire for nothing.
    pub cost_packets: u64,
    pub cost_bytes: u64,
    /// 0 to 1.
    pub confidence: f64,
    /// What happened.
    pub text: String,
    pub advice: Vec<Advice>,
    /// Packets around the most expensive occurrence.
    pub ladder: Vec<LadderStep>,
}

/// An end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    pub address: String,
    /// `None`: no packet to it was captured.
    pub qp: Option<u32>,
}

/// A connection: one or two directions of requests.
#[derive(Clone, Debug, Serialize)]
pub struct Connection {
    /// From 1.
    pub id: usize,
    /// The end that sent the first packet, and the other.
    pub ends: [Peer; 2],
    /// How both directions were found to belong together: `setup`, `psn`, `likely`, or `one-sided`.
    pub pairing: &'static str,
    /// Requests of the first end, and of the second.
    pub halves: Vec<Half>,
}

/// The requests of one end, and their responses.
#[derive(Clone, Debug, Serialize)]
pub struct Half {
    /// Index in the connection's `ends`.
    pub requester: usize,
    pub packets: u64,
    pub messages: u64,
    /// Request packets.
    pub requests: u64,
    /// Those that were repeated, and their share.
    pub repeats: u64,
    pub repeat_share: f64,
    /// Bytes that the requests carried or asked for, counted once.
    pub bytes: u64,
    pub duration_ns: u64,
    pub bytes_per_second: f64,
    pub acks: u64,
    pub rnr_naks: u64,
    pub sequence_naks: u64,
    pub congestion_marks: u64,
    pub bad_icrcs: u64,
    /// The most open request packets.
    pub most_outstanding: u32,
    /// From the first transmission of a message to its completion; `null` if none completed.
    pub latency_p50_ns: Option<u64>,
    pub latency_p90_ns: Option<u64>,
    pub latency_p99_ns: Option<u64>,
    pub latency_max_ns: Option<u64>,
    /// Start of the timeline, ns since 1970, and the length of its intervals.
    pub timeline_start: u64,
    pub timeline_interval_ns: u64,
    pub timeline: Vec<Interval>,
}

/// An interval of a timeline.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    pub bytes: u64,
    pub packets: u32,
    pub repeats: u32,
    pub outstanding: u32,
}

/// The version of the schema.
const SCHEMA: u32 = 1;

impl Document {
    /// The document of a report on files with these names.
    pub fn new(report: &Report<'_>, files: &[String]) -> Document {
        let flows = report.flows;
        let mut connections: Vec<Connection> = Vec::new();
        let mut ids: HashMap<FlowId, usize> = HashMap::new();
        for (at, flow) in flows.iter().enumerate() {
            let id = FlowId(at as u32);
            if flow.partner.is_some_and(|partner| partner < id) {
                continue;
            }
            let number = connections.len() + 1;
            ids.insert(id, number);
            ids.extend(flow.partner.map(|partner| (partner, number)));
            connections.push(connection(number, id, flows));
        }
        let findings = report.findings.iter().map(|finding| entry(finding, flows, &ids)).collect();
        Document { schema: SCHEMA, files: files.to_vec(), capture: capture(&report.totals), findings, connections }
    }

    /// Its JSON, in one line.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a document has no maps with other keys than strings")
    }
}

fn capture(totals: &Totals) -> Capture {
    Capture {
        frames: totals.frames,
        packets: totals.packets,
        reliable: totals.reliable,
        unreliable: totals.unreliable,
        cnps: totals.cnps,
        unparsed: totals.unparsed,
        copies: totals.copies,
        link_datagrams: totals.link_datagrams,
        missed: totals.missed,
        bytes: totals.bytes,
        start: totals.first,
        duration_ns: totals.last.saturating_sub(totals.first),
    }
}

/// Sender and receiver of a flow's requests.
fn peers(id: FlowId, flows: &[Flow]) -> [Peer; 2] {
    let flow = &flows[id.0 as usize];
    let own = flow.partner.map(|partner| flows[partner.0 as usize].key.qpn);
    [
        Peer { address: flow.key.from.to_string(), qp: own },
        Peer { address: flow.key.to.to_string(), qp: Some(flow.key.qpn) },
    ]
}

fn connection(number: usize, id: FlowId, flows: &[Flow]) -> Connection {
    let flow = &flows[id.0 as usize];
    let both = [Some(id), flow.partner].into_iter().flatten();
    let halves = both.enumerate().filter_map(|(requester, id)| half(requester, &flows[id.0 as usize])).collect();
    let pairing = match flow.pairing {
        Pairing::None => "one-sided",
        Pairing::Setup => "setup",
        Pairing::Psn => "psn",
        Pairing::Likely => "likely",
    };
    Connection { id: number, ends: peers(id, flows), pairing, halves }
}

/// `None` if no packet of it was seen.
fn half(requester: usize, flow: &Flow) -> Option<Half> {
    let stats = &flow.record.stats;
    if stats.packets == 0 {
        return None;
    }
    let duration_ns = stats.last.saturating_sub(stats.first);
    let (timeline_start, timeline_interval_ns, intervals) = stats.timeline.parts();
    let interval = |interval: &crate::flow::Interval| Interval {
        bytes: interval.bytes,
        packets: interval.packets,
        repeats: interval.repeats,
        outstanding: interval.outstanding,
    };
    Some(Half {
        requester,
        packets: stats.packets,
        messages: stats.messages,
        requests: stats.requests,
        repeats: stats.repeats,
        repeat_share: stats.repeats as f64 / stats.requests.max(1) as f64,
        bytes: stats.goodput,
        duration_ns,
        bytes_per_second: if duration_ns > 0 { stats.goodput as f64 * 1e9 / duration_ns as f64 } else { 0.0 },
        acks: stats.acks,
        rnr_naks: stats.rnr_naks,
        sequence_naks: stats.sequence_naks,
        congestion_marks: stats.congested,
        bad_icrcs: stats.bad_icrc,
        most_outstanding: stats.most_outstanding,
        latency_p50_ns: stats.latency_at(0.5),
        latency_p90_ns: stats.latency_at(0.9),
        latency_p99_ns: stats.latency_at(0.99),
        latency_max_ns: stats.latency_at(1.0),
        timeline_start,
        timeline_interval_ns,
        timeline: intervals.iter().map(interval).collect(),
    })
}

fn entry(finding: &Finding, flows: &[Flow], ids: &HashMap<FlowId, usize>) -> FindingEntry {
    let mut connections: Vec<usize> = finding.flows.iter().filter_map(|flow| ids.get(flow)).copied().collect();
    connections.dedup();
    let [requester, responder] = peers(finding.flows[0], flows);
    let clips = finding.flows.iter().filter_map(|flow| flows[flow.0 as usize].record.clips.of(&finding.frames));
    let clip = clips.max_by_key(|clip| clip.waited);
    FindingEntry {
        kind: finding.kind.id(),
        title: finding.kind.title(),
        connection: connections[0],
        connections,
        requester,
        responder,
        frames: finding.frames.iter().map(|frame| frame.number()).collect(),
        frame_files: finding.frames.iter().map(|frame| frame.file()).collect(),
        from: finding.from,
        to: finding.to,
        count: finding.count,
        cost_ns: finding.cost.time,
        cost_packets: finding.cost.packets,
        cost_bytes: finding.cost.bytes,
        confidence: (finding.confidence * 1000.0).round() / 1000.0,
        text: finding.text.clone(),
        advice: finding.advice.clone(),
        ladder: clip.map(ladder::steps).unwrap_or_default(),
    }
}
