//! Handling of the events of a simulation.

use super::Simulation;
use crate::ids::{HostId, Node, QpId, SwitchId};
use crate::link::Link;
use crate::observe::{Loss, PacketEvent, Seen};
use crate::packet::{Payload, SimPacket};
use crate::queue::Event;
use weir_capture::Direction;
use weir_transport::{Chance, Handled, Instant, Side};
use weir_wire::{Aeth, Headers};

/// Event handlers.
impl Simulation {
    /// Follows up on a change of a QP: it may be ready to send, have a new deadline, or have reports.
    pub(crate) fn follow_up(&mut self, qp: QpId) {
        self.host_mut(qp.host).queue_turn(qp.num);
        self.schedule_events(qp);
        self.transmit(qp.host);
    }

    /// Schedules the deadline of a QP and the ends of page faults, and collects the reports for the application.
    fn schedule_events(&mut self, id: QpId) {
        let Simulation { now, queue, hosts, reports, .. } = self;
        let host = &mut hosts[id.host.0 as usize];
        if let Some(qp) = host.get_mut(id.num)
            && let Some(deadline) = qp.qp.poll_timeout()
        {
            let at = deadline.max(*now);
            // An event that is too early checks the deadline again, so that a later deadline needs no new event.
            if qp.armed.is_none_or(|armed| at < armed) {
                qp.armed = Some(at);
                queue.put(at, Event::Deadline(id));
            }
        }
        host.queue_limited();
        let adapter = host.adapter.get_mut();
        for (at, fault) in adapter.memory.begun.drain(..) {
            queue.put(at, Event::FaultEnds(id.host, fault));
        }
        reports.extend(adapter.reports.drain(..).map(|report| (id.host, report)));
    }

    /// Lets a host's QPs send until its port is busy.
    pub(crate) fn transmit(&mut self, host: HostId) {
        let mut staged = std::mem::take(&mut self.staged);
        loop {
            let state = &mut self.hosts[host.0 as usize];
            if state.sending {
                break;
            }
            let Some(num) = state.turn(self.now, &mut staged) else { break };
            let from = QpId { host, num };
            for (headers, payload, lost) in staged.drain(..) {
                self.send(from, headers, payload, lost);
            }
            self.schedule_events(from);
        }
        self.staged = staged;
    }

    /// A packet leaves its host.
    fn send(&mut self, from: QpId, headers: Headers, payload: Payload, dammed: bool) {
        let Simulation { now, queue, hosts, network, chance, packets, observer, rule, .. } = self;
        let host = &mut hosts[from.host.0 as usize];
        let Some(qp) = host.get_mut(from.num) else { return };
        let to = qp.peer;
        let opcode = headers.bth.opcode;
        let response = opcode.is_response();
        // An ACK or NAK reports the current state: it is never a retransmission.
        let ack = response && opcode.starts_message() && payload.len() == 0 && headers.get::<Aeth>().is_some();
        let repeated = !ack && qp.leaves(response, headers.bth.psn);
        let packet = SimPacket { id: *packets, from, to, repeated, headers, payload };
        *packets += 1;
        *(if response { &mut host.counts.responses } else { &mut host.counts.requests }) += 1;
        host.counts.repeated += u64::from(repeated);

        let port = network.port(from.host);
        let node = Node::Host(from.host);
        let mut lost = if dammed { Some(Loss::Adapter) } else { port.is_none().then_some(Loss::NoDestination) };
        if lost.is_none()
            && let Some(rule) = rule
            && rule(&seen(*now, node, PacketEvent::Sent { lost: None }, &packet))
        {
            lost = Some(Loss::Rule);
        }
        let mut arrival = None;
        if let Some(index) = port
            && !dammed
        {
            let pipe = &mut network.pipes[index as usize];
            lost = lost.or_else(|| loses(pipe.link, &packet, chance));
            arrival = Some((index, pipe.occupy(*now, packet.len())));
            // A lost packet occupies the link, too.
            host.sending = true;
            queue.put(pipe.free_at(), Event::PortFree(from.host));
        }
        if let Some(loss) = lost {
            host.counts.lose(loss);
        }
        if let Some(capture) = &mut host.capture {
            capture.record(*now, Direction::Out, &packet, lost);
        }
        if let Some(watch) = observer {
            watch(&seen(*now, node, PacketEvent::Sent { lost }, &packet));
        }
        if let Some((index, at)) = arrival
            && lost.is_none()
            && network.pipes[index as usize].put(at, packet)
        {
            queue.put(at, Event::Arrival(index));
        }
    }

