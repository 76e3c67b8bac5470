//! Late, repeated, damaged and marked packets, and what adapters report.

mod common;

use common::{Two, micros};
use std::cell::RefCell;
use std::rc::Rc;
use weir_sim::{Backing, Disorder, Incident, Link, Loss, PacketEvent, Paging, QpSetup, Simulation};
use weir_transport::{Data, Profile, SendFlags, SendOp, SendWr, Status};

/// 64 WRITEs over a link with this disorder: all packet events and incidents.
fn writes(disorder: Disorder) -> (Vec<(u64, PacketEvent)>, Vec<Incident>) {
    let link = Link { disorder, ..Link::FDR };
    let mut two = Two::new(5, link, Profile::ideal(), [Paging::Pinned; 2]);
    let (seen, incidents) = (Rc::new(RefCell::new(vec![])), Rc::new(RefCell::new(vec![])));
    let (packets, adapters) = (seen.clone(), incidents.clone());
    two.sim.observe(move |seen| packets.borrow_mut().push((seen.packet, seen.event)));
    two.sim.observe_adapters(move |_, incident| adapters.borrow_mut().push(incident));
    let qp = two.connect(&QpSetup { timeout: 1, ..QpSetup::default() });
    (0..64).for_each(|n| two.write(qp, n, n * 4096, 4096));
    two.run();
    assert!(two.notes.0.len() == 64 && two.notes.0.iter().all(|note| note.2 == Status::Success));
    (seen.take(), incidents.take())
}

#[test]
fn packets_come_late() {
    let (seen, incidents) = writes(Disorder { late: 0.2, by: micros(5), ..Disorder::NONE });
    let arrived: Vec<u64> = seen.iter().filter(|(_, e)| *e == PacketEvent::Arrived).map(|(id, _)| *id).collect();
    assert!(!arrived.is_sorted());
    assert!(incidents.iter().any(|incident| matches!(incident, Incident::SequenceNak { .. })), "{incidents:?}");
}

#[test]
fn packets_come_twice() {
    let (seen, incidents) = writes(Disorder { twice: 0.5, by: micros(1), ..Disorder::NONE });
    let arrived = seen.iter().filter(|(_, e)| *e == PacketEvent::Arrived).count();
    let sent = seen.iter().filter(|(_, e)| matches!(e, PacketEvent::Sent { .. })).count();
    assert!(arrived > sent + sent / 4, "{arrived} of {sent}");
    assert_eq!(incidents, []);
}

#[test]
fn damaged_packets_are_dropped_where_they_arrive() {
    let (seen, _) = writes(Disorder { damaged: 0.2, ..Disorder::NONE });
    assert!(seen.iter().any(|(_, event)| *event == PacketEvent::Lost(Loss::Damage)));
}

#[test]
fn a_switch_marks_packets_that_wait_behind_others() {
    for (limit, marks) in [(1 << 30, false), (10_000, true)] {
        let mut sim = Simulation::new(1);
        let profile = std::sync::Arc::new(Profile::ideal());
        let hosts = [(); 3].map(|()| sim.add_host(&profile));
        let switch = sim.add_switch(1 << 30);
        sim.mark_above(switch, limit);
        hosts.iter().for_each(|host| sim.link(*host, switch, Link::FDR));
        let marked = Rc::new(RefCell::new(0));
        let count = marked.clone();
        sim.observe(move |seen| *count.borrow_mut() += u32::from(seen.marked));
        let far = sim.register(hosts[2], Backing::Phantom(1 << 20), Paging::Pinned);
        for host in [hosts[0], hosts[1]] {
            let near = sim.register(host, Backing::Phantom(1 << 20), Paging::Pinned);
            let [qp, _] = sim.connect(host, hosts[2], &QpSetup::default());
            let (op, data) = (SendOp::Write { remote_addr: far.addr, rkey: far.key }, [near.sge(0, 1 << 20)]);
            let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, data: Data::Gather(&data) };
            sim.post_send(qp, &wr).expect("room in the send queue");
        }
        sim.run(&mut weir_sim::NullApp);
        assert_eq!(*marked.borrow() > 0, marks);
    }
}

#[test]
fn adapters_report_why_they_were_not_ready_and_what_they_dropped() {
    let profile = weir_profiles::load("connectx4").expect("an embedded profile");
    for side in [0, 1] {
        let mut paging = [Paging::Pinned; 2];
        paging[side] = Paging::OnDemand;
        let mut two = Two::new(1, Link::FDR, profile.clone(), paging);
        let incidents = Rc::new(RefCell::new(vec![]));
        let adapters = incidents.clone();
        two.sim.observe_adapters(move |_, incident| adapters.borrow_mut().push(incident));
        let qp = two.connect(&QpSetup::default());
        two.read(qp, 1, 0, 100);
        two.run();
        let incidents = incidents.take();
        let is = |incident: &Incident| match incident {
            Incident::Dropped { page: true, .. } => side == 0,
            Incident::NotReady { page: true, .. } => side == 1,
            _ => false,
        };
        assert!(incidents.iter().any(is), "{incidents:?}");
        assert!(incidents.iter().any(|incident| matches!(incident, Incident::PageCame { .. })), "{incidents:?}");
    }
}
