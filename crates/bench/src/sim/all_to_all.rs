//! All-to-all, as MPI libraries do it with large messages: in rounds, each a shifted permutation. In round k host i
//! WRITEs to host i + k, and begins the next round when that WRITE is acknowledged; there is no barrier. Each pair of
//! QPs is created for its message and destroyed after it.
//!
//! All hosts are connected to one switch by links of 100 Gbit/s, with 1 MiB of buffer at each output. Hosts drift
//! apart, so several may send to the same host at a time; packets that find the buffer full are lost and retransmitted.

use super::single_run::{Run, progress};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::sync::Arc;
use std::time::Instant;
use weir_sim::{App, Backing, Done, HostId, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Profile, QpCaps, SendFlags, SendOp, SendWr, Status};

const BUFFER: u64 = 1 << 20;
/// Events between two updates of the progress bar.
const EVENTS: u64 = 1 << 20;

struct AllToAll {
    hosts: u32,
    size: u32,
    regions: Vec<Region>,
    /// The current round and the pair of QPs of each host.
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
    // A slot for each host, to send from and to receive into.
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
    /// Makes a host send its message of a round.
    fn begin(&mut self, sim: &mut Simulation, host: HostId, round: u32) -> [QpId; 2] {
        self.rounds[host.0 as usize] = round;
        let peer = HostId((host.0 + round) % self.hosts);
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 0, max_inline_data: 0 };
        let pair = sim.connect(host, peer, &QpSetup { caps, timeout: 8, ..QpSetup::default() });
        let (from, to) = (&self.regions[host.0 as usize], &self.regions[peer.0 as usize]);
        let offset = |of: HostId| u64::from(of.0) * u64::from(self.size);
        let op = SendOp::Write { remote_addr: to.addr + offset(host), rkey: to.key };
        let data = [from.sge(offset(peer), self.size)];
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

/// Peak resident memory of this process, bytes.
fn peak_memory() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("VmHWM")?;
    Ok(kib << 10)
}
