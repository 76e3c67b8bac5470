//! A host: two CPUs, a program that sends, a thread that receives, interrupts, adapters.
//!
//! With interrupts, all of it runs on the first CPU: E 3.2.3 says that only with polling the receive path can run on
//! another CPU than the send path. A packet is work for the program when it leaves, and for the thread when it comes.
//! Interrupts are off while the thread has work (E 2.4), so few come where packets come without pause. A program that only
//! sends has the interrupts of packets that have left.

use super::adapter::{Adapter, Packet};
use super::core::Core;
use super::costs::{Costs, PAGE};
use super::memory::{Anything, Traffic};
use super::program::Program;
use crate::edge::found::Cpu;
use crate::edge::setting::{Flush, Mechanism, Receiving, Sending, Setting};
use std::collections::VecDeque;
use std::time::Duration;
use weir_transport::Instant;
use weir_transport::edge::{Action, Endpoint, Event, Piece};

/// Payload of so many bytes is always copied: adapters take short packets in one piece (E 3.3.3).
const SHORT: u32 = 12;
/// How long program and thread run in turn where both have work for one CPU. Assumed.
const QUANTUM: Duration = Duration::from_micros(100);

/// A host of the simulation.
pub struct Host {
    costs: Costs,
    mechanism: Mechanism,
    sending: Sending,
    receiving: Receiving,
    endpoint: Endpoint<u32>,
    /// When the endpoint has to be called though nothing happens.
    due: Option<Instant>,
    pub program: Program,
    thread: Thread,
    cores: [Core<Job>; 2],
    /// Whether a CPU copies.
    copying: [bool; 2],
    traffic: Traffic,
    pub adapters: Vec<Adapter>,
    /// Interrupts are on, and none is being handled.
    enabled: bool,
    /// The adapter of the interrupt that is being handled.
    interrupting: usize,
    /// Which of program and thread runs on a CPU that they share, and since when.
    turn: (Context, Instant),
    /// Bytes of the peer's operations that are in place.
    pub delivered: u64,
    /// Time of the program's CPU for operations, ns.
    pub initiating: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Context {
    Program,
    Thread,
}

/// The thread that receives.
#[derive(Debug, Default)]
struct Thread {
    is_awake: bool,
    /// It has to be woken before it runs.
    is_called: bool,
    /// Acknowledgements.
    out: VecDeque<Packet>,
    arrived: VecDeque<Packet>,
}

/// What happens when a piece of work is done.
#[derive(Debug)]
enum Job {
    Begin,
    Resume,
    Put(Packet),
    Wake,
    Receive(Packet),
    Poll,
}

impl Host {
    pub fn new(setting: &Setting, costs: Costs, endpoint: Endpoint<u32>, is_client: bool) -> Host {
        Host {
            costs,
            mechanism: setting.mechanism,
            sending: setting.sending,
            receiving: setting.receiving,
            due: endpoint.poll_timeout(),
            endpoint,
            program: Program::new(setting, is_client),
            thread: Thread { is_awake: setting.mechanism == Mechanism::Polling, ..Thread::default() },
            cores: Default::default(),
            copying: [false; 2],
            traffic: Traffic::default(),
            adapters: setting.links.rates.iter().map(|rate| Adapter::new(*rate)).collect(),
            enabled: setting.mechanism == Mechanism::Events,
            interrupting: 0,
            turn: (Context::Program, Instant(0)),
            delivered: 0,
            initiating: 0.0,
        }
    }

    /// Time of both CPUs so far, ns.
    pub fn spent(&self) -> Cpu {
        self.cores[0].spent + self.cores[1].spent
    }

    /// When something happens next.
    pub fn next(&self, now: Instant) -> Option<Instant> {
        let cores = self.cores.iter().filter_map(|core| core.next(now));
        let adapters = self.adapters.iter().filter_map(Adapter::next);
        let quiet = self.adapters.iter().filter(|a| self.enabled && a.has_events()).map(|a| a.quiet);
        cores.chain(adapters).chain(quiet).chain(self.due).min()
    }

