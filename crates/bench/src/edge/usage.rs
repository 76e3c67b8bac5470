//! What a process has used: CPU time, packets, bytes on its links.

use anyhow::Result;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::{Deserialize, Serialize};
use weir_edge::Node;
use weir_stage::counters::sent_by_links;

/// Counted since the process began, or during a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time, seconds.
    pub cpu: f64,
    /// Packets with bytes of operations, those included that go again.
    pub packets_sent: u64,
    pub acknowledgements_sent: u64,
    pub packets_received: u64,
    /// System calls.
    pub sends: u64,
    pub receives: u64,
    pub empty_receives: u64,
    pub sleeps: u64,
    /// Bytes that each interface has sent, all headers included: `eth0`, `eth1` and so on.
    pub link_bytes: Vec<u64>,
    pub parts: Parts,
}

/// CPU time as thesis 3.1 divides it, seconds; 0 if a node does not measure.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Parts {
    pub poll: f64,
    pub send_copy: f64,
    pub receive_copy: f64,
    pub protocol: f64,
    pub system_calls: f64,
}

impl Parts {
    /// With the names that are shown.
    pub fn named(&self) -> [(&'static str, f64); 5] {
        [
            ("poll or events", self.poll),
            ("send copies", self.send_copy),
            ("receive copies", self.receive_copy),
            ("protocol", self.protocol),
            ("system calls", self.system_calls),
        ]
    }
}

impl Usage {
    /// Of this process up to now.
    pub fn now(node: &Node) -> Result<Usage> {
        let (counters, times, usage) = (node.counters()?, node.times()?, getrusage(UsageWho::RUSAGE_SELF)?);
        let cpu = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        let parts = Parts {
            poll: times.poll.as_secs_f64(),
            send_copy: times.send_copy.as_secs_f64(),
            receive_copy: times.receive_copy.as_secs_f64(),
            protocol: times.packet.as_secs_f64(),
            system_calls: times.device.as_secs_f64(),
        };
        Ok(Usage {
            cpu: cpu as f64 * 1e-6,
            packets_sent: counters.packets_sent,
            acknowledgements_sent: counters.acknowledgements_sent,
            packets_received: counters.packets_received,
            sends: counters.sends,
            receives: counters.receives,
            empty_receives: counters.empty_receives,
            sleeps: counters.sleeps,
            link_bytes: sent_by_links(&std::fs::read_to_string("/proc/thread-self/net/dev")?)?,
            parts,
        })
    }

    /// What was used since `before`.
    pub fn since(&self, before: &Usage) -> Usage {
        let (parts, old) = (self.parts, before.parts);
        Usage {
            cpu: self.cpu - before.cpu,
            packets_sent: self.packets_sent - before.packets_sent,
            acknowledgements_sent: self.acknowledgements_sent - before.acknowledgements_sent,
            packets_received: self.packets_received - before.packets_received,
            sends: self.sends - before.sends,
            receives: self.receives - before.receives,
            empty_receives: self.empty_receives - before.empty_receives,
            sleeps: self.sleeps - before.sleeps,
            link_bytes: self.link_bytes.iter().zip(&before.link_bytes).map(|(after, before)| after - before).collect(),
            parts: Parts {
                poll: parts.poll - old.poll,
                send_copy: parts.send_copy - old.send_copy,
                receive_copy: parts.receive_copy - old.receive_copy,
                protocol: parts.protocol - old.protocol,
                system_calls: parts.system_calls - old.system_calls,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_uses_the_difference() {
        let of = |cpu: f64, packets_sent: u64, link: u64, poll: f64| Usage {
            cpu,
            packets_sent,
            link_bytes: vec![link, 5],
            parts: Parts { poll, ..Parts::default() },
            ..Usage::default()
        };
        let used = of(3.0, 9, 7, 1.5).since(&of(1.0, 4, 5, 1.0));
        assert_eq!((used.cpu, used.packets_sent, used.link_bytes, used.parts.poll), (2.0, 5, vec![2, 0], 0.5));
    }
}
