//! What `weir-odp` prints in its mode `loggp`.

use super::model::Scenario;
use serde::Deserialize;

/// A line of its output. Times are in microseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "what", rename_all = "lowercase")]
pub enum Line {
    /// The parameters of a round, beside messages of `bytes`.
    Parameters {
        bytes: u64,
        #[serde(flatten)]
        costs: Costs,
    },
    /// An eager message: its copy, and the prefetch of a bounce buffer on demand.
    Eager { bytes: u64, copy: f64, prefetch: f64 },
    /// The sender's time of a message.
    Message { scenario: Scenario, bytes: u64, value: f64 },
    /// Page faults of one message of each size; -1 if the adapter does not count them.
    Faults { scenario: Scenario, sender: i64, receiver: i64 },
    /// The end: bytes that were compared, bytes of a control message, and the ACK timeout of the QPs.
    Verified { bytes: u64, control: u64, timeout: f64 },
}

/// What the parameters of a round come from.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Costs {
    /// A call of ibv_post_send.
    pub post: f64,
    /// Half of the round trip of a control message.
    pub half: f64,
    /// From a message to the next in a stream.
    pub gap: f64,
    /// From a byte to the next in a stream.
    pub byte: f64,
    /// Registration: pinned, of absent and of present pages; on demand.
    pub reg_absent: f64,
    pub reg_present: f64,
    pub reg_odp: f64,
    /// A call that prefetches: of pages that no processor has touched, of pages that the program has filled, and of pages
    /// that the adapter has.
    pub prefetch_absent: f64,
    pub prefetch_present: f64,
    pub prefetch_again: f64,
    /// The same, until the pages are present (IBV_ADVISE_MR_FLAG_FLUSH).
    pub flush_absent: f64,
    pub flush_present: f64,
    pub flush_again: f64,
    /// The first WRITE through new memory: all pinned, on demand at the sender, on demand at the receiver.
    pub write_pinned: f64,
    pub write_sender: f64,
    pub write_receiver: f64,
}

impl Costs {
    /// L: what half of a round trip has beside the post and the bytes of the message. It contains the receive.
    pub fn latency(&self, control: f64) -> f64 {
        self.half - self.post - control * self.byte
    }

    /// What page faults at the sender add to a WRITE.
    pub fn fault_sender(&self) -> f64 {
        self.write_sender - self.write_pinned
    }

    /// What page faults at the receiver add to a WRITE.
    pub fn fault_receiver(&self) -> f64 {
        self.write_receiver - self.write_pinned
    }

    /// The mean of the sender's registration and the receiver's, of filled and of untouched memory.
    pub fn reg_pinned(&self) -> f64 {
        (self.reg_absent + self.reg_present) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::program::parse;
    use super::*;

    #[test]
    fn every_kind_of_line_is_read() {
        let text = r#"{"what":"eager","bytes":64,"round":0,"copy":0.0024,"prefetch":9.8}
{"what":"parameters","bytes":65536,"round":0,"post":4.5,"half":6.5,"gap":0.75,"byte":0.0005,"reg_absent":60,"reg_present":20,"reg_odp":500,"prefetch_absent":50,"prefetch_present":30,"prefetch_again":3,"flush_absent":40,"flush_present":12,"flush_again":3,"write_pinned":100,"write_sender":110,"write_receiver":170}
{"what":"message","scenario":"no prefetch","bytes":65536,"round":0,"value":1007.25}
{"what":"faults","scenario":"prefetched again","sender":-1,"receiver":5}
{"what":"verified","bytes":233046016,"control":32,"timeout":1073741.8}"#;
        let lines: Vec<Line> = parse(text).unwrap();
        assert!(matches!(lines[0], Line::Eager { bytes: 64, prefetch: 9.8, .. }));
        let Line::Parameters { bytes: 65536, costs } = lines[1] else { panic!("{:?}", lines[1]) };
        assert_eq!((costs.fault_sender(), costs.fault_receiver(), costs.reg_pinned()), (10.0, 70.0, 40.0));
        assert_eq!(costs.latency(32.0), 6.5 - 4.5 - 32.0 * 0.0005);
        assert!(matches!(lines[2], Line::Message { scenario: Scenario::NoPrefetch, bytes: 65536, value: 1007.25 }));
        assert!(matches!(lines[3], Line::Faults { scenario: Scenario::PrefetchedAgain, sender: -1, receiver: 5 }));
        assert!(matches!(lines[4], Line::Verified { control: 32, .. }));
        assert!(parse::<Line>(r#"{"what":"message","scenario":"none","bytes":1,"value":1}"#).is_err());
    }
}
