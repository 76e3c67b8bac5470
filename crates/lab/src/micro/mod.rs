//! The papers' micro-benchmark (thesis figure 5.1, appendix B): READs, WRITEs or SENDs at intervals over some QPs.
//!
//! Buffers begin at page boundaries; operation i is at offset size·i, on QP i mod num_qps. MTU 4096, a CQ of 131072,
//! 8192 work requests for each QP, rnr_retry 7.

pub mod ladder;
pub mod live;
mod parameters;
pub mod sim;

pub use parameters::{MAX_BYTES, time};

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Read,
    Write,
    Send,
}

/// Where memory is on demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides {
    pub client: bool,
    pub server: bool,
}

/// What an application does against the flaws (thesis 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Workaround {
    /// At this interval, each QP with something outstanding gets one operation more: a byte of the kind and at the place
    /// of its first operation. (A WRITE of no bytes would kill QPs that do not allow WRITEs.)
    Dummy {
        #[serde(with = "time")]
        every: Duration,
    },
    /// What has not completed after this time is issued again, each time it has passed, on a QP set aside for that:
    /// behind the first on its own QP it could not complete before it. The first to complete counts.
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
    /// The operations after the first, if they are others.
    pub second: Option<Operation>,
    /// Bytes of each operation.
    pub size: u32,
    pub num_ops: u32,
    pub num_qps: u32,
    /// Between two posts.
    #[serde(with = "time")]
    pub interval: Duration,
    pub odp: Sides,
    /// All pages but the first operation's are there already.
    pub touched: bool,
    /// Codes and counts of the QPs' attributes.
    pub rnr_timer: u8,
    pub ack_timeout: u8,
    pub retry_cnt: u8,
    pub max_rd_atomic: u8,
    pub workaround: Option<Workaround>,
    /// Requests go where nobody answers.
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
            odp: Sides::default(),
            touched: false,
            rnr_timer: 14,
            ack_timeout: 1,
            retry_cnt: 7,
            max_rd_atomic: 4,
            workaround: None,
            wrong_peer: false,
        }
    }
}

/// What became of a run. In JSON, times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// From the first post to the last completion.
    #[serde(with = "time")]
    pub time: Duration,
    /// Of each operation, since the first post.
    #[serde(with = "time::each")]
    pub completions: Vec<Option<Duration>>,
    /// Of the first completion with an error.
    pub status: Option<String>,
    pub packets: Packets,
    /// ACK timeouts.
    pub timeouts: u64,
    /// The packet ladder.
    pub steps: Vec<Step>,
    /// How exactly the machine slept; not in virtual time.
    pub wakeup: Option<Wakeup>,
    /// User and system time of both sides from the first post on; not in virtual time.
    #[serde(with = "time::option")]
    pub cpu: Option<Duration>,
}

/// Packets that crossed the wire, or were lost on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Packets {
    /// From the client, repeated and lost ones included.
    pub requests: u64,
    /// From the server: READ responses, ACKs and NAKs.
    pub responses: u64,
    /// Of the requests, those that had been sent before.
    pub repeated: u64,
    /// Of the responses.
    pub rnr_naks: u64,
    /// Of the responses: a request is missing.
    pub sequence_naks: u64,
    /// Of both, those that nobody got.
    pub lost: u64,
}

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When it was sent, since the first post.
    #[serde(with = "time")]
    pub time: Duration,
    pub from_client: bool,
    /// As the papers call it: "RDMA Read Request".
    pub what: String,
    /// The operation that it belongs to, from 0.
    pub operation: Option<u32>,
    /// Nobody got it.
    pub lost: bool,
}

/// How much later than asked usleep(3) came back, with the interval of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wakeup {
    #[serde(with = "time")]
    pub median: Duration,
    #[serde(with = "time")]
    pub most: Duration,
}

/// Runs the micro-benchmark: the simulator, or two processes on this machine.
pub trait Runner {
    /// One run. The same seed may give the same outcome.
    fn run(&mut self, micro: &Micro, profile: &str, seed: u64) -> anyhow::Result<Outcome>;
}
