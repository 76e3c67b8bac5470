//! The papers' micro-benchmark (thesis figure 5.1, appendix B): READs, WRITEs or SENDs at intervals over some QPs.
//!
//! Buffers begin at page boundaries; operation i is at offset size·i, on QP i mod num_qps. MTU 4096, a CQ of 131072,
//! 8192 work requests for each QP, rnr_retry 7.

mod guards;
pub mod ladder;
pub mod live;
mod paging;
mod parameters;
pub mod sim;
pub mod time;

pub use paging::{Paging, PagingCosts};
pub use parameters::MAX_BYTES;
pub use weir_guard::Guards;

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Read,
    Write,
    Send,
}

/// The sides with ODP memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides {
    pub client: bool,
    pub server: bool,
}

/// A workaround of the application against the flaws (thesis 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workaround {
    /// At this interval, an additional operation is posted to each QP with outstanding operations: a byte, with the
    /// kind and the address of the QP's first operation. (A WRITE of no bytes would end QPs that do not allow WRITEs.)
    Dummy {
        #[serde(with = "time")]
        every: Duration,
    },
    /// Operations that have not completed after this time are issued again, repeatedly, on a separate QP: on their own
    /// QP they could not complete before the original ones. The first completion counts.
    Again {
        #[serde(with = "time")]
        after: Duration,
    },
}

/// A run's parameters. In JSON, times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Micro {
    pub operation: Operation,
    /// The kind of the operations after the first, if it differs.
    pub second: Option<Operation>,
    /// Bytes of each operation.
    pub size: u32,
    /// Operations over all QPs.
    pub num_ops: u32,
    /// Connected QPs; operation i goes to QP i mod `num_qps`.
    pub num_qps: u32,
    /// Time between two posts.
    #[serde(with = "time")]
    pub interval: Duration,
    /// Each operation is posted after the completion of the operation before it, and the interval.
    pub in_turn: bool,
    pub odp: Sides,
    /// All pages but those of the first operation are touched before the run.
    pub touched: bool,
    /// All pages are present before the run. Simulated only.
    pub present: bool,
    /// After the run, the pages of ODP memory are released, this many at a time; 0: none. Live only: the outcome then
    /// has the counters of paging.
    pub invalidate: u32,
    /// Codes and counts of the QP attributes.
    pub rnr_timer: u8,
    pub ack_timeout: u8,
    pub retry_cnt: u8,
    pub max_rd_atomic: u8,
    pub workaround: Option<Workaround>,
    /// Guards of both sides, as `weir run --guard` has them.
    #[serde(with = "guards")]
    pub guards: Guards,
    /// Requests go to a QP that does not exist.
    pub wrong_peer: bool,
}

/// One READ of 100 bytes in pinned memory, with the attributes of the papers' experiments: RNR 1.28 ms, C_ACK 1.
impl Default for Micro {
    fn default() -> Self {
        Micro {
            operation: Operation::Read,
            second: None,
            size: 100,
            num_ops: 1,
            num_qps: 1,
            interval: Duration::ZERO,
            in_turn: false,
            odp: Sides::default(),
            touched: false,
            present: false,
            invalidate: 0,
            rnr_timer: 14,
            ack_timeout: 1,
            retry_cnt: 7,
            max_rd_atomic: 4,
            workaround: None,
            guards: Guards::default(),
            wrong_peer: false,
        }
    }
}

/// The outcome of a run. In JSON, times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// From the first post to the last completion.
    #[serde(with = "time")]
    pub time: Duration,
    /// Completion time of each operation since the first post; `None` if it failed or did not complete.
    #[serde(with = "time::each")]
    pub completions: Vec<Option<Duration>>,
    /// Status of the first completion with an error.
    pub status: Option<String>,
    pub packets: Packets,
    /// ACK timeouts.
    pub timeouts: u64,
    /// The packet ladder.
    pub steps: Vec<Step>,
    /// How late the machine woke; `None` in virtual time.
    pub wakeup: Option<Wakeup>,
    /// User and system time of both sides since the first post; `None` in virtual time.
    #[serde(with = "time::option")]
    pub cpu: Option<Duration>,
    /// What both adapters counted of paging, if the run invalidates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paging: Option<PagingCosts>,
}

/// Packets that crossed the wire, or were lost on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packets {
    /// Packets of the client, including retransmitted and lost ones.
    pub requests: u64,
    /// Packets of the server: READ responses, ACKs and NAKs.
    pub responses: u64,
    /// Requests that are retransmissions.
    pub repeated: u64,
    /// Responses that are RNR NAKs.
    pub rnr_naks: u64,
    /// Responses that are sequence NAKs.
    pub sequence_naks: u64,
    /// Requests and responses that were lost.
    pub lost: u64,
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When it was sent, since the first post.
    #[serde(with = "time")]
    pub time: Duration,
    pub from_client: bool,
    /// The papers' name for it, such as "RDMA Read Request".
    pub what: String,
    /// The operation that it belongs to, from 0.
    pub operation: Option<u32>,
    /// The packet did not arrive.
    pub lost: bool,
}

/// How much later than requested usleep(3) returned, with the interval of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wakeup {
    /// Median over all sleeps.
    #[serde(with = "time")]
    pub median: Duration,
    /// The largest.
    #[serde(with = "time")]
    pub most: Duration,
}

/// Runs the micro-benchmark: the simulator, or two processes on this machine.
pub trait Runner {
    /// Runs it once. With the simulator, the same seed gives the same outcome.
    fn run(&mut self, micro: &Micro, profile: &str, seed: u64) -> anyhow::Result<Outcome>;
}