    /// All that happens at this time; `out` gets each packet that leaves, with its link and when it has left.
    pub fn advance(&mut self, now: Instant, out: &mut impl FnMut(usize, Instant, Packet)) {
        for adapter in &mut self.adapters {
            let bytes = adapter.advance(now);
            if bytes > 0 {
                self.traffic.add(now, bytes);
            }
        }
        if self.due.is_some_and(|due| due <= now) {
            self.endpoint.handle_timeout(now);
            self.transmit(now);
        }
        loop {
            let mut idle = true;
            for n in 0..self.cores.len() {
                if self.cores[n].interrupt_ended(now) {
                    self.interrupted(now, n);
                    idle = false;
                }
                if let Some(job) = self.cores[n].ended(now) {
                    self.copying[n] = false;
                    self.finish(now, n, job, out);
                    idle = false;
                }
            }
            self.interrupt(now);
            for n in 0..self.cores.len() {
                if let Some((takes, copies, job)) = self.cores[n].is_free(now).then(|| self.job(now, n)).flatten() {
                    self.copying[n] = copies;
                    self.cores[n].begin(now, takes, job);
                    idle = false;
                }
            }
            if idle {
                return;
            }
        }
    }

    /// An adapter interrupts, if one has something to tell.
    fn interrupt(&mut self, now: Instant) {
        let may = |adapter: &Adapter| adapter.has_events() && adapter.quiet <= now;
        let Some(n) = self.adapters.iter().position(may).filter(|_| self.enabled) else { return };
        self.enabled = false;
        self.interrupting = n;
        if self.adapters[n].coalesces() {
            self.adapters[n].quiet = now + Duration::from_nanos(self.costs.coalescing as u64);
        }
        self.cores[0].interrupt(now, notice(self.costs.interrupt + self.costs.access));
    }

    /// The handler has asked the adapter that interrupted. If no packet has come there, it asks the others.
    fn interrupted(&mut self, now: Instant, core: usize) {
        self.collect(now, core, self.interrupting);
        if self.thread.arrived.is_empty() {
            let others = self.adapters.len() - 1;
            self.cores[core].delay(now, notice(self.costs.access * others as f64));
            (0..self.adapters.len()).for_each(|n| self.collect(now, core, n));
        }
        match self.thread.arrived.is_empty() {
            true => self.enabled = !self.thread.is_awake,
            false => self.call(now),
        }
    }

    fn call(&mut self, now: Instant) {
        if !self.thread.is_awake {
            (self.thread.is_awake, self.thread.is_called) = (true, true);
            self.turn = (Context::Thread, now);
        }
    }

    /// Takes what an adapter has to tell.
    fn collect(&mut self, now: Instant, core: usize, n: usize) {
        let adapter = &mut self.adapters[n];
        let left = std::mem::take(&mut adapter.left);
        self.thread.arrived.append(&mut adapter.arrived);
        if left > 0 {
            let device = self.costs.released * f64::from(left);
            self.cores[core].delay(now, Cpu { device, ..Cpu::default() });
        }
    }

    /// The next piece of work of a CPU: its times, and whether it copies.
    fn job(&mut self, now: Instant, core: usize) -> Option<(Cpu, bool, Job)> {
        if self.mechanism == Mechanism::Polling {
            return if core == 0 { self.programs(now, core) } else { self.threads(now, core) };
        }
        if core > 0 {
            return None;
        }
        let (context, since) = self.turn;
        let other = if context == Context::Program { Context::Thread } else { Context::Program };
        let order = if now - since < QUANTUM { [context, other] } else { [other, context] };
        for context in order {
            let job = if context == Context::Program { self.programs(now, core) } else { self.threads(now, core) };
            if job.is_some() {
                if context != self.turn.0 || now - since >= QUANTUM {
                    self.turn = (context, now);
                }
                return job;
            }
        }
        None
    }

    fn programs(&mut self, now: Instant, core: usize) -> Option<(Cpu, bool, Job)> {
        let Costs { call, operation, packet_out, device_out, translate, wake, .. } = self.costs;
        if let Some(packet) = self.program.packets.pop_front() {
            let bytes = packet.payload();
            let send = match self.sending {
                Sending::Copied => self.copy(now, core, bytes, self.costs.copy_out),
                Sending::Gathered if bytes <= SHORT => self.copy(now, core, bytes, self.costs.copy_out),
                Sending::Gathered => translate * f64::from(bytes.div_ceil(PAGE)),
                Sending::Skipped => 0.0,
            };
            let takes = Cpu { send, packet: packet_out, device: device_out, ..Cpu::default() };
            self.initiating += takes.total();
            return Some((takes, self.sending == Sending::Copied, Job::Put(packet)));
        }
        if self.program.told {
            self.program.wake();
            return Some((notice(wake), false, Job::Resume));
        }
        if !self.program.is_ready() {
            return None;
        }
        let takes = Cpu { packet: call + operation, ..Cpu::default() };
        self.initiating += takes.total();
        Some((takes, false, Job::Begin))
    }

