//! Packets that arrive at a host with a bus: their payload is written before they have an effect.

use super::Simulation;
use crate::ids::HostId;
use crate::machine::BusCounts;
use crate::memory::Region;
use crate::packet::PacketKey;
use crate::queue::Event;

/// Hosts of which the profile has a [`weir_transport::HostModel`]. These calls have no effect on other hosts.
impl Simulation {
    /// The adapter of a host raises an event: the application found that a completion went to a queue that was armed.
    pub fn raise_event(&mut self, host: HostId) {
        let now = self.now;
        if let Some(machine) = &mut self.host_mut(host).adapter.get_mut().machine {
            machine.raise_event(now);
        }
    }

    /// A region is on another NUMA node than the adapter, or on the adapter's, as it is at first.
    pub fn set_remote(&mut self, region: &Region, remote: bool) {
        if let Some(machine) = &mut self.host_mut(region.host).adapter.get_mut().machine {
            machine.set_remote(region.key, remote);
        }
    }

    /// What a host's adapter has moved over the bus so far; zeros if the host has no bus.
    pub fn bus(&self, host: HostId) -> BusCounts {
        let adapter = self.hosts[host.0 as usize].adapter.borrow();
        adapter.machine.as_ref().map_or_else(BusCounts::default, |machine| machine.counts)
    }

    /// A packet arrives at its host. If it has a bus, the packet waits for the packets before it and for the bus.
    #[inline]
    pub(super) fn reaches_host(&mut self, host: HostId, key: PacketKey) {
        if self.hosts[host.0 as usize].adapter.get_mut().machine.is_some() {
            self.take_in(host, key);
        } else {
            self.deliver(key);
        }
    }

    #[inline(never)]
    fn take_in(&mut self, host: HostId, key: PacketKey) {
        let (now, payload) = (self.now, self.packets[key].payload.len());
        let machine = self.host_mut(host).adapter.get_mut().machine.as_mut();
        if let Some(at) = machine.and_then(|machine| machine.take_in(now, key, payload)) {
            self.queue.put(at, Event::Written(host));
        }
    }

    /// The payload of the first packet that waits for a host's bus is written.
    pub(super) fn written(&mut self, host: HostId) {
        let now = self.now;
        let machine = self.host_mut(host).adapter.get_mut().machine.as_mut();
        if let Some(key) = machine.and_then(|machine| machine.taken_in()) {
            self.deliver(key);
        }
        let machine = self.host_mut(host).adapter.get_mut().machine.as_mut();
        if let Some(at) = machine.and_then(|machine| machine.next_in(now)) {
            self.queue.put(at, Event::Written(host));
        }
    }
}
