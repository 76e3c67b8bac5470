//! QPs that a program has connected to hostile peers.

use super::world::{World, hostile_address};
use crate::engine::testing::FIRST_PSN;
use crate::shared::qp::QpShared;
use std::sync::Arc;
use weir_transport::{AttrMask, Data, QpAttr, QpState, RecvWr, SendFlags, SendOp, SendWr, Service, Sge};
use weir_trials::Input;

/// The Q_Key of datagrams.
pub const QKEY: u32 = 0x1111;
/// The most such QPs.
const MOST: usize = 6;
/// The most open requests of one.
const OPEN: usize = 40;
/// A number of no slot: its adapter is foreign.
const FOREIGN: u32 = 17;

/// The number of the QP at the other end: of a Weir process of slot 7, or of a foreign adapter.
pub fn far_qp(n: usize) -> u32 {
    if n.is_multiple_of(2) { 7 << 14 | (n as u32 + 1) } else { FOREIGN + n as u32 }
}

/// Some QPs of each service.
pub fn qps(world: &mut World) {
    for service in [Service::Rc, Service::Rc, Service::Ud, Service::Uc] {
        add(world, service);
        let qp = world.hostile.last().expect("it was added").clone();
        (0..4).for_each(|_| receive(world, &qp, 256));
    }
}

/// A QP comes, changes or goes.
pub fn qp(world: &mut World, input: &mut Input<'_>) {
    let what = input.byte();
    let service = [Service::Rc, Service::Rc, Service::Uc, Service::Ud][usize::from(what >> 4 & 3)];
    if world.hostile.is_empty() || what & 3 == 0 {
        if world.hostile.len() < MOST {
            add(world, service);
        }
        return;
    }
    let n = input.below(world.hostile.len());
    let qp = world.hostile[n].clone();
    match what & 15 {
        1 | 5 => {
            world.hostile.remove(n);
            world.carry();
            let rig = &mut world.rigs[0];
            rig.engine.remove_qp(&rig.state, qp.num, Arc::new(()));
            world.carry();
            world.posted.remove(&qp.num);
        }
        2 => change(world, &qp, QpState::Error),
        3 => change(world, &qp, QpState::Sqd),
        6 => change(world, &qp, QpState::Rts),
        7 => {
            world.carry();
            change(world, &qp, QpState::Reset);
            world.rigs[0].engine.rest(qp.num);
            // What had not completed does not any more.
            world.carry();
            world.posted.remove(&qp.num);
            connect(world, &qp, n);
        }
        _ => receive(world, &qp, u32::from(input.byte()) * 16),
    }
}

/// A request of such a QP.
pub fn post(world: &mut World, input: &mut Input<'_>) {
    if world.hostile.is_empty() {
        return;
    }
    let qp = world.hostile[input.below(world.hostile.len())].clone();
    let what = input.byte();
    if what & 1 == 0 {
        return receive(world, &qp, u32::from(input.byte()) * 16);
    }
    let (remote_addr, rkey) = (world.open.addr, 5);
    let op = match what >> 1 & 3 {
        0 => SendOp::Send,
        1 => SendOp::Read { remote_addr, rkey },
        2 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
        _ => SendOp::Write { remote_addr, rkey },
    };
    let length = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { u32::from(input.byte()) * 20 };
    let sge = Sge { length, ..world.open };
    let Some(wr_id) = number(world, &qp) else { return };
    let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, data: Data::Gather(&[sge]) };
    if qp.lock().post_send(&wr).is_err() {
        world.posted.entry(qp.num).or_default().remove(&wr_id);
        return;
    }
    let rig = &mut world.rigs[0];
    rig.state.doorbells.ring(&qp.bell, qp.num);
    rig.turn();
}

fn receive(world: &mut World, qp: &Arc<QpShared>, length: u32) {
    let Some(wr_id) = number(world, qp) else { return };
    let sge = Sge { length, ..world.open };
    if qp.lock().post_recv(&RecvWr { wr_id, sges: &[sge] }).is_err() {
        world.posted.entry(qp.num).or_default().remove(&wr_id);
    }
    // A QP in ERR completes it at once.
    let rig = &mut world.rigs[0];
    rig.state.doorbells.ring(&qp.bell, qp.num);
    rig.turn();
}

/// The number of a new request, if the QP has few.
fn number(world: &mut World, qp: &QpShared) -> Option<u64> {
    let posted = world.posted.entry(qp.num).or_default();
    if posted.len() >= OPEN {
        return None;
    }
    world.next_id += 1;
    posted.insert(world.next_id);
    Some(world.next_id)
}

fn add(world: &mut World, service: Service) {
    let n = world.hostile.len();
    let qp = world.rigs[0].add_qp(service);
    world.hostile.push(qp.clone());
    connect(world, &qp, n);
}

fn connect(world: &mut World, qp: &Arc<QpShared>, n: usize) {
    let rig = &mut world.rigs[0];
    if qp.service == Service::Ud {
        let attr = QpAttr { qkey: QKEY, sq_psn: weir_transport::Psn::new(FIRST_PSN), ..QpAttr::default() };
        rig.modify(qp, QpState::Init, &attr, AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY);
        rig.modify(qp, QpState::Rtr, &attr, AttrMask::empty());
        rig.modify(qp, QpState::Rts, &attr, AttrMask::SQ_PSN);
        return;
    }
    rig.connect(qp, hostile_address(n % 2), far_qp(n));
}

/// Changes a state, if there is such a transition.
fn change(world: &World, qp: &Arc<QpShared>, to: QpState) {
    use crate::engine::host::QpHost;
    use crate::memory::keys::Cached;
    use weir_transport::Side;
    let attr = QpAttr { qp_state: to, ..QpAttr::default() };
    let (regions, cached) = (&world.rigs[0].state.regions, &mut Cached::default());
    let mut host = QpHost { shared: qp, regions, cached, completions: None, side: Side::Requester };
    let _ = qp.lock().modify(crate::os::clock::now(), &attr, AttrMask::STATE, &mut host);
    world.rigs[0].state.doorbells.ring(&qp.bell, qp.num);
}
