//! Handling of the events of a simulation.

use super::Simulation;
use crate::ids::{HostId, Node, QpId, SwitchId};
use crate::link::Link;
use crate::observe::{Loss, PacketEvent, Seen};
use crate::packet::{PacketKey, SimPacket};
use crate::queue::Event;
use weir_capture::Direction;
use weir_transport::{Chance, Handled, Instant, Side};

/// Event handlers.
impl Simulation {
    /// Follows up on a change of a QP: it may be ready to send, have a new deadline, or have reports.
    pub(crate) fn follow_up(&mut self, id: QpId) {
        let Simulation { now, queue, hosts, .. } = self;
        if let Some(qp) = hosts[id.host.0 as usize].queue_turn(id.num)
            && let Some(at) = qp.arm(*now)
        {
            queue.put(at, Event::Deadline(id));
        }
        self.collect(id.host);
        self.transmit(id.host);
    }

    /// Schedules the ends of a host's new page faults, and collects its reports for the application.
    #[inline]
    fn collect(&mut self, id: HostId) {
        let Simulation { queue, hosts, reports, .. } = self;
        let host = &mut hosts[id.0 as usize];
        host.queue_limited();
        let adapter = host.adapter.get_mut();
        while let Some((at, fault)) = adapter.memory.begun.pop_front() {
            queue.put(at, Event::FaultEnds(id, fault));
        }
        while let Some(report) = adapter.reports.pop_front() {
            reports.push_back((id, report));
        }
    }

    /// Lets a host's QPs send until its port is busy.
    #[inline]
    pub(crate) fn transmit(&mut self, host: HostId) {
        while self.hosts[host.0 as usize].may_send() {
            self.turn(host);
        }
    }

    /// Lets the next QP of a host send a packet.
    fn turn(&mut self, host: HostId) {
        let Simulation { now, hosts, packets, staged, .. } = self;
        let Some(num) = hosts[host.0 as usize].turn(*now, host, packets, staged) else { return };
        for at in 0..self.staged.len() {
            let (key, dammed) = self.staged[at];
            self.send(key, dammed);
        }
        self.staged.clear();
        let Simulation { now, hosts, queue, .. } = self;
        if let Some(qp) = hosts[host.0 as usize].get_mut(num)
            && let Some(at) = qp.arm(*now)
        {
            queue.put(at, Event::Deadline(QpId { host, num }));
        }
        self.collect(host);
    }

    /// A packet leaves its host.
    fn send(&mut self, key: PacketKey, dammed: bool) {
        let Simulation { now, queue, hosts, network, chance, packets, observer, rule, .. } = self;
        let packet = &mut packets[key];
        let from = packet.from;
        let host = &mut hosts[from.host.0 as usize];
        let opcode = packet.headers.bth.opcode;
        let response = opcode.is_response();
        // An ACK or NAK reports the current state: it is never a retransmission.
        let ack = response && opcode.has_aeth() && opcode.starts_message() && packet.payload.len() == 0;
        if !ack && let Some(qp) = host.get_mut(from.num) {
            packet.repeated = qp.leaves(response, packet.headers.bth.psn);
        }
        *(if response { &mut host.counts.responses } else { &mut host.counts.requests }) += 1;
        host.counts.repeated += u64::from(packet.repeated);

        let port = network.port(from.host);
        let node = Node::Host(from.host);
        let mut lost = if dammed { Some(Loss::Adapter) } else { port.is_none().then_some(Loss::NoDestination) };
        if lost.is_none()
            && let Some(rule) = rule
            && rule(&seen(*now, node, PacketEvent::Sent { lost: None }, packet))
        {
            lost = Some(Loss::Rule);
        }
        let mut arrival = None;
        if let Some(index) = port
            && !dammed
        {
            let pipe = &mut network.pipes[index as usize];
            lost = lost.or_else(|| loses(&pipe.link, packet, chance));
            arrival = Some((index, pipe.occupy(*now, packet.len())));
            // A lost packet occupies the link, too.
            host.sending = true;
            queue.put(pipe.free_at(), Event::PortFree(from.host));
        }
        if let Some(loss) = lost {
            host.counts.lose(loss);
        }
        if let Some(capture) = &mut host.capture {
            capture.record(*now, Direction::Out, packet, lost);
        }
        if let Some(watch) = observer {
            watch(&seen(*now, node, PacketEvent::Sent { lost }, packet));
        }
        match arrival {
            Some((index, at)) if lost.is_none() => {
                if network.pipes[index as usize].put(packets, at, key) {
                    queue.put(at, Event::Arrival(index));
                }
            }
            _ => packets.remove(key),
        }
    }

    /// The first packet of a pipe arrives at its end.
    pub(crate) fn arrival(&mut self, index: u32) {
        let pipe = &mut self.network.pipes[index as usize];
        let to = pipe.to;
        let Some((packet, next)) = pipe.take(&self.packets) else { return };
        if let Some(at) = next {
            self.queue.put(at, Event::Arrival(index));
        }
        match to {
            Node::Switch(switch) => self.forward(switch, packet),
            Node::Host(host) if host == self.packets[packet].to => self.deliver(packet),
            Node::Host(_) => self.lost(to, Loss::NoDestination, packet),
        }
    }

