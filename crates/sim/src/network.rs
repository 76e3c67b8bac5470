//! The network between hosts: switches, and the routes through them.

use crate::ids::{HostId, Node, SwitchId};
use crate::link::{Link, Pipe};
use std::collections::VecDeque;
use weir_transport::Instant;

/// A store-and-forward switch.
#[derive(Debug)]
struct Switch {
    /// Bytes that may wait before each of its outputs.
    buffer: u64,
    /// Packets that more bytes wait before are marked.
    mark_above: u64,
    /// Pipes that begin here.
    outputs: Vec<u32>,
    /// Outputs on shortest routes, by destination host.
    ways: Vec<Vec<u32>>,
    dropped: u64,
}

/// All links and switches.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub pipes: Vec<Pipe>,
    switches: Vec<Switch>,
    /// The pipe that each host sends into.
    ports: Vec<Option<u32>>,
    routed: bool,
}

impl Network {
    /// Adds a host without a link.
    pub fn add_host(&mut self) {
        self.ports.push(None);
        self.routed = false;
    }

    /// Adds a switch; at most `buffer` bytes wait before each of its outputs.
    pub fn add_switch(&mut self, buffer: u64) -> SwitchId {
        self.switches.push(Switch { buffer, mark_above: u64::MAX, outputs: Vec::new(), ways: Vec::new(), dropped: 0 });
        SwitchId(self.switches.len() as u32 - 1)
    }

    /// A switch marks packets before which more than `bytes` bytes wait.
    pub fn mark_above(&mut self, switch: SwitchId, bytes: u64) {
        self.switches[switch.0 as usize].mark_above = bytes;
    }

    /// Whether a switch marks a packet that enters this pipe now.
    #[inline]
    pub fn marks(&self, switch: SwitchId, pipe: u32, now: Instant) -> bool {
        let limit = self.switches[switch.0 as usize].mark_above;
        limit != u64::MAX && self.pipes[pipe as usize].waiting(now) > limit
    }

    /// # Panics
    /// If a host has a link already.
    pub fn connect(&mut self, a: Node, b: Node, link: Link) {
        for (from, to) in [(a, b), (b, a)] {
            let pipe = self.pipes.len() as u32;
            let buffer = match from {
                Node::Host(host) => {
                    let port = &mut self.ports[host.0 as usize];
                    assert!(port.is_none(), "{host:?} has a link already");
                    *port = Some(pipe);
                    u64::MAX
                }
                Node::Switch(switch) => {
                    let switch = &mut self.switches[switch.0 as usize];
                    switch.outputs.push(pipe);
                    switch.buffer
                }
            };
            self.pipes.push(Pipe::new(link, to, buffer));
        }
        self.routed = false;
    }

    /// The pipe that a host sends into.
    pub fn port(&self, host: HostId) -> Option<u32> {
        self.ports[host.0 as usize]
    }

    /// The pipe from a switch towards a host. Each flow uses a fixed one of several shortest routes. `None` without a
    /// route.
    pub fn way(&mut self, switch: SwitchId, to: HostId, flow: u64) -> Option<u32> {
        if !self.routed {
            self.find_ways();
        }
        let ways = &self.switches[switch.0 as usize].ways[to.0 as usize];
        match ways.len() {
            0 => None,
            1 => Some(ways[0]),
            n => Some(ways[(flow.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % n]),
        }
    }

    /// Counts a packet that met a full buffer.
    pub fn dropped(&mut self, switch: SwitchId) {
        self.switches[switch.0 as usize].dropped += 1;
    }

    /// Number of packets that met a full buffer of this switch.
    pub fn drops(&self, switch: SwitchId) -> u64 {
        self.switches[switch.0 as usize].dropped
    }

    /// Finds the shortest routes by a breadth-first search from each host.
    fn find_ways(&mut self) {
        let (count, hosts) = (self.switches.len(), self.ports.len());
        for switch in &mut self.switches {
            switch.ways = vec![Vec::new(); hosts];
        }
        for host in 0..hosts {
            let mut distance = vec![u32::MAX; count];
            let mut next = VecDeque::new();
            if let Some(port) = self.ports[host]
                && let Node::Switch(first) = self.pipes[port as usize].to
            {
                distance[first.0 as usize] = 0;
                next.push_back(first.0 as usize);
            }
            while let Some(at) = next.pop_front() {
                for &pipe in &self.switches[at].outputs {
                    if let Node::Switch(beyond) = self.pipes[pipe as usize].to
                        && distance[beyond.0 as usize] == u32::MAX
                    {
                        distance[beyond.0 as usize] = distance[at] + 1;
                        next.push_back(beyond.0 as usize);
                    }
                }
            }
            for at in 0..count {
                let nearer = |pipe: &u32| match self.pipes[*pipe as usize].to {
                    Node::Host(to) => to.0 as usize == host,
                    Node::Switch(to) => {
                        distance[at] != u32::MAX && distance[to.0 as usize].checked_add(1) == Some(distance[at])
                    }
                };
                let ways = self.switches[at].outputs.iter().copied().filter(nearer).collect();
                self.switches[at].ways[host] = ways;
            }
        }
        self.routed = true;
    }
}
