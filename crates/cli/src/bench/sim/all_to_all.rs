//! Everybody sends to everybody, as MPI libraries do it with large messages: in rounds, each a shifted permutation. In
//! round k host i WRITEs to host i + k, and goes on to the next round when that is acknowledged; nobody waits for the
//! others. Each pair of QPs is made for its message and taken away after it.
//!
//! The hosts stand around one switch, by links of 100 Gbit/s, with 1 MiB of buffer before each output. Hosts drift apart,
//! so several may send to one at a time, and what finds the buffer full is lost and sent again.

use super::{Run, progress};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::sync::Arc;
use std::time::Instant;
use weir_sim::{App, Backing, Done, HostId, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Profile, QpCaps, SendFlags, SendOp, SendWr, Status};

const BUFFER: u64 = 1 << 20;
/// Between two looks at the progress.
const EVENTS: u64 = 1 << 20;

struct AllToAll {
    hosts: u32,
    size: u32,
    regions: Vec<Region>,
    /// By host: the round that it is in, and its pair of QPs.
    rounds: Vec<u32>,
    pairs: Vec<[QpId; 2]>,
    done: u64,
    good: bool,
}

/// The figure is the peak of this process's resident memory, bytes.
pub fn run(hosts: u32, size: u32) -> Result<Run> {
    let begun = Instant::now();
    let profile = Arc::new(Profile::ideal());
    let mut sim = Simulation::new(1);
    let switch = sim.add_switch(BUFFER);
    let ids: Vec<HostId> = (0..hosts).map(|_| sim.add_host(&profile)).collect();
    ids.iter().for_each(|&host| sim.link(host, switch, Link::ethernet(100.0)));
    // A place for each other host, to send from and to receive into.
    let bytes = u64::from(hosts) * u64::from(size);
    let regions = ids.iter().map(|&host| sim.register(host, Backing::Phantom(bytes), Paging::Pinned)).collect();
    let mut app =
        AllToAll { hosts, size, regions, rounds: vec![0; hosts as usize], pairs: vec![], done: 0, good: true };
    let first = ids.iter().map(|&host| app.begin(&mut sim, host, 1));
    let pairs = first.collect();
    app.pairs = pairs;

    let messages = u64::from(hosts) * u64::from(hosts - 1);
    let bar = progress("sim-all-to-all", messages);
    while sim.run_events(EVENTS, &mut app) {
        bar.set_position(app.done);
    }
    bar.finish_and_clear();
    let time = begun.elapsed().as_secs_f64();
    ensure!(app.good && app.done == messages, "{} of {messages} WRITEs were done", app.done);
    let total = sim.total();
    let virtual_time = sim.now().0 as f64 / 1e6;
    let note = format!(
        "{messages} messages in {virtual_time:.1} ms of virtual time and {time:.1} s; {} packets ({:.2} M/s), {} lost in \
         the switch",
        total.sent(),
        total.sent() as f64 / time / 1e6,
        total.lost_in_buffers,
    );
    Ok(Run { figure: peak_memory()? as f64, note })
}

impl AllToAll {
    /// Lets a host send its message of a round.
    fn begin(&mut self, sim: &mut Simulation, host: HostId, round: u32) -> [QpId; 2] {
        self.rounds[host.0 as usize] = round;
        let peer = HostId((host.0 + round) % self.hosts);
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let pair = sim.connect(host, peer, &QpSetup { caps, timeout: 8, ..QpSetup::default() });
        let (from, to) = (&self.regions[host.0 as usize], &self.regions[peer.0 as usize]);
        let place = |of: HostId| u64::from(of.0) * u64::from(self.size);
        let op = SendOp::Write { remote_addr: to.addr + place(host), rkey: to.key };
        let data = [from.sge(place(peer), self.size)];
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
        self.good &= sim.post_send(pair[0], &wr).is_ok();
        pair
    }
}

impl App for AllToAll {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        self.good &= done.completion.status == Status::Success;
        self.done += 1;
        let host = done.qp.host;
        self.pairs[host.0 as usize].into_iter().for_each(|qp| sim.destroy(qp));
        let round = self.rounds[host.0 as usize] + 1;
        if round < self.hosts {
            self.pairs[host.0 as usize] = self.begin(sim, host, round);
        }
    }
}

/// Of this process, bytes.
fn peak_memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmHWM")?;
    Ok(kib << 10)
}
