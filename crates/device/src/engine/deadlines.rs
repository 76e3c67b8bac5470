//! What is due: retransmissions, lazy ACKs, hellos, delayed datagrams, the ends of retired QPs.
//!
//! This process may have been off its core for longer than it meant to wait. What it waited for then lies in its
//! sockets, so these are emptied before anybody is found to have been silent.

use crate::adapter::Adapter;
use crate::clock;
use crate::engine::Engine;
use crate::engine::faulted::PAGES;
use crate::engine::host::QpHost;
use weir_link::SILENT_CALLS;
use weir_transport::{Instant, Side};

/// Receives before a judgement, at most: some socket buffers full of the shortest packets.
const CATCH_UP: usize = 4096;

impl Engine {
    /// Does what is due by `now`. Returns the time, which may have gone on.
    pub(super) fn handle_deadlines(&mut self, adapter: &Adapter, now: Instant) -> Instant {
        let mut caught_up = false;
        while let Some(index) = self.timers.pop_due(now.0) {
            if index == PAGES {
                self.go_on(adapter, now);
            } else {
                self.expire(adapter, index, now, &mut caught_up);
            }
        }
        if self.carrier.due().is_some_and(|due| due <= now.0) {
            let _ = self.carrier.flush_due(now.0);
        }
        adapter.moderated.fire(now.0);
        if !caught_up && self.peers.next_attempt().is_some_and(|due| due <= now.0) {
            self.catch_up(adapter, now);
            caught_up = true;
        }
        // What is sent now is waited for from now on.
        let now = if caught_up { clock::now() } else { now };
        self.greet(now);
        self.foreign_turn(adapter, now);
        now
    }

    /// Does what was due before pages came (late): an RNR NAK that was to go out before them goes out.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_earlier(&mut self, adapter: &Adapter, now: Instant) {
        let mut caught_up = false;
        while let Some(index) = self.timers.pop_due(now.0) {
            self.expire(adapter, index, now, &mut caught_up);
        }
        self.transmit(adapter, now);
    }

    /// A QP's deadline is over.
    fn expire(&mut self, adapter: &Adapter, index: u16, now: Instant, caught_up: &mut bool) {
        let Some(entry) = self.table.get_mut(index) else { return };
        entry.deadline = u64::MAX;
        if entry.retired.is_some_and(|until| until <= now) {
            self.forget(index);
            return;
        }
        let shared = entry.shared.clone();
        let mut protocol = shared.lock();
        if protocol.is_overdue(now) && !*caught_up {
            drop(protocol);
            self.catch_up(adapter, now);
            *caught_up = true;
            protocol = shared.lock();
        }
        if protocol.poll_timeout().is_some_and(|due| due <= now) {
            let (cached, done, side) = (&mut self.cached, Some(&mut self.done), Side::Requester);
            let mut host = QpHost { shared: &shared, regions: &adapter.regions, cached, done, side };
            protocol.handle_timeout(now, &mut host);
        }
        self.after(index, &mut protocol);
        drop(protocol);
        self.table_timer(index);
    }

    /// Takes in all that has come.
    #[cold]
    fn catch_up(&mut self, adapter: &Adapter, now: Instant) {
        let mut empty = 0;
        for _ in 0..CATCH_UP {
            empty = if self.receive(adapter, now) == 0 { empty + 1 } else { 0 };
            // Each of the sockets has been looked at.
            if empty > SILENT_CALLS {
                break;
            }
        }
    }

    /// Lets a QP's number go.
    fn forget(&mut self, index: u16) {
        if let Some(num) = self.table.get_mut(index).map(|entry| entry.shared.num) {
            self.disconnect(num);
        }
        self.table.remove(index);
        self.shown.qps.set(self.table.len() as u64);
    }

    /// A retired QP's number is needed.
    pub(super) fn give_way(&mut self, index: u16) {
        self.forget(index);
        // Another QP will have that index: it must not stand in a list twice.
        self.ready.retain(|ready| *ready != index);
        self.lazy.retain(|lazy| *lazy != index);
    }

    /// A retired QP is forgotten by a deadline of its own.
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
    use crate::engine::Turn;
    use crate::{Context, Cq, Qp, QpCreate, Receives};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use weir_transport::*;

    /// Sends nothing to nowhere, which the peer acknowledges, and says so to the adapter.
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

    #[test]
    fn an_answer_that_waits_in_the_socket_is_no_silence() {
        let context = Context::open("weir_lo").unwrap();
        let cq = context.create_cq(8, None, 0).unwrap();
        let qps = pair(&context, &cq);
        post(&qps[0], 1);
        assert_eq!(ended(&cq), (1, Status::Success));
        // Each time that this process has its core it posts, and is away again for longer than an answer is waited for.
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
