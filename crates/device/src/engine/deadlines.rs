//! Due work: retransmissions, delayed ACKs, hellos, delayed datagrams, the removal of retired QPs.
//!
//! This process may have been off its core for longer than its timeouts. Packets that it waited for are then in its
//! sockets, so these are emptied before any peer is found to have been silent.

use crate::engine::faulted::PAGES;
use crate::engine::host::QpHost;
use crate::engine::table::{Entry, Removed};
use crate::engine::{Engine, Turn};
use crate::os::clock;
use crate::pace::ThreadTasks;
use crate::shared::state::AdapterState;
use weir_transport::{Instant, Side};

/// The most receives before a timeout is handled: several socket buffers full of the shortest packets.
const CATCH_UP: usize = 4096;
/// The same for messages of the holder of port 4791: its connections have room for some 2,000 of the shortest.
const HANDED_OVER: usize = 280;
/// The sockets that packets of connected QPs come by: those of the slot, one of them connected, and that of port 4791.
const SOCKETS: usize = 3;

impl Engine {
    /// Does what is due by `now`. Returns the current time, which may be later.
    pub(super) fn handle_deadlines(&mut self, adapter: &AdapterState, now: Instant) -> Instant {
        let mut caught_up = false;
        while let Some(index) = self.timers.pop_due(now.0) {
            if index == PAGES {
                self.continue_resolved(adapter, now);
            } else {
                self.expire(adapter, index, now, &mut caught_up);
            }
        }
        if self.carrier.due().is_some_and(|due| due <= now.0) {
            let _ = self.carrier.flush_due(now.0);
        }
        adapter.cqs.moderated.fire(|cq| cq.moderation_due(now.0), now.0);
        if !caught_up && self.peers.next_attempt().is_some_and(|due| due <= now.0) {
            self.catch_up(adapter, now, usize::MAX);
            caught_up = true;
        }
        // The timeouts of what is sent now begin now.
        let now = if caught_up { clock::now() } else { now };
        self.send_due_hellos(adapter, now);
        self.foreign_turn(adapter, now);
        now
    }

