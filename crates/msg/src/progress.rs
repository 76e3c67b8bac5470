//! What goes on: completions, room that has become free, and prefetches while the program waits.

use crate::counters::Counters;
use crate::endpoint::{Endpoint, Window};
use crate::event::Failure;
use crate::ids::{OpId, PeerId};
use crate::message::Message;
use crate::ops::{Op, Receive, ReceiveState, SendState};
use crate::peer::{Answer, State};
use crate::port::{ConnectionId, Port, Work};
use crate::post::{Body, Step};
use crate::queue::{Posted, SendQueue};
use crate::registrar::{Held, pages};
use crate::scheme::Moment;
use std::collections::BTreeSet;
use std::time::Duration;

/// So often is a connection probed.
const PROBES: Duration = Duration::from_secs(1);

impl Endpoint {
    /// A signalled request has completed, and with it all before it.
    pub fn sent(&mut self, port: &mut impl Port, now: Duration, connection: ConnectionId, number: u64) {
        self.calls(now);
        let Some(&peer) = self.connections.get(&connection) else { return };
        while let Some(posted) = self.peer_mut(peer).connected().and_then(|connected| connected.queue.pop(number)) {
            self.completed(port, posted);
        }
        self.wake(peer);
        self.step(port, now, peer);
    }

    /// A request has failed, and with it the connection. `denied`: the peer's memory does not permit it.
    pub fn send_failed(&mut self, port: &mut impl Port, connection: ConnectionId, number: u64, denied: bool) {
        let Some(&peer) = self.connections.get(&connection) else { return };
        if denied {
            // The requests before it have succeeded.
            while let Some(posted) = self.peer_mut(peer).connected().and_then(|connected| connected.queue.pop(number)) {
                let failed =
                    self.peer_mut(peer).connected().is_some_and(|connected| connected.queue.has_passed(number));
                match posted.op {
                    Some(op) if failed => {
                        self.free_slots.extend(posted.slot);
                        self.fail(port, op, Failure::Denied);
                    }
                    _ => self.completed(port, posted),
                }
            }
        }
        self.lost_peer(port, peer, Failure::Disconnected);
    }

    /// The program calls, and waits for something: brings in pages for data that may arrive at any time. To be called before
    /// completions are taken, because a program that has computed may have many of them.
    pub fn awaits(&mut self, port: &mut impl Port, now: Duration) {
        self.calls(now);
        if self.has_computed && self.settings.scheme.prefetches(Moment::WaitsAgain) {
            self.prefetch_stale(port, now, |op| match op {
                Op::Receive(Receive { state: ReceiveState::Matched(matched), .. }) if matched.granted => {
                    Some(&matched.held)
                }
                _ => None,
            });
        }
    }

    /// The program calls, and waits for something: goes on with all that has room again. `now` must be given, because a
    /// program that has not called for a while has computed.
    pub fn progress(&mut self, port: &mut impl Port, now: Duration) {
        self.calls(now);
        if std::mem::take(&mut self.has_computed) {
            self.waits_again(port, now);
        }
        self.waited = now;
        if now >= self.probed + PROBES {
            self.probed = now;
            self.probe_awaited(port);
        }
        while let Some(connection) = self.broken.pop() {
            self.lost(port, connection);
        }
        for peer in std::mem::take(&mut self.busy) {
            self.peer_mut(peer).busy = false;
            self.step(port, now, peer);
        }
    }

    /// Posts something, so that the end of all that has left is reported. For the time before [`Self::close`].
    pub fn flush(&mut self, port: &mut impl Port) {
        for at in 0..self.peers.len() {
            if let Some(connected) = self.peers[at].connected()
                && connected.queue.ends_unsignaled()
            {
                self.post_nothing(port, PeerId(at as u32));
            }
        }
    }

    /// Finds out whether a connection has ended: if nothing is on its way to the peer, something is sent.
    pub(crate) fn probe(&mut self, port: &mut impl Port, peer: PeerId) {
        let silent = |queue: &SendQueue| queue.is_empty() || queue.ends_unsignaled();
        if self.peer_mut(peer).connected().is_some_and(|connected| silent(&connected.queue)) {
            self.post_nothing(port, peer);
        }
    }

    /// Probes connections on which this side waits for the peer, which may have ended without a word.
    fn probe_awaited(&mut self, port: &mut impl Port) {
        let awaited: BTreeSet<PeerId> = self.awaited().collect();
        awaited.into_iter().for_each(|peer| self.probe(port, peer));
    }

    /// When connections are probed next, if this side waits for a connected peer.
    pub(crate) fn next_probe(&self) -> Option<Duration> {
        let is_connected = |peer: PeerId| matches!(self.peers[peer.0 as usize].state, State::Connected(_));
        self.awaited().any(is_connected).then_some(self.probed + PROBES)
    }

