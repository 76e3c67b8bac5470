//! Shared by the tests: two hosts and a link, and an application that records completions.
#![allow(dead_code, reason = "each test uses a part")]

use std::sync::Arc;
use std::time::Duration;
use weir_sim::{App, Backing, Done, HostId, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Instant, Profile, SendFlags, SendOp, SendWr, Status};

/// Records each completion: `wr_id`, time, status.
#[derive(Default)]
pub struct Notes(pub Vec<(u64, Instant, Status)>);

impl App for Notes {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        self.0.push((done.completion.wr_id, sim.now(), done.completion.status));
    }
}

impl Notes {
    /// The completion time of a work request.
    ///
    /// # Panics
    /// If it did not complete, or not successfully.
    pub fn at(&self, wr_id: u64) -> Duration {
        let note = self.0.iter().find(|note| note.0 == wr_id).expect("it completed");
        assert_eq!(note.2, Status::Success);
        note.1 - Instant(0)
    }
}

/// Client and server, with a region each.
pub struct Two {
    pub sim: Simulation,
    pub hosts: [HostId; 2],
    pub regions: [Region; 2],
    pub notes: Notes,
}

impl Two {
    /// Regions of 1 MiB: the client's is zeroed, the server's contains [`numbers`].
    pub fn new(seed: u64, link: Link, profile: Profile, paging: [Paging; 2]) -> Two {
        let mut sim = Simulation::new(seed);
        let profile = Arc::new(profile);
        let hosts = [(); 2].map(|()| sim.add_host(&profile));
        sim.link(hosts[0], hosts[1], link);
        let regions = [
            sim.register(hosts[0], Backing::Bytes(vec![0; 1 << 20]), paging[0]),
            sim.register(hosts[1], Backing::Bytes(numbers()), paging[1]),
        ];
        Two { sim, hosts, regions, notes: Notes::default() }
    }

    pub fn connect(&mut self, setup: &QpSetup) -> QpId {
        self.sim.connect(self.hosts[0], self.hosts[1], setup)[0]
    }

    pub fn read(&mut self, qp: QpId, wr_id: u64, at: u64, len: u32) {
        let op = SendOp::Read { remote_addr: self.regions[1].addr + at, rkey: self.regions[1].key };
        self.post(qp, wr_id, op, at, len);
    }

    pub fn write(&mut self, qp: QpId, wr_id: u64, at: u64, len: u32) {
        let op = SendOp::Write { remote_addr: self.regions[1].addr + at, rkey: self.regions[1].key };
        self.post(qp, wr_id, op, at, len);
    }

    pub fn post(&mut self, qp: QpId, wr_id: u64, op: SendOp, at: u64, len: u32) {
        let sges = [self.regions[0].sge(at, len)];
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&sges) };
        self.sim.post_send(qp, &wr).expect("room in the send queue");
    }

    pub fn run(&mut self) {
        self.sim.run(&mut self.notes);
    }
}

/// 1 MiB in which all words differ.
pub fn numbers() -> Vec<u8> {
    (0..1u32 << 18).flat_map(|n| (n ^ 0x5a5a_0000).to_le_bytes()).collect()
}

pub const fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}
