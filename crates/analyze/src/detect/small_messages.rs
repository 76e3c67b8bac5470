//! An ACK for each of many small messages.
//!
//! Evidence: a flow of [`MESSAGES`] messages or more with at most [`SMALL`] bytes on average, several of them open at a
//! time, and nine ACKs or more for ten messages. A ping-pong is not meant: its messages wait for each other.

use super::common::paired;
use super::end::End;
use crate::advice;
use crate::finding::{Cost, Finding, FindingKind};
use crate::flow::FlowId;

const MESSAGES: u64 = 1000;
const SMALL: u64 = 256;
const ACKS: f64 = 0.9;
/// Open at a time.
const OUTSTANDING: u32 = 8;

pub fn findings(end: &End<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, flow) in end.flows.iter().enumerate() {
        let stats = &flow.record.stats;
        let small = stats.messages >= MESSAGES && stats.goodput <= SMALL * stats.messages;
        if !small || stats.most_outstanding < OUTSTANDING || (stats.acks as f64) < ACKS * stats.messages as f64 {
            continue;
        }
        let id = FlowId(at as u32);
        findings.push(Finding {
            kind: FindingKind::SmallMessages,
            flows: vec![id],
            frames: Vec::new(),
            from: stats.first,
            to: stats.last,
            count: stats.messages,
            cost: Cost { packets: stats.acks, ..Cost::default() },
            confidence: paired(end, id, 0.9),
            text: format!(
                "{} messages of {} bytes on average had {} ACKs: none of them covers several.",
                stats.messages,
                stats.goodput / stats.messages.max(1),
                stats.acks
            ),
            advice: advice::coalesce(),
        });
    }
    findings
}