    /// Handles deadlines that are earlier than the resolution of late pages, so that an earlier RNR NAK leaves first.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_earlier(&mut self, adapter: &AdapterState, now: Instant) {
        let mut caught_up = false;
        while let Some(index) = self.timers.pop_due(now.0) {
            self.expire(adapter, index, now, &mut caught_up);
        }
        self.transmit(adapter, now);
    }

    /// A QP's deadline has passed.
    fn expire(&mut self, adapter: &AdapterState, index: u16, now: Instant, caught_up: &mut bool) {
        let Some(entry) = self.table.get_mut(index) else { return };
        entry.deadline = u64::MAX;
        if entry.retired.is_some_and(|until| until <= now) {
            // The turn does not free it.
            if let Some(entry) = self.forget(index)
                && self.table.free_later(entry)
            {
                adapter.pace.ask_thread(ThreadTasks::REMOVED_QPS);
            }
            return;
        }
        let shared = entry.shared.clone();
        let mut protocol = shared.lock();
        if protocol.is_overdue(now) && !*caught_up {
            drop(protocol);
            self.catch_up(adapter, now, usize::MAX);
            *caught_up = true;
            protocol = shared.lock();
        }
        if protocol.poll_timeout().is_some_and(|due| due <= now) {
            let mut host =
                QpHost::in_turn(Side::Requester, &shared, &adapter.regions, &mut self.cached, &mut self.completions);
            protocol.handle_timeout(now, &mut host);
        }
        self.after(index, &mut protocol);
        drop(protocol);
        self.table_timer(index);
    }

    /// Handles what has come to this process by now, also where a turn looks seldom. Of what comes meanwhile it takes no
    /// more than the sockets have room for.
    pub fn take_packets(&mut self, adapter: &AdapterState) {
        let now = clock::now();
        self.catch_up(adapter, now, SOCKETS * self.peers.receive_buffer());
        self.turn(adapter, Turn::LOOK);
        // A turn that finds nothing more leaves early if the program polls.
        self.publish_completions(adapter);
    }

    /// Handles everything that is in the sockets. Stops after that many bytes of packets, and after that many of
    /// handed-over messages.
    #[cold]
    pub(super) fn catch_up(&mut self, adapter: &AdapterState, now: Instant, bytes: usize) {
        self.empty_rings(adapter, now);
        let mut rest = bytes;
        for _ in 0..CATCH_UP {
            // Each hello catches up: where many QPs connect, looks at empty sockets would cost more than all else.
            self.carrier.look_everywhere();
            if self.receive(adapter, now) == 0 {
                break;
            }
            let came: usize = self.inbox.arrivals.iter().map(|arrival| arrival.len).sum();
            rest = rest.saturating_sub(came);
            if rest == 0 {
                break;
            }
        }
        let mut rest = bytes;
        for _ in 0..HANDED_OVER {
            let taken = self.receive_handed_over(adapter, now);
            rest = rest.saturating_sub(taken.bytes);
            if taken.count == 0 || rest == 0 {
                break;
            }
        }
    }

    /// Removes a QP, so that its number is free.
    fn forget(&mut self, index: u16) -> Option<Box<Entry>> {
        if let Some(num) = self.table.get_mut(index).map(|entry| entry.shared.num) {
            self.disconnect(num);
        }
        self.stop_waiting(index);
        let entry = self.table.remove(index);
        self.shown.qps.set(self.table.len() as u64);
        entry
    }

    /// The QPs that were removed since the last call. The caller frees them.
    pub fn take_removed(&mut self) -> Removed {
        self.table.take_removed()
    }

    /// Removes a retired QP to free its number.
    pub(super) fn evict_retired(&mut self, index: u16) {
        self.forget(index);
        // A new QP will have that index, and must not be in a list twice.
        self.ready.retain(|ready| *ready != index);
        self.delayed_acks.retain(|delayed| *delayed != index);
    }

    /// Sets the deadline at which a retired QP is removed.
    pub(super) fn table_timer(&mut self, index: u16) {
        if let Some(entry) = self.table.get_mut(index)
            && let Some(until) = entry.retired
            && until.0 < entry.deadline
        {
            entry.deadline = until.0;
            self.timers.set(until.0, index);
            self.next_due = self.next_due.min(until.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Icrc;
    use crate::engine::Turn;
    use crate::engine::peers::hello::MAGIC;
    use crate::engine::testing::{Rig, connected};
    use crate::{Context, Cq, Qp, QpCreate, Receives};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use weir_transport::*;

    /// Posts a WRITE of 0 bytes, which the peer acknowledges, and rings the doorbell.
    fn post(qp: &Qp, wr_id: u64) {
        let (op, flags, data) = (SendOp::Write { remote_addr: 0, rkey: 0 }, SendFlags::SIGNALED, Data::Inline(&[]));
        qp.post_send(&SendWr { wr_id, op, flags, data }).unwrap();
        qp.doorbell();
    }

    fn ended(cq: &Cq) -> (u64, Status) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut found = None;
        while found.is_none() && Instant::now() < until {
            cq.poll(1, |completion| found = Some((completion.wr_id, completion.status))).unwrap();
        }
        found.expect("a completion")
    }

    fn pair(context: &Arc<Context>, cq: &Arc<Cq>) -> [Arc<Qp>; 2] {
        let pd = context.alloc_pd().unwrap();
        let caps = QpCaps { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let create = QpCreate { service: Service::Rc, caps, sq_sig_all: true, cookie: 0 };
        let qps = [(); 2].map(|()| pd.create_qp_with(&create, cq, cq, Receives::Own).unwrap());
        let here = AddressVector {
            dgid: std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            sgid_index: 1,
            is_global: true,
            port_num: 1,
            ..AddressVector::default()
        };
        for (qp, other) in [(&qps[0], &qps[1]), (&qps[1], &qps[0])] {
            let attr = QpAttr {
                port_num: 1,
                access_flags: Access::REMOTE_WRITE,
                ah_attr: here,
                path_mtu: Mtu::M1024,
                dest_qp_num: other.num(),
                timeout: 1,
                retry_cnt: 2,
                ..QpAttr::default()
            };
            let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            let rtr = AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::MIN_RNR_TIMER;
            let rts = AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::SQ_PSN
                | AttrMask::MAX_QP_RD_ATOMIC;
            for (state, mask) in [(QpState::Init, init), (QpState::Rtr, rtr), (QpState::Rts, rts)] {
                qp.modify(&QpAttr { qp_state: state, ..attr }, mask | AttrMask::STATE).unwrap();
            }
        }
        qps
    }

    /// What an engine has sent arrives at the other.
    fn deliver(from: &Rig, to: &Rig) {
        for sent in from.take_sent() {
            to.arrive((from.address, from.port).into(), to.address, sent.to.port(), &sent.datagrams);
        }
    }

    #[test]
    fn packets_are_taken_where_a_turn_looks_seldom() {
        let (mut here, mut there) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
        let qps = connected(&mut here, &mut there, Service::Rc);
        here.post_recv(&qps[0], 7, &[]);
        there.post_send(&qps[1], 1, SendOp::Send, Data::Inline(&[]));
        there.turn();
        here.wire().looks_after = 64;
        deliver(&there, &here);
        here.engine.take_packets(&here.state);
        assert_eq!(here.completions().iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn the_completion_of_an_ack_that_is_taken_while_the_program_polls_is_there_at_once() {
        let (mut here, mut there) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
        let qps = connected(&mut here, &mut there, Service::Rc);
        there.post_recv(&qps[1], 1, &[]);
        here.post_send(&qps[0], 7, SendOp::Send, Data::Inline(&[]));
        here.turn();
        deliver(&here, &there);
        there.turn();
        deliver(&there, &here);
        while !here.state.pace.program_polls() {
            here.state.pace.polled(true, Some(false));
        }
        here.engine.take_packets(&here.state);
        assert_eq!(here.completions().iter().map(|completion| completion.wr_id).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn the_hello_of_a_new_connection_costs_few_looks_at_empty_sockets() {
        let (mut here, mut there) = (Rig::new(5, Icrc::Auto), Rig::new(6, Icrc::Auto));
        connected(&mut here, &mut there, Service::Rc);
        for _ in 0..100 {
            here.turn();
        }
        let qps = [here.add_qp(Service::Rc), there.add_qp(Service::Rc)];
        here.take_bursts();
        here.wire().receives = 0;
        here.connect(&qps[0], there.address, qps[1].num);
        here.turn();
        assert!(here.wire().has_sent(&MAGIC), "it asks for the new QP's proof");
        assert!(here.wire().receives <= 4, "{} looks", here.wire().receives);
    }

    #[test]
    fn an_ack_that_waits_in_the_socket_prevents_a_timeout() {
        let context = Context::open("weir_lo").unwrap();
        let cq = context.create_cq(8, None, 0).unwrap();
        let qps = pair(&context, &cq);
        post(&qps[0], 1);
        assert_eq!(ended(&cq), (1, Status::Success));
        // Each time that this process gets its core it posts, and then loses it for longer than the ACK timeout.
        let adapter = &context.adapter;
        adapter.with_engine(|engine| {
            post(&qps[0], 2);
            for _ in 0..12 {
                engine.turn(adapter, Turn::SEND);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(ended(&cq), (2, Status::Success));
    }
}