    fn threads(&mut self, now: Instant, core: usize) -> Option<(Cpu, bool, Job)> {
        let Costs { packet_in, device_in, packet_out, device_out, access, round, wake, .. } = self.costs;
        if !self.thread.is_awake {
            return None;
        }
        if std::mem::take(&mut self.thread.is_called) {
            return Some((notice(wake), false, Job::Wake));
        }
        if let Some(packet) = self.thread.out.pop_front() {
            let takes = Cpu { packet: packet_out, device: device_out, ..Cpu::default() };
            return Some((takes, false, Job::Put(packet)));
        }
        if let Some(packet) = self.thread.arrived.pop_front() {
            let (receive, remap) = self.place(now, core, packet.piece.as_ref());
            let takes = Cpu { receive, remap, packet: packet_in, device: device_in, ..Cpu::default() };
            return Some((takes, receive > 0.0, Job::Receive(packet)));
        }
        let least = if self.mechanism == Mechanism::Polling { round } else { 0.0 };
        Some((notice((access * self.adapters.len() as f64).max(least)), false, Job::Poll))
    }

    /// What it takes to bring payload to its place: copying, and remapping.
    fn place(&self, now: Instant, core: usize, piece: Option<&Piece>) -> (f64, f64) {
        let Some((piece, address, total)) = piece.and_then(|piece| match piece.action {
            Action::Write { address, total, .. } => Some((piece, address + u64::from(piece.offset), total)),
            _ => None,
        }) else {
            return (0.0, 0.0);
        };
        let flush = match self.receiving {
            Receiving::Skipped => return (0.0, 0.0),
            Receiving::Remapped(flush) if piece.bytes % PAGE == 0 && address % u64::from(PAGE) == 0 => flush,
            _ => return (self.copy(now, core, piece.bytes, self.costs.copy_in), 0.0),
        };
        let pages = f64::from(piece.bytes / PAGE);
        let is_last = piece.offset + piece.bytes == total;
        let flushes = match flush {
            Flush::None => 0.0,
            Flush::Full => self.costs.flush * f64::from(u8::from(is_last)),
            Flush::Selective => self.costs.flush_page * pages,
        };
        (0.0, self.costs.remap * pages + flushes)
    }

    fn copy(&self, now: Instant, core: usize, bytes: u32, each: f64) -> f64 {
        let copies = 1 + u32::from(self.copying[1 - core]);
        if each > 0.0 { self.traffic.copy(now, &self.costs, bytes, each, copies) } else { 0.0 }
    }

    fn finish(&mut self, now: Instant, core: usize, job: Job, out: &mut impl FnMut(usize, Instant, Packet)) {
        match job {
            Job::Begin => {
                for operation in self.program.begin(now) {
                    self.endpoint.issue(*operation);
                }
                self.transmit(now);
            }
            Job::Put(packet) => {
                let link = usize::from(packet.header.link);
                out(link, self.adapters[link].send(now, &packet), packet);
            }
            Job::Receive(packet) => self.receive(now, packet),
            Job::Poll => {
                (0..self.adapters.len()).for_each(|n| self.collect(now, core, n));
                if self.thread.arrived.is_empty() && self.mechanism == Mechanism::Events {
                    (self.thread.is_awake, self.enabled) = (false, true);
                }
            }
            Job::Resume | Job::Wake => {}
        }
    }

    fn receive(&mut self, now: Instant, Packet { header, ack, piece }: Packet) {
        let bytes = piece.map_or(0, |piece| piece.payload());
        let taken = self.endpoint.handle(now, (&header, ack.as_ref()), piece, |_| bytes, &mut Anything);
        taken.expect("the peer keeps to the rules");
        self.delivered += u64::from(bytes);
        while let Some(event) = self.endpoint.poll_event() {
            if matches!(event, Event::Notified { .. }) {
                self.program.told = true;
                self.turn = (Context::Program, now);
            }
        }
        self.transmit(now);
    }

    /// Packets that leave become work: acknowledgements of the thread, others of the program.
    fn transmit(&mut self, now: Instant) {
        let (program, thread) = (&mut self.program, &mut self.thread);
        self.endpoint.transmit(now, &mut Anything, |(header, ack, carried)| {
            let packet = Packet { header, ack: ack.cloned(), piece: carried.map(|(piece, _)| piece) };
            if packet.piece.is_some() { program.queue(packet) } else { thread.out.push_back(packet) }
        });
        self.due = self.endpoint.poll_timeout();
        if !self.thread.out.is_empty() && !self.thread.is_awake {
            (self.thread.is_awake, self.enabled) = (true, false);
        }
    }
}

fn notice(ns: f64) -> Cpu {
    Cpu { notice: ns, ..Cpu::default() }
}
