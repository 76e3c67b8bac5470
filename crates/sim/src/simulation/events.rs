//! Handling of the events of a simulation.

use super::{Observer, Rule, Simulation};
use crate::host::HostState;
use crate::ids::{HostId, Node, QpId, SwitchId};
use crate::incident::{self, Incident, Watch};
use crate::link::{Disorder, Link, Pipe};
use crate::network::Network;
use crate::observe::{Loss, PacketEvent, Seen};
use crate::packet::{PacketKey, Packets, SimPacket};
use crate::qp::SimQp;
use crate::queue::{Event, Queue};
use std::collections::VecDeque;
use weir_capture::Direction;
use weir_transport::{Chance, Instant, Side};

/// Event handlers.
impl Simulation {
    /// Follows up on a change of a QP: it may be ready to send, have a new deadline, or have reports.
    #[inline]
    pub(crate) fn follow_up(&mut self, id: QpId) {
        let Simulation { now, hosts, .. } = self;
        let deadline = hosts[id.host.0 as usize].at(id.num).and_then(|mut at| at.settle(*now));
        self.settled(id, deadline);
    }

    /// A QP was queued for its turn, if it has something to send, and needs an event for this deadline.
    #[inline]
    fn settled(&mut self, id: QpId, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.queue.put(deadline, Event::Deadline(id));
        }
        self.collect(id.host);
        self.transmit(id.host);
    }

    /// Schedules the ends of a host's new page faults, and collects its reports for the application.
    #[inline]
    pub(crate) fn collect(&mut self, id: HostId) {
        if self.hosts[id.0 as usize].adapter.get_mut().has_news() {
            self.collect_news(id);
        }
    }

    #[inline(never)]
    fn collect_news(&mut self, id: HostId) {
        let Simulation { queue, hosts, reports, .. } = self;
        let host = &mut hosts[id.0 as usize];
        let adapter = host.adapter.get_mut();
        while let Some((at, fault)) = adapter.memory.begun.pop_front() {
            queue.put(at, Event::FaultEnds(id, fault));
        }
        while let Some(report) = adapter.reports.pop_front() {
            reports.push_back((id, report));
        }
        self.arm_events(id);
    }

    /// Lets a host's QPs send until its port is busy.
    #[inline]
    pub(crate) fn transmit(&mut self, host: HostId) {
        while self.hosts[host.0 as usize].may_send() {
            self.turn(host);
        }
    }

    /// Lets the next QP of a host send a packet.
    #[inline(never)]
    fn turn(&mut self, host: HostId) {
        let Simulation { now, queue, hosts, network, chance, packets, observer, adapters, rule, staged, .. } = self;
        let state = &mut hosts[host.0 as usize];
        let Some((num, deadline)) = state.turn(*now, host, packets, staged) else { return };
        if let Some(key) = staged.take() {
            let mut outside = Outside { now: *now, queue, network, chance, packets, observer, adapters, rule };
            outside.send(host, state, key);
        }
        if let Some(at) = deadline {
            queue.put(at, Event::Deadline(QpId { host, num }));
        }
        let waits = |qp: &SimQp| qp.waits_for_reads && !qp.qp.awaits_reads();
        if hosts[host.0 as usize].get(num).is_some_and(waits) {
            self.continue_after_reads(QpId { host, num });
        }
        self.collect(host);
    }

    /// The data of a QP's READs has been read out: requests that waited for it are executed.
    #[cold]
    fn continue_after_reads(&mut self, id: QpId) {
        let Some(qp) = self.host_mut(id.host).get_mut(id.num) else { return };
        qp.waits_for_reads = false;
        let held = std::mem::take(&mut qp.held[Side::Responder as usize]);
        self.pass_in(id, held);
        // The caller lets QPs send.
        let now = self.now;
        if let Some(at) = self.host_mut(id.host).at(id.num).and_then(|mut at| at.settle(now)) {
            self.queue.put(at, Event::Deadline(id));
        }
    }

    fn pass_in(&mut self, id: QpId, held: VecDeque<PacketKey>) {
        for packet in held {
            let taken = match self.hosts[id.host.0 as usize].at(id.num) {
                Some(mut at) => incident::receive(self.now, &mut at, id, packet, &mut self.packets, &mut self.adapters),
                None => {
                    self.packets.remove(packet);
                    true
                }
            };
            if !taken {
                self.lost(Node::Host(id.host), Loss::Adapter, packet);
            }
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
        self.arrives(to, packet);
    }

    /// A packet arrives behind packets that entered the pipe later.
    #[cold]
    pub(crate) fn straggler(&mut self, index: u32, packet: PacketKey) {
        self.arrives(self.network.pipes[index as usize].to, packet);
    }

    #[inline]
    fn arrives(&mut self, to: Node, packet: PacketKey) {
        match to {
            Node::Switch(switch) => self.forward(switch, packet),
            Node::Host(host) if host == self.packets[packet].to => self.reaches_host(host, packet),
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
        let marks = self.network.marks(switch, index, self.now);
        let pipe = &mut self.network.pipes[index as usize];
        let bytes = packet.bytes;
        if !pipe.has_room(self.now, bytes) {
            self.network.dropped(switch);
            return self.lost(Node::Switch(switch), Loss::Buffer, key);
        }
        let (_, at) = pipe.occupy(self.now, bytes);
        if let Some(loss) = loses(&pipe.link, packet, &mut self.chance) {
            return self.lost(Node::Switch(switch), loss, key);
        }
        self.packets[key].marked |= marks;
        enter(pipe, index, at, key, &mut self.packets, &mut self.chance, &mut self.queue);
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

    /// A packet that has arrived at its host reaches its QP.
    #[inline(always)]
    pub(super) fn deliver(&mut self, key: PacketKey) {
        let packet = &self.packets[key];
        let (now, node) = (self.now, Node::Host(packet.to));
        let host = &mut self.hosts[packet.to.0 as usize];
        if let Some(capture) = &mut host.capture {
            capture.record(now, Direction::In, packet, None);
        }
        let id = QpId { host: packet.to, num: packet.headers.bth.dest_qp };
        if packet.damaged {
            return self.lost(node, Loss::Damage, key);
        }
        // An RC QP accepts packets from its peer only.
        let Some(mut at) = host.at(id.num).filter(|at| at.qp.peer == packet.from.host) else {
            return self.lost(node, Loss::NoDestination, key);
        };
        at.counts.arrived += 1;
        if let Some(watch) = &mut self.observer {
            watch(&seen(now, node, PacketEvent::Arrived, packet));
        }
        let taken = incident::receive(now, &mut at, id, key, &mut self.packets, &mut self.adapters);
        let deadline = at.settle(now);
        if !taken {
            self.lost(node, Loss::Adapter, key);
        }
        self.settled(id, deadline);
    }

    pub(crate) fn deadline(&mut self, id: QpId) {
        let now = self.now;
        let host = self.host_mut(id.host);
        let Some(at) = host.at(id.num) else { return };
        // The event is obsolete: the QP has another deadline now.
        if at.qp.armed != Some(now) {
            return;
        }
        at.qp.armed = None;
        if at.qp.qp.poll_timeout().is_some_and(|at| at <= now) {
            let mut view = at.view(now, Side::Requester);
            let before = at.qp.qp.retransmissions();
            at.qp.qp.handle_timeout(now, &mut view);
            if at.qp.qp.retransmissions().ack_timeouts != before.ack_timeouts
                && let Some(watch) = &mut self.adapters
            {
                watch(now, Incident::AckTimeout { qp: id });
            }
        }
        self.follow_up(id);
    }

    /// A page fault ends. Responders that wait for it continue at once, and so do requesters, unless the adapter has
    /// packet flood: then each requester resumes by its own event.
    pub(crate) fn fault_ends(&mut self, host: HostId, fault: u32) {
        let Simulation { now, hosts, adapters, .. } = self;
        let memory = &mut hosts[host.0 as usize].adapter.get_mut().memory;
        if let Some(watch) = adapters {
            memory.pages_of_fault(fault).into_iter().for_each(|addr| watch(*now, Incident::PageCame { host, addr }));
        }
        let by_events = memory.events.resume_requesters();
        for (num, side) in memory.end_fault(fault) {
            if side == Side::Responder || !by_events {
                self.page_resolved(QpId { host, num }, side);
            }
        }
        self.resume_requesters(host);
    }

    /// Resumes the requesters with events that have been served.
    pub(crate) fn resume_requesters(&mut self, host: HostId) {
        let now = self.now;
        while let Some(num) = self.host_mut(host).adapter.get_mut().memory.events.poll(now) {
            self.page_resolved(QpId { host, num }, Side::Requester);
        }
        self.arm_events(host);
    }

    /// Schedules the end of the page-fault event that is being served.
    fn arm_events(&mut self, host: HostId) {
        let Simulation { now, queue, hosts, .. } = self;
        let state = &mut hosts[host.0 as usize];
        if let Some(next) = state.adapter.get_mut().memory.events.next() {
            let at = next.max(*now);
            if state.resume_at.is_none_or(|armed| at < armed) {
                state.resume_at = Some(at);
                queue.put(at, Event::ResumeRequesters(host));
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
        self.pass_in(id, held);
        self.follow_up(id);
    }
}

/// What a packet meets outside of its host.
struct Outside<'a> {
    now: Instant,
    queue: &'a mut Queue,
    network: &'a mut Network,
    chance: &'a mut Chance,
    packets: &'a mut Packets,
    observer: &'a mut Option<Observer>,
    adapters: &'a mut Option<Watch>,
    rule: &'a mut Option<Rule>,
}

impl Outside<'_> {
    /// A packet leaves its host.
    #[inline(always)]
    fn send(&mut self, id: HostId, host: &mut HostState, key: PacketKey) {
        let Outside { now, queue, network, chance, packets, observer, adapters, rule } = self;
        let packet = &packets[key];
        let response = packet.headers.bth.opcode.is_response();
        *(if response { &mut host.counts.responses } else { &mut host.counts.requests }) += 1;
        host.counts.repeated += u64::from(packet.repeated);

        let port = network.port(id);
        let node = Node::Host(id);
        let mut lost = port.is_none().then_some(Loss::NoDestination);
        if lost.is_none()
            && let Some(rule) = rule
            && rule(&seen(*now, node, PacketEvent::Sent { lost: None }, packet))
        {
            lost = Some(Loss::Rule);
        }
        let mut arrival = None;
        if let Some(index) = port {
            let pipe = &mut network.pipes[index as usize];
            lost = lost.or_else(|| loses(&pipe.link, packet, chance));
            let (free, at) = match &mut host.adapter.get_mut().machine {
                None => pipe.occupy(*now, packet.bytes),
                Some(machine) => machine.send(*now, pipe, packet.bytes),
            };
            arrival = Some((index, at));
            // A lost packet occupies the link, too.
            host.sending = true;
            queue.put(free, Event::PortFree(id));
        }
        if let Some(loss) = lost {
            host.counts.lose(loss);
        }
        if let Some(watch) = adapters
            && packet.is_rnr_nak()
            && let Some(qp) = host.get(packet.from.num)
        {
            watch(*now, incident::not_ready(packet.from, packet.headers.bth.psn, qp.qp.responder_state()));
        }
        if let Some(capture) = &mut host.capture {
            capture.record(*now, Direction::Out, packet, lost);
        }
        if let Some(watch) = observer {
            watch(&seen(*now, node, PacketEvent::Sent { lost }, packet));
        }
        match arrival {
            Some((index, at)) if lost.is_none() => {
                enter(&mut network.pipes[index as usize], index, at, key, packets, chance, queue);
            }
            _ => packets.remove(key),
        }
    }
}

/// A packet enters a pipe. It arrives at `at`, or later, or twice.
#[inline(always)]
fn enter(
    pipe: &mut Pipe,
    index: u32,
    at: Instant,
    key: PacketKey,
    packets: &mut Packets,
    chance: &mut Chance,
    queue: &mut Queue,
) {
    if pipe.link.disorder != Disorder::NONE && is_late(&pipe.link.disorder, index, at, key, packets, chance, queue) {
        return;
    }
    if pipe.put(packets, at, key) {
        queue.put(at, Event::Arrival(index));
    }
}

/// Applies the disorder of a link to a packet. True: the packet takes its own way through the pipe.
#[cold]
#[inline(never)]
fn is_late(
    disorder: &Disorder,
    index: u32,
    at: Instant,
    key: PacketKey,
    packets: &mut Packets,
    chance: &mut Chance,
    queue: &mut Queue,
) -> bool {
    let later = |chance: &mut Chance| at + disorder.by.mul_f64(chance.share());
    packets[key].damaged |= chance.share() < disorder.damaged;
    if chance.share() < disorder.twice {
        let copy = packets.copy(key);
        queue.put(later(chance), Event::Straggler(index, copy));
    }
    if chance.share() >= disorder.late {
        return false;
    }
    queue.put(later(chance), Event::Straggler(index, key));
    true
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
        marked: packet.marked,
        headers: &packet.headers,
        payload: packet.payload.len(),
    }
}
