//! A process: its endpoint, its place in its script, and the operations that it waits for.

use super::port::{Ports, SimPort};
use super::script::Script;
use std::collections::VecDeque;
use std::time::Duration;
use weir_msg::{ConnectionId, Endpoint, PeerId};
use weir_sim::Simulation;
use weir_transport::{Completion, Instant, Queue};

/// What a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It takes the next operation of its script.
    Runs,
    /// It computes, and does not call.
    Computes,
    /// It polls until no operation with this number is open, or none at all.
    Waits(Option<u8>),
    /// It polls until a window is granted.
    WaitsForLock,
    /// It polls, and its script has ended.
    Ended,
}

/// A process.
#[derive(Debug)]
pub struct Rank {
    pub endpoint: Endpoint,
    pub ports: Ports,
    pub script: Script,
    /// The next operation of the script.
    pub at: usize,
    pub state: State,
    /// A timer will wake it.
    pub armed: bool,
    /// Completions that it has not polled.
    pub inbox: VecDeque<Arrived>,
    /// Open operations by their numbers.
    pub open: [u32; 256],
    pub all_open: u32,
    /// Times of its marks.
    pub marks: Vec<Instant>,
    pub ended: Option<Instant>,
    /// An operation has failed.
    pub failed: bool,
    /// Bytes of a window that is pinned.
    pub pinned_window: u64,
    pub locks: Locks,
    peers: Vec<Option<PeerId>>,
}

/// A completion, and its connection.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    pub connection: ConnectionId,
    pub queue: Queue,
    pub completion: Completion,
}

/// The holder of the window of a process, and processes that wait for it.
#[derive(Debug, Default)]
pub struct Locks {
    pub holder: Option<usize>,
    pub waiting: VecDeque<usize>,
    /// This process has the window that it asked for.
    pub granted: bool,
}

impl Rank {
    pub fn new(endpoint: Endpoint, ports: Ports, script: Script) -> Rank {
        let peers = vec![None; ports.hosts.len()];
        Rank {
            endpoint,
            ports,
            script,
            at: 0,
            state: State::Runs,
            armed: false,
            inbox: VecDeque::new(),
            open: [0; 256],
            all_open: 0,
            marks: vec![],
            ended: None,
            failed: false,
            pinned_window: 0,
            locks: Locks::default(),
            peers,
        }
    }

    /// Calls the endpoint at the process's time, and tells it when the call has ended.
    pub fn call<T>(
        &mut self,
        sim: &mut Simulation,
        call: impl FnOnce(&mut Endpoint, &mut SimPort<'_>, Duration) -> T,
    ) -> T {
        let result = self.call_now(sim, call);
        self.endpoint.has_waited(Duration::from_nanos(self.ports.clock.0));
        result
    }

    /// Calls the endpoint for something that takes no time of the process.
    pub fn quietly<T>(
        &mut self,
        sim: &mut Simulation,
        call: impl FnOnce(&mut Endpoint, &mut SimPort<'_>, Duration) -> T,
    ) -> T {
        let clock = self.ports.clock;
        let result = self.call_now(sim, call);
        self.ports.clock = clock;
        result
    }

    fn call_now<T>(
        &mut self,
        sim: &mut Simulation,
        call: impl FnOnce(&mut Endpoint, &mut SimPort<'_>, Duration) -> T,
    ) -> T {
        self.ports.clock = self.ports.clock.max(sim.now());
        let now = Duration::from_nanos(self.ports.clock.0);
        call(&mut self.endpoint, &mut SimPort { sim, own: &mut self.ports }, now)
    }

    /// The endpoint's number of another process.
    pub fn peer(&mut self, rank: usize) -> PeerId {
        let endpoint = &mut self.endpoint;
        *self.peers[rank].get_or_insert_with(|| endpoint.peer(&super::port::name(rank)))
    }

    /// Whether it has what it waits for.
    pub fn is_satisfied(&self) -> bool {
        match self.state {
            State::Runs => true,
            State::Waits(Some(req)) => self.open[usize::from(req)] == 0,
            State::Waits(None) => self.all_open == 0,
            State::WaitsForLock => self.locks.granted,
            State::Computes | State::Ended => false,
        }
    }

    /// The process has polled since its own time until now, and nothing had come.
    pub fn has_polled(&mut self, now: Instant) {
        if now > self.ports.clock {
            self.ports.clock = now;
            self.endpoint.has_waited(Duration::from_nanos(now.0));
        }
    }
}
