//! What two processes do together, and what comes of it.

use super::usage::Usage;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The tests of thesis 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Test {
    /// The client WRITEs back to back
    OneWay,
    /// Both sides WRITE back to back
    TwoWay,
    /// One WRITE at a time, with a notification, there and back
    PingPong,
}

impl Test {
    pub const ALL: [Test; 3] = [Test::OneWay, Test::TwoWay, Test::PingPong];

    /// Its name as shown.
    pub fn name(self) -> &'static str {
        match self {
            Test::OneWay => "one-way",
            Test::TwoWay => "two-way",
            Test::PingPong => "ping-pong",
        }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Job {
    pub test: Test,
    /// Bytes of an operation.
    pub size: usize,
    pub seconds: f64,
    /// The receiver of a one-way test notes what comes, over time.
    pub sampled: bool,
}

/// What a side has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Operations that this side has issued, and the peer has performed.
    pub operations: u64,
    /// Those that have failed.
    pub failed: u64,
    /// How the first of them has.
    pub failure: Option<String>,
    /// Until the last of them was complete.
    pub seconds: f64,
    /// One-way times of a ping-pong, seconds: median and 99 %.
    pub latency: Option<[f64; 2]>,
    /// Time of the call that begins an operation of a stream, seconds: median and 99 %.
    pub call: Option<[f64; 2]>,
    /// The longest time of a stream in which no operation was complete, seconds.
    pub pause: Option<f64>,
    /// Of a job that is sampled.
    pub samples: Vec<Sample>,
    pub usage: Usage,
}

/// What has come up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: f64,
    /// Bytes of operations.
    pub bytes: u64,
    /// Bytes that each link has brought, all headers included.
    pub link_bytes: Vec<u64>,
}

/// What both have done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    pub job: Job,
    pub client: Part,
    pub server: Part,
}
