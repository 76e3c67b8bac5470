//! What two processes do together, and what comes of it.

use super::usage::Usage;
use serde::{Deserialize, Serialize};

/// The tests of thesis 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// The client WRITEs back to back.
    OneWay,
    /// Both do.
    TwoWay,
    /// One WRITE at a time, with a notification, there and back.
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
}

/// What a side has done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    /// Operations that this side has issued, and the peer has performed.
    pub operations: u64,
    /// Until the last of them was complete.
    pub seconds: f64,
    /// One-way times of a ping-pong, seconds: median and 99 %.
    pub latency: Option<[f64; 2]>,
    pub usage: Usage,
}

/// What both have done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    pub job: Job,
    pub client: Part,
    pub server: Part,
}

/// The environment of a side.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Calls take packets, and not a thread of the node.
    pub polling: bool,
    /// Measure where CPU time goes.
    pub measure: bool,
}
