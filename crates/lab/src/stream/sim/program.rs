//! A program's time: it works, polls, sleeps and is woken.

use super::sides::Does;
use anyhow::Result;
use std::collections::VecDeque;
use std::time::Duration;
use weir_sim::{Done, QpId, Simulation};
use weir_transport::{Completion, HostModel, Queue};

/// A program of one thread. It takes what has completed, posts what it may, and then polls or sleeps until something
/// completes.
pub struct Program {
    pub does: Does,
    pub qp: QpId,
    /// How often it slept.
    pub sleeps: u64,
    polls: bool,
    /// It has nothing to do: it polls, or sleeps.
    idle: bool,
    inbox: VecDeque<(Queue, Completion)>,
    /// CPU time in which it did not poll in vain.
    cpu: Duration,
    costs: Costs,
    /// The first error, with which it ended.
    failed: Option<String>,
}

/// What takes a program's time.
struct Costs {
    poll: Duration,
    post: Duration,
    /// From an event until the program runs, and the CPU time of it.
    wake: Duration,
    wake_cpu: Duration,
}

impl Program {
    /// A program that is about to run. `remote`: on another NUMA node than the adapter.
    pub fn new(does: Does, qp: QpId, polls: bool, remote: bool, model: &HostModel) -> Program {
        let factor = if remote { model.remote_wake_factor } else { 1.0 };
        let costs = Costs {
            poll: model.poll,
            post: model.post,
            wake: model.wake.mul_f64(factor),
            wake_cpu: model.wake_cpu.mul_f64(factor),
        };
        let (inbox, cpu) = (VecDeque::new(), Duration::ZERO);
        Program { does, qp, sleeps: 0, polls, idle: false, inbox, cpu, costs, failed: None }
    }

    /// Posts the receives that it begins with.
    pub fn receive_all(&mut self, sim: &mut Simulation, number: u32) -> Result<()> {
        (0..number).try_for_each(|_| super::sides::receive(sim, self.qp))
    }

    /// A work request has completed.
    pub fn completed(&mut self, sim: &mut Simulation, done: &Done, side: u64) {
        self.inbox.push_back((done.queue, done.completion));
        if !std::mem::take(&mut self.idle) {
            return;
        }
        let after = if self.polls {
            self.costs.poll
        } else {
            // It had armed its completion queue.
            sim.raise_event(self.qp.host);
            self.sleeps += 1;
            self.cpu += self.costs.wake_cpu;
            self.costs.wake
        };
        sim.set_timer(sim.after(after), side);
    }

    /// Does one thing, and goes on when that is done.
    pub fn step(&mut self, sim: &mut Simulation, side: u64) {
        if self.failed.is_some() {
            return;
        }
        let taken = self.inbox.pop_front();
        let took = match &taken {
            Some((queue, completion)) => self.does.take(sim, *queue, completion).map(|()| Some(self.costs.poll)),
            None => self.does.act(sim, self.qp).map(|acted| acted.then_some(self.costs.post)),
        };
        match took {
            Ok(Some(time)) => {
                self.cpu += time;
                sim.set_timer(sim.after(time), side);
            }
            Ok(None) => self.idle = true,
            Err(error) => self.failed = Some(error.to_string()),
        }
    }

    /// The measurement begins.
    pub fn measured_from_now(&mut self) {
        (self.cpu, self.sleeps) = (Duration::ZERO, 0);
    }

    /// CPU time since the measurement began, seconds, without polls in vain.
    pub fn used(&self) -> f64 {
        self.cpu.as_secs_f64()
    }

    /// The error with which it ended.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }
}