    /// Peers that this side waits for; each may come several times.
    fn awaited(&self) -> impl Iterator<Item = PeerId> + '_ {
        let of_ops = self.ops.iter().filter_map(|(_, op)| op.peer());
        of_ops.chain(self.tagged.senders()).chain(self.untagged.senders())
    }

    /// Posts a request that does nothing, so that its end is reported.
    fn post_nothing(&mut self, port: &mut impl Port, peer: PeerId) {
        if let Some(connected) = self.peer_mut(peer).connected()
            && connected.queue.has_room()
        {
            connected.queue.signal_next();
            let nothing = Work::WriteInline { bytes: &[], addr: 0, rkey: 0, immediate: None };
            self.post(port, peer, Posted::default(), nothing);
        }
    }

    /// Sends to a peer as much as there is room for, answers first.
    pub(crate) fn step(&mut self, port: &mut impl Port, now: Duration, id: PeerId) {
        if self.peers[id.0 as usize].wants_connection() {
            self.connect(port, now, id);
        }
        if self.peers[id.0 as usize].connected().is_none() {
            if self.peers[id.0 as usize].has_work() {
                self.wake(id);
            }
            return;
        }
        while let Some(mut answer) = self.peer_mut(id).answers.pop_front() {
            if self.step_answer(port, now, id, &mut answer) == Step::Blocked {
                self.peer_mut(id).answers.push_front(answer);
                break;
            }
        }
        while let Some(&op) = self.peer_mut(id).pending.front() {
            let step = match self.ops.get(op as usize) {
                Some(Op::Send(_)) => self.step_send(port, now, op),
                Some(Op::Rma(_)) => self.step_rma(port, now, op),
                Some(Op::Atomic(_)) => self.step_atomic(port, op),
                Some(Op::Receive(_)) | None => Step::Done,
            };
            if step == Step::Blocked {
                break;
            }
            self.peer_mut(id).pending.pop_front();
        }
        let peer = self.peer_mut(id);
        let tells = peer.connected().is_some_and(|connected| connected.flow.must_tell());
        // Answers tell it, too.
        let told = !tells
            || !peer.answers.is_empty()
            || self.post_message(port, id, Message::Credit, Body::NONE, None) == Step::Done;
        if !told || self.peers[id.0 as usize].has_work() {
            self.wake(id);
        }
    }

    fn step_answer(&mut self, port: &mut impl Port, now: Duration, to: PeerId, answer: &mut Answer) -> Step {
        match answer {
            Answer::Grant(receive) => self.step_grant(port, now, *receive),
            Answer::Finished(id) => self.post_message(port, to, Message::Finished { id: *id }, Body::NONE, None),
            Answer::Write { op, done } => self.step_write(port, *op, done),
            Answer::Payload { op, sent } => self.step_payload(port, *op, sent),
            Answer::Read { op, done } => self.step_read(port, now, *op, done),
            Answer::AtomicDone { id, refused, values } => {
                let message = Message::AtomicDone { id: *id, refused: *refused, payload: &[] };
                self.post_message(port, to, message, Body::Bytes(values), None)
            }
        }
    }

    /// A request has completed.
    fn completed(&mut self, port: &mut impl Port, posted: Posted) {
        let ended = posted.op.filter(|_| posted.last || posted.slot.is_some());
        match ended.and_then(|op| Some((op, self.ops.get(op as usize)?))) {
            Some((op, Op::Send(_))) => self.send_completed(port, op),
            Some((op, Op::Receive(_))) => self.receive_completed(port, op),
            Some((op, Op::Rma(_))) => self.rma_completed(port, op, posted),
            Some((_, Op::Atomic(_))) | None => {}
        }
        self.free_slots.extend(posted.slot);
    }

    /// The program has computed and waits now: pages that were prefetched before may be gone, and there is time to bring
    /// them in again, if what needs them has not come yet (Li et al., V.C).
    fn waits_again(&mut self, port: &mut impl Port, now: Duration) {
        if !self.settings.scheme.prefetches(Moment::WaitsAgain) {
            return;
        }
        self.prefetch_stale(port, now, |op| match op {
            Op::Send(send) if send.state == SendState::Announced => Some(&send.held),
            Op::Receive(Receive { state: ReceiveState::Matched(matched), .. }) => Some(&matched.held),
            _ => None,
        });
        self.synchronises(port, now);
    }

    /// Prefetches memory of operations of which pages may have gone while the program computed.
    fn prefetch_stale(&mut self, port: &mut impl Port, now: Duration, held: impl Fn(&Op) -> Option<&Held>) {
        let stale = |op: &Op| held(op).is_some_and(|held| self.registrar.is_stale(held, self.computed));
        let stale: Vec<OpId> = self.ops.iter().filter(|(_, op)| stale(op)).map(|(op, _)| op as OpId).collect();
        for op in stale {
            match self.ops[op as usize] {
                Op::Send(_) => self.prefetch_send(port, now, op, Moment::WaitsAgain),
                _ => self.prefetch_receive(port, now, op, Moment::WaitsAgain),
            }
        }
    }

    /// Processes synchronise: prefetches windows of which pages may be gone (Li et al., VI).
    pub(crate) fn synchronises(&mut self, port: &mut impl Port, now: Duration) {
        if self.windows.is_empty() || !self.settings.scheme.prefetches(Moment::Synchronises) {
            return;
        }
        let invalidations = port.invalidations();
        let waited = self.waited;
        for window in &mut self.windows {
            let fresh =
                window.warmed.is_some_and(|(at, count)| at > waited || (count.is_some() && count == invalidations));
            if !fresh {
                window.warmed = Some((now, invalidations));
                prefetch_window(port, &mut self.counters, window, self.settings.window_prefetch);
            }
        }
    }

    /// The program has registered memory.
    pub(crate) fn prefetch_registered(&mut self, port: &mut impl Port, now: Duration, lkey: u32) {
        if self.settings.scheme.prefetches(Moment::Registered) {
            let Some(window) = self.windows.iter().find(|window| window.lkey == lkey) else { return };
            prefetch_window(port, &mut self.counters, window, self.settings.window_prefetch);
        } else {
            self.synchronises(port, now);
        }
    }
}

/// Prefetches the begin of a window, at most so many bytes.
fn prefetch_window(port: &mut impl Port, counters: &mut Counters, window: &Window, most: u64) {
    let len = window.len.min(most);
    port.prefetch(window.lkey, window.addr, len, window.writable);
    counters.prefetches += 1;
    counters.prefetched_pages += pages(window.addr, len);
}