    /// The first packet of a pipe arrives at its end.
    pub(crate) fn arrival(&mut self, index: u32) {
        let pipe = &mut self.network.pipes[index as usize];
        let to = pipe.to;
        let Some((packet, next)) = pipe.take() else { return };
        if let Some(at) = next {
            self.queue.put(at, Event::Arrival(index));
        }
        match to {
            Node::Switch(switch) => self.forward(switch, packet),
            Node::Host(host) if host == packet.to => self.deliver(packet),
            Node::Host(_) => self.lost(to, Loss::NoDestination, &packet),
        }
    }

    /// A switch forwards a packet.
    fn forward(&mut self, switch: SwitchId, packet: SimPacket) {
        let flow = u64::from(packet.from.host.0) << 32 | u64::from(packet.headers.bth.dest_qp);
        let Some(index) = self.network.way(switch, packet.to, flow) else {
            return self.lost(Node::Switch(switch), Loss::NoDestination, &packet);
        };
        let pipe = &mut self.network.pipes[index as usize];
        if !pipe.has_room(self.now, packet.len()) {
            self.network.dropped(switch);
            return self.lost(Node::Switch(switch), Loss::Buffer, &packet);
        }
        let at = pipe.occupy(self.now, packet.len());
        if let Some(loss) = loses(pipe.link, &packet, &mut self.chance) {
            return self.lost(Node::Switch(switch), loss, &packet);
        }
        if pipe.put(at, packet) {
            self.queue.put(at, Event::Arrival(index));
        }
    }

    /// A packet is lost after its first link.
    #[cold]
    fn lost(&mut self, node: Node, loss: Loss, packet: &SimPacket) {
        self.host_mut(packet.from.host).counts.lose(loss);
        if let Some(watch) = &mut self.observer {
            watch(&seen(self.now, node, PacketEvent::Lost(loss), packet));
        }
    }

    /// A packet arrives at its host.
    fn deliver(&mut self, packet: SimPacket) {
        let (now, node) = (self.now, Node::Host(packet.to));
        let host = &mut self.hosts[packet.to.0 as usize];
        if let Some(capture) = &mut host.capture {
            capture.record(now, Direction::In, &packet, None);
        }
        let id = QpId { host: packet.to, num: packet.headers.bth.dest_qp };
        // An RC QP accepts packets from its peer only.
        if host.get(id.num).is_none_or(|qp| qp.peer != packet.from.host) {
            return self.lost(node, Loss::NoDestination, &packet);
        }
        host.counts.arrived += 1;
        if let Some(watch) = &mut self.observer {
            watch(&seen(now, node, PacketEvent::Arrived, &packet));
        }
        self.pass_to_qp(id, packet);
        self.follow_up(id);
    }

    /// Passes a packet to its QP, and keeps it if it has to wait for a page.
    fn pass_to_qp(&mut self, id: QpId, packet: SimPacket) {
        let now = self.now;
        let side = if packet.headers.bth.opcode.is_response() { Side::Requester } else { Side::Responder };
        let host = &mut self.hosts[id.host.0 as usize];
        let Some((qp, mut view)) = host.parts(now, id.num, side) else { return };
        let handled = qp.qp.handle_packet(now, &packet.view(), &mut view);
        qp.qp.end_ack_delay();
        if handled == Handled::Held {
            qp.held[side as usize].push_back(packet);
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

fn loses(link: Link, packet: &SimPacket, chance: &mut Chance) -> Option<Loss> {
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
