//! Many hosts and many QPs, some of which are destroyed and created during the run.

mod common;

use std::sync::Arc;
use weir_sim::{App, Backing, Done, HostId, Link, Paging, QpId, QpSetup, Region, Simulation};
use weir_transport::{Data, Profile, SendFlags, SendOp, SendWr, Status};

/// Each host READs from the other hosts in turn, over a new QP each time.
struct Round {
    hosts: u32,
    regions: Vec<Region>,
    at: Vec<(u32, [QpId; 2])>,
    done: u32,
}

const BLOCK: u32 = 3000;

impl Round {
    fn begin(&mut self, sim: &mut Simulation, host: HostId, step: u32) -> (u32, [QpId; 2]) {
        let peer = HostId((host.0 + step) % self.hosts);
        let pair = sim.connect(host, peer, &QpSetup { timeout: 8, ..QpSetup::default() });
        let (to, from) = (&self.regions[host.0 as usize], &self.regions[peer.0 as usize]);
        let op = SendOp::Read { remote_addr: from.addr, rkey: from.key };
        let sges = [to.sge(u64::from(step * BLOCK), BLOCK)];
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, data: Data::Gather(&sges) };
        sim.post_send(pair[0], &wr).expect("an empty queue");
        (step, pair)
    }
}

impl App for Round {
    fn completed(&mut self, sim: &mut Simulation, done: &Done) {
        assert_eq!(done.completion.status, Status::Success);
        self.done += 1;
        let host = done.qp.host;
        let (step, pair) = self.at[host.0 as usize];
        pair.into_iter().for_each(|qp| sim.destroy(qp));
        if step + 1 < self.hosts {
            self.at[host.0 as usize] = self.begin(sim, host, step + 1);
        }
    }
}

#[test]
fn sixty_hosts_read_from_each_other() {
    let hosts = 60;
    let mut sim = Simulation::new(1);
    let profile = Arc::new(Profile::ideal());
    let ids: Vec<HostId> = (0..hosts).map(|_| sim.add_host(&profile)).collect();
    // Six leaves under two spines, with lossy links.
    let spines = [(); 2].map(|()| sim.add_switch(1 << 18));
    for leaf in ids.chunks(10) {
        let switch = sim.add_switch(1 << 18);
        leaf.iter().for_each(|&host| sim.link(host, switch, Link::ethernet(25.0).lossy(0.001)));
        spines.iter().for_each(|&spine| sim.link(switch, spine, Link::ethernet(100.0)));
    }
    let regions = ids.iter().map(|&host| {
        // The first block is the host's own.
        let bytes = (0..hosts * BLOCK).map(|n| if n < BLOCK { host.0 as u8 + 1 } else { 0 }).collect();
        sim.register(host, Backing::Bytes(bytes), Paging::OnDemand)
    });
    let mut app = Round { hosts, regions: regions.collect(), at: vec![], done: 0 };
    app.at = ids.iter().map(|&host| app.begin(&mut sim, host, 1)).collect();
    sim.run(&mut app);
    assert_eq!(app.done, hosts * (hosts - 1));
    let total = sim.total();
    assert!(total.lost_on_links > 0 && total.repeated > 0, "{total:?}");
    for host in &ids {
        let region = app.regions[host.0 as usize];
        for (step, block) in sim.bytes(&region).chunks(BLOCK as usize).enumerate() {
            let from = (host.0 + step as u32) % hosts;
            assert!(block.iter().all(|&byte| byte == from as u8 + 1), "{host:?} from {from}");
        }
    }
}

#[test]
fn reads_of_four_thousand_qps_complete() {
    let mut two = common::Two::new(1, Link::FDR, Profile::ideal(), [Paging::OnDemand; 2]);
    let caps = weir_transport::QpCaps { max_send_wr: 2, ..QpSetup::default().caps };
    for n in 0..4000 {
        let qp = two.connect(&QpSetup { caps, timeout: 16, ..QpSetup::default() });
        two.read(qp, n, n * 200, 200);
        two.write(qp, 4000 + n, n * 200, 200);
    }
    two.run();
    assert_eq!(two.notes.0.len(), 8000);
    assert!(two.notes.0.iter().all(|note| note.2 == Status::Success));
    let region = two.regions[0];
    assert!(two.sim.bytes(&region)[..800_000] == common::numbers()[..800_000]);
}
