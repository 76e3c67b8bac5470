//! Two hosts with a switch between them, which send as many packets as their links carry.

use super::single_run::{Run, progress};
use anyhow::{Result, ensure};
use std::sync::Arc;
use std::time::Instant;
use weir_sim::{App, Backing, Done, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Profile, SendFlags, SendOp, SendWr, Status};

const QPS: u64 = 16;
const SIZE: u32 = 1 << 20;
/// Events between two updates of the progress bar.
const EVENTS: u64 = 1 << 18;

/// Keeps two WRITEs outstanding on each QP.
struct Stream {
    from: Region,
    to: Region,
    left: u64,
    done: u64,
    good: bool,
}

/// Runs `messages` WRITEs; the figure is packets per second.
pub fn run(messages: u64) -> Result<Run> {
    let profile = Arc::new(Profile::ideal());
    let mut sim = Simulation::new(1);
    let hosts = [(); 2].map(|()| sim.add_host(&profile));
    let switch = sim.add_switch(1 << 20);
    for host in hosts {
        sim.link(host, switch, Link::ethernet(100.0));
    }
    let [from, to] = hosts.map(|host| sim.register(host, Backing::Phantom(SIZE.into()), Paging::Pinned));
    let mut stream = Stream { from, to, left: messages, done: 0, good: true };
    let bar = progress("sim-packets", messages);
    let begun = Instant::now();
    for _ in 0..QPS {
        let [qp, _] = sim.connect(hosts[0], hosts[1], &QpSetup::default());
        (0..2).for_each(|_| stream.post(&mut sim, qp));
    }
    while sim.run_events(EVENTS, &mut stream) {
        bar.set_position(stream.done);
    }
    let time = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let total = sim.total();
    ensure!(stream.good && stream.done == messages, "{} of {messages} WRITEs were done", stream.done);
    ensure!(total.arrived == total.sent(), "packets were lost: {total:?}");
    let virtual_time = sim.now().0 as f64 / 1e9;
    let note = format!("{} packets, {virtual_time:.2} s of virtual time, in {time:.2} s", total.sent());
    Ok(Run { figure: total.sent() as f64 / time, note })
}

impl Stream {
    fn post(&mut self, sim: &mut Simulation, qp: QpId) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let op = SendOp::Write { remote_addr: self.to.addr, rkey: self.to.key };
        let data = [self.from.sge(0, SIZE)];
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
        self.good &= sim.post_send(qp, &wr).is_ok();
    }
}

impl App for Stream {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        self.good &= done.completion.status == Status::Success;
        self.done += 1;
        self.post(sim, done.qp);
    }
}