    /// A switch forwards a packet.
    fn forward(&mut self, switch: SwitchId, key: PacketKey) {
        let packet = &self.packets[key];
        let flow = u64::from(packet.from.host.0) << 32 | u64::from(packet.headers.bth.dest_qp);
        let Some(index) = self.network.way(switch, packet.to, flow) else {
            return self.lost(Node::Switch(switch), Loss::NoDestination, key);
        };
        let pipe = &mut self.network.pipes[index as usize];
        let bytes = packet.len();
        if !pipe.has_room(self.now, bytes) {
            self.network.dropped(switch);
            return self.lost(Node::Switch(switch), Loss::Buffer, key);
        }
        let at = pipe.occupy(self.now, bytes);
        if let Some(loss) = loses(&pipe.link, packet, &mut self.chance) {
            return self.lost(Node::Switch(switch), loss, key);
        }
        if pipe.put(&mut self.packets, at, key) {
            self.queue.put(at, Event::Arrival(index));
        }
    }

    /// A packet is lost after its first link.
    #[cold]
    fn lost(&mut self, node: Node, loss: Loss, key: PacketKey) {
        let packet = &self.packets[key];
        self.hosts[packet.from.host.0 as usize].counts.lose(loss);
        if let Some(watch) = &mut self.observer {
            watch(&seen(self.now, node, PacketEvent::Lost(loss), packet));
        }
        self.packets.remove(key);
    }

    /// A packet arrives at its host.
    fn deliver(&mut self, key: PacketKey) {
        let packet = &self.packets[key];
        let (now, node) = (self.now, Node::Host(packet.to));
        let host = &mut self.hosts[packet.to.0 as usize];
        if let Some(capture) = &mut host.capture {
            capture.record(now, Direction::In, packet, None);
        }
        let id = QpId { host: packet.to, num: packet.headers.bth.dest_qp };
        // An RC QP accepts packets from its peer only.
        if host.get(id.num).is_none_or(|qp| qp.peer != packet.from.host) {
            return self.lost(node, Loss::NoDestination, key);
        }
        host.counts.arrived += 1;
        if let Some(watch) = &mut self.observer {
            watch(&seen(now, node, PacketEvent::Arrived, packet));
        }
        self.pass_to_qp(id, key);
        self.follow_up(id);
    }

    /// Passes a packet to its QP, and keeps it if it has to wait for a page.
    fn pass_to_qp(&mut self, id: QpId, key: PacketKey) {
        let Simulation { now, hosts, packets, .. } = self;
        let packet = &packets[key];
        let side = if packet.headers.bth.opcode.is_response() { Side::Requester } else { Side::Responder };
        let host = &mut hosts[id.host.0 as usize];
        let Some((qp, mut view)) = host.parts(*now, id.num, side) else { return packets.remove(key) };
        let handled = qp.qp.handle_packet(*now, &packet.view(), &mut view);
        qp.qp.end_ack_delay();
        match handled {
            Handled::Held => qp.held[side as usize].push_back(key),
            Handled::Done => packets.remove(key),
        }
        if side == Side::Requester
            && let Some(reads) = qp.qp.unnotified_reads()
        {
            host.adapter.get_mut().notifier.waits(id.num, reads);
        }
    }

    pub(crate) fn deadline(&mut self, id: QpId) {
        let now = self.now;
        let host = self.host_mut(id.host);
        let Some((qp, mut view)) = host.parts(now, id.num, Side::Requester) else { return };
        // The event is obsolete: the QP has another deadline now.
        if qp.armed != Some(now) {
            return;
        }
        qp.armed = None;
        if qp.qp.poll_timeout().is_some_and(|at| at <= now) {
            qp.qp.handle_timeout(now, &mut view);
        }
        self.follow_up(id);
    }

    /// A page fault ends. Responders that wait for it continue at once, requesters when the fault notifier permits it.
    pub(crate) fn fault_ends(&mut self, host: HostId, fault: u32) {
        let now = self.now;
        let adapter = self.host_mut(host).adapter.get_mut();
        for (num, side) in adapter.memory.end_fault(fault) {
            match side {
                Side::Requester => self.host_mut(host).adapter.get_mut().notifier.resolved(now, num),
                Side::Responder => self.page_resolved(QpId { host, num }, side),
            }
        }
        self.notify_requesters(host);
    }

    /// Resumes the requesters that are due to be notified.
    pub(crate) fn notify_requesters(&mut self, host: HostId) {
        let now = self.now;
        while let Some(num) = self.host_mut(host).adapter.get_mut().notifier.poll(now) {
            self.page_resolved(QpId { host, num }, Side::Requester);
        }
        let state = &mut self.hosts[host.0 as usize];
        if let Some(next) = state.adapter.get_mut().notifier.next() {
            let at = next.max(now);
            if state.notify_at.is_none_or(|armed| at < armed) {
                state.notify_at = Some(at);
                self.queue.put(at, Event::NotifyRequesters(host));
            }
        }
    }

    fn page_resolved(&mut self, id: QpId, side: Side) {
        let now = self.now;
        let Some(qp) = self.host_mut(id.host).get_mut(id.num) else { return };
        qp.qp.page_resolved(now, side);
        let held = std::mem::take(&mut qp.held[side as usize]);
        // Responses are sent first, as far as the port is free, so that a READ does not return data of requests after
        // it.
        self.follow_up(id);
        for packet in held {
            self.pass_to_qp(id, packet);
        }
        self.follow_up(id);
    }
}

fn loses(link: &Link, packet: &SimPacket, chance: &mut Chance) -> Option<Loss> {
    if packet.payload.len() > link.mtu.bytes() {
        return Some(Loss::TooLong);
    }
    (link.loss > 0.0 && chance.share() < link.loss).then_some(Loss::Link)
}

fn seen(at: Instant, node: Node, event: PacketEvent, packet: &SimPacket) -> Seen<'_> {
    Seen {
        at,
        node,
        event,
        packet: packet.id,
        from: packet.from,
        to: packet.to,
        repeated: packet.repeated,
        headers: &packet.headers,
        payload: packet.payload.len(),
    }
}
