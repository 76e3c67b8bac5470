//! A job: the parameters of a stream of messages.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A stream of messages, as `weir-stream` and the simulator run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Bytes of a message.
    pub size: u64,
    /// Messages that the sender may have outstanding (B): posted, and not yet acknowledged by the receiver's program.
    pub outstanding: u32,
    /// Which send work requests are signalled (S).
    pub signal: Signal,
    /// Depth of the send queue; 0: twice the outstanding messages.
    pub depth: u32,
    /// Offset of each message in its page-aligned area, on both sides: 0 ..= 4095.
    pub offset: u32,
    pub areas: Areas,
    /// The sides that poll for completions; the others sleep and are woken.
    pub polls: Sides,
    /// Where the programs run.
    pub sender: Place,
    pub receiver: Place,
    /// Messages are sent for this time before the measurement.
    pub warm_up: Duration,
    pub amount: Amount,
    /// Every byte is compared.
    pub verify: bool,
}

/// Which send work requests are signalled: every n-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signal {
    Every(u32),
    /// n is half the number of outstanding messages, 1 at least.
    Half,
    /// n follows from F, equation 2, and from the depth of the send queue.
    Equation,
}

/// The memory of outstanding messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Areas {
    /// Each has an area of its own.
    Separate,
    /// All have the same.
    One,
}

/// None, one or both of the sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sides {
    pub sender: bool,
    pub receiver: bool,
}

/// Where a side's program runs and has its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// CPUs as a list, "0-3,8"; `None`: as the kernel chooses.
    pub cpus: Option<String>,
    /// NUMA node of CPUs and memory; `None`: as the kernel chooses.
    pub node: Option<u32>,
}

/// How long a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Amount {
    Time(Duration),
    /// Bytes of payload, rounded up to whole messages.
    Bytes(u64),
}

impl Sides {
    pub const NONE: Sides = Sides { sender: false, receiver: false };
    pub const BOTH: Sides = Sides { sender: true, receiver: true };

    /// The value of `--poll`.
    pub fn word(self) -> &'static str {
        match (self.sender, self.receiver) {
            (false, false) => "none",
            (true, false) => "sender",
            (false, true) => "receiver",
            (true, true) => "both",
        }
    }
}

impl Signal {
    /// The value of `--signal`.
    pub fn word(self) -> String {
        match self {
            Signal::Every(n) => n.to_string(),
            Signal::Half => "half".into(),
            Signal::Equation => "equation".into(),
        }
    }
}

impl Default for Job {
    /// As in most tests of F: 1 MiB, aligned, separate areas, wait-wakeup, half of the outstanding messages signalled
    /// together.
    fn default() -> Job {
        Job {
            size: 1 << 20,
            outstanding: 4,
            signal: Signal::Half,
            depth: 0,
            offset: 0,
            areas: Areas::Separate,
            polls: Sides::NONE,
            sender: Place::default(),
            receiver: Place::default(),
            warm_up: Duration::from_millis(50),
            amount: Amount::Time(Duration::from_millis(200)),
            verify: false,
        }
    }
}

impl Job {
    /// The options of `weir-stream`'s client for this job.
    pub fn arguments(&self) -> Vec<String> {
        let mut words = vec![];
        let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        option("size", self.size.to_string());
        option("outstanding", self.outstanding.to_string());
        option("signal", self.signal.word());
        if self.depth > 0 {
            option("depth", self.depth.to_string());
        }
        option("offset", self.offset.to_string());
        option("areas", if self.areas == Areas::One { "one" } else { "separate" }.into());
        option("poll", self.polls.word().into());
        for (name, place) in [("sender", &self.sender), ("receiver", &self.receiver)] {
            if let Some(cpus) = &place.cpus {
                option(&format!("{name}-cpus"), cpus.clone());
            }
            if let Some(node) = place.node {
                option(&format!("{name}-node"), node.to_string());
            }
        }
        option("warm-up", format!("{}us", self.warm_up.as_micros()));
        match self.amount {
            Amount::Time(time) => option("time", format!("{}us", time.as_micros())),
            Amount::Bytes(bytes) => option("bytes", bytes.to_string()),
        }
        words.extend(self.verify.then(|| "--verify".to_owned()));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_becomes_a_command_line() {
        let job = Job {
            signal: Signal::Every(3),
            polls: Sides { sender: false, receiver: true },
            receiver: Place { cpus: Some("1".into()), node: Some(0) },
            amount: Amount::Bytes(1 << 30),
            verify: true,
            ..Job::default()
        };
        assert_eq!(
            job.arguments().join(" "),
            "--size 1048576 --outstanding 4 --signal 3 --offset 0 --areas separate --poll receiver --receiver-cpus 1 \
             --receiver-node 0 --warm-up 50000us --bytes 1073741824 --verify"
        );
    }
}
