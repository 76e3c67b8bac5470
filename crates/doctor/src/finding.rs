//! Findings: what happened, where, when, what it cost, and what to do.

use serde::Serialize;

/// What a stall looks like. Names in JSON are lower case with underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A request was lost while the peer repeated a READ after a page fault.
    Damming,
    /// Requests stayed open although the pages of their data had come.
    Flood,
    /// Requests waited for an ACK timeout, or failed after `retry_cnt` of them.
    Timeout,
    /// Requests waited because the peer was not ready to receive, or failed after `rnr_retry` waits.
    RnrWait,
    /// Requests waited for a page of ODP memory.
    PageFault,
    /// A library other than the program registered ODP memory.
    OnDemand,
}

impl Kind {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Damming => "damming",
            Kind::Flood => "flood",
            Kind::Timeout => "timeout",
            Kind::RnrWait => "rnr_wait",
            Kind::PageFault => "page_fault",
            Kind::OnDemand => "on_demand",
        }
    }
}

/// A finding. Times are nanoseconds since the file of the process was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub kind: Kind,
    pub device: String,
    /// The QP's number; `null` if several QPs or none are concerned.
    pub qp: Option<u32>,
    /// Number of QPs.
    pub qps: usize,
    pub from: u64,
    pub to: u64,
    /// How much longer the requests of a QP took than usual, together. Requests of several QPs wait at the same time,
    /// so for these it is the time during which any of them waited.
    pub cost_ns: u64,
    pub requests: usize,
    /// From 0 to 1: how well what was seen agrees with this explanation, and with no other.
    pub confidence: f64,
    /// What was seen.
    pub what: String,
    pub advice: Vec<Advice>,
}

/// A setting to change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// What has the setting: verbs, UCX, libfabric, Open MPI, NCCL.
    pub of: &'static str,
    /// Name and value.
    pub setting: String,
    /// What it achieves.
    pub effect: &'static str,
}
