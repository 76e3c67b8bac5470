//! Raw packet QPs: they send Ethernet frames through a packet socket, and receive those that steering rules match.

use crate::Errno;
use crate::engine::Engine;
use crate::engine::ethernet_port::{EthernetEgress, EthernetPort};
use crate::engine::host::QpHost;
use crate::memory::window::User;
use crate::shared::state::AdapterState;
use crate::steering::{Destination, Entry, Headers, Rules};
use weir_link::Ethernet;
use weir_transport::{Instant, Limits, Progress, Side};

/// Frames taken in in one turn, so that departures are not starved.
const FRAMES: usize = 64;

impl Engine {
    /// Provides the packet socket, of which an adapter with raw QPs has one. EPERM without CAP_NET_RAW.
    pub fn open_ethernet(&mut self, adapter: &AdapterState) -> Result<(), Errno> {
        if self.ethernet.is_some() {
            return Ok(());
        }
        let socket = Ethernet::open(adapter.device.ifindex)?;
        adapter.add_sockets(&[socket.descriptor()]);
        self.ethernet = Some(Box::new(EthernetPort::new(socket, adapter)));
        Ok(())
    }

    /// Adds a steering rule. ENOMEM beyond the limit; otherwise the errors of the kernel for the filter and for what the
    /// interface must receive.
    pub fn add_rule(&mut self, adapter: &AdapterState, entry: Entry) -> Result<(), Errno> {
        let port = self.ethernet.as_mut().ok_or(Errno(libc::EINVAL))?;
        let (id, membership) = (entry.id, entry.rule.membership());
        port.rules.add(entry)?;
        let begun = port.begin(adapter).and_then(|()| match membership {
            Some(membership) => Ok(port.socket.join(membership)?),
            None => Ok(()),
        });
        if begun.is_err() {
            port.rules.remove(id);
            let _ = port.filter();
        }
        begun
    }

    /// Removes a steering rule.
    pub fn remove_rule(&mut self, id: u64) {
        let Some(port) = self.ethernet.as_mut() else { return };
        let Some(entry) = port.rules.remove(id) else { return };
        if let Some(membership) = entry.rule.membership() {
            port.socket.leave(membership);
        }
        // A filter that accepts too much costs time only.
        let _ = port.filter();
    }

    /// Removes all rules of a QP.
    pub fn remove_rules_of(&mut self, num: u32) {
        while let Some(id) = self.ethernet.as_ref().and_then(|port| port.rules.of_qp(num)) {
            self.remove_rule(id);
        }
    }

    /// Delivers the frames that have come; drops those that came before the last rule was removed. Returns whether there were any.
    pub(super) fn receive_ethernet(&mut self, adapter: &AdapterState) -> bool {
        let Some(mut port) = self.ethernet.take_if(|port| port.listens) else { return false };
        let mut any = false;
        for _ in 0..FRAMES {
            let Some(length) = port.socket.receive(&mut port.buffer) else { break };
            any = true;
            // A frame that is longer than those of the interface was put together by the kernel.
            match port.buffer.get(..length) {
                Some(frame) => self.steer(adapter, &port.rules, frame),
                None => self.shown.traffic.packets_lost.bump(1),
            }
        }
        self.ethernet = Some(port);
        any
    }

    fn steer(&mut self, adapter: &AdapterState, rules: &Rules, frame: &[u8]) {
        let headers = Headers::of(frame);
        for entry in rules.matching(frame, &headers) {
            entry.rule.count(frame.len());
            let num = match &entry.to {
                _ if entry.rule.drops => None,
                Destination::Qp(num) => Some(*num),
                Destination::Spread(spread) => spread.queue(frame, &headers),
            };
            if let Some(num) = num {
                self.deliver_ethernet(adapter, num, frame);
            }
        }
    }

    fn deliver_ethernet(&mut self, adapter: &AdapterState, num: u32, frame: &[u8]) {
        let Some(index) = self.table.index(num) else { return };
        let Some(entry) = self.table.get(index).filter(|entry| entry.retired.is_none()) else { return };
        let shared = entry.shared.clone();
        let mut protocol = shared.lock();
        let (cached, completions) = (&mut self.cached, &mut self.completions);
        let mut host = QpHost::in_turn(Side::Responder, &shared, &adapter.regions, cached, completions);
        protocol.handle_ethernet(frame, &mut host);
        self.after(index, &mut protocol);
    }

    /// Sends the frames of a QP. Returns whether it has more than the socket takes.
    pub(super) fn transmit_ethernet(&mut self, adapter: &AdapterState, index: u16, now: Instant) -> bool {
        let Some(shared) = self.table.get(index).map(|entry| entry.shared.clone()) else { return false };
        let Some(mut port) = self.ethernet.take() else { return false };
        let mut protocol = shared.lock();
        let (cached, completions) = (&mut self.cached, &mut self.completions);
        let mut host = QpHost::in_turn(Side::Requester, &shared, &adapter.regions, cached, completions);
        let mut egress = EthernetEgress {
            port: &mut port,
            user: User { pd: shared.pd(), qp: shared.num },
            faults: &shared.faults,
            regions: &adapter.regions,
            cached: &mut self.payload_cached,
            shown: self.shown,
        };
        let limits = Limits { request_bytes: usize::MAX, read_bytes: usize::MAX };
        let progress = protocol.poll_transmit(now, limits, &mut host, &mut egress);
        self.ethernet = Some(port);
        self.after(index, &mut protocol);
        progress == Progress::Full
    }
}
