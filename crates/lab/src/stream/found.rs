//! The result of a job.

use serde::{Deserialize, Serialize};

/// A line of `weir-stream --json`, and what the simulator finds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Messages that were measured, and their bytes of payload.
    pub messages: u64,
    pub bytes: u64,
    /// From the first post to the last acknowledgement, seconds.
    pub seconds: f64,
    /// Payload per time, Gbit/s.
    pub gbits: f64,
    /// Acknowledgements that the sender's program received.
    pub acks: u64,
    /// The signalling period, and the depth of the send queue as the adapter made it.
    pub signal: u32,
    pub depth: u32,
    pub sender: SideFound,
    pub receiver: SideFound,
    /// Bytes that were compared and that differed.
    pub checked: u64,
    pub wrong: u64,
}

/// What a side has used during the measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideFound {
    /// CPU time of all threads, seconds.
    pub user: f64,
    pub system: f64,
    /// How often the program slept for completions.
    pub sleeps: u64,
}

impl Found {
    /// CPU time of both sides, seconds.
    pub fn cpu(&self) -> f64 {
        self.sender.cpu() + self.receiver.cpu()
    }
}

impl SideFound {
    /// User and system time, seconds.
    pub fn cpu(&self) -> f64 {
        self.user + self.system
    }
}
