//! Requests on their way: what the adapter of the peer does, and what comes back.

use super::mesh::{Denied, Happening, Mesh};
use super::node::{Completion, End};
use super::port::What;
use crate::port::{Port, Slot};
use std::time::Duration;

impl Mesh {
    /// The peer executes a request.
    pub(super) fn arrive(&mut self, from: End, number: u64) {
        let Some(qp) = self.nodes[from.0].qp(from).filter(|qp| !qp.failed) else { return };
        let Some(wqe) = qp.queue.iter().find(|wqe| wqe.number == number).cloned() else { return };
        let peer = qp.peer.expect("a connected QP");
        if self.nodes[peer.0].qp(peer).is_none_or(|qp| qp.failed) {
            self.fail(from, number, false, self.setup.retries);
            return;
        }
        let now = self.now;
        self.nodes[from.0].port.now = now;
        self.nodes[peer.0].port.now = now;
        let memory = &mut self.nodes[peer.0].port.memory;
        if let What::Read { addr, rkey } = wqe.what {
            match memory.access(now, rkey, addr, wqe.local.len(), false).map(|bytes| bytes.to_vec()) {
                _ if wqe.local.len() == 0 => self.respond_later(from, number, Ok(Vec::new())),
                Some(bytes) => self.respond_later(from, number, Ok(bytes)),
                None => self.break_both(from, peer, number),
            }
            return;
        }
        let bytes = self.nodes[from.0].port.fetch(&wqe.local);
        let memory = &mut self.nodes[peer.0].port.memory;
        let takes_receive = match wqe.what {
            What::Write { addr, rkey, immediate } => {
                if !bytes.is_empty() {
                    let Some(target) = memory.access(now, rkey, addr, bytes.len() as u64, true) else {
                        self.break_both(from, peer, number);
                        return;
                    };
                    target.copy_from_slice(&bytes);
                }
                immediate.is_some()
            }
            _ => true,
        };
        if takes_receive {
            let hostile = self.nodes[from.0].hostile;
            let Some(slot) = self.receive_of(peer, hostile) else {
                self.break_both(from, peer, number);
                return;
            };
            let completion = match wqe.what {
                What::Write { immediate, .. } => {
                    Completion::Written { slot, len: bytes.len() as u64, immediate: immediate.unwrap_or(0) }
                }
                _ => {
                    let into = self.nodes[peer.0].port.slot(slot);
                    if into.len() < bytes.len() {
                        let lies = hostile || self.nodes[peer.0].hostile;
                        assert!(lies, "a message is longer than the peer's receive");
                        self.break_both(from, peer, number);
                        return;
                    }
                    into[..bytes.len()].copy_from_slice(&bytes);
                    Completion::Received { slot, len: bytes.len() }
                }
            };
            self.tell(peer, completion);
        }
        self.respond_later(from, number, Ok(Vec::new()));
    }

    fn receive_of(&mut self, peer: End, hostile: bool) -> Option<Slot> {
        let receive = self.nodes[peer.0].qp(peer)?.receives.pop_front();
        assert!(
            receive.is_some() || hostile || self.nodes[peer.0].hostile,
            "a message arrives and no receive is posted"
        );
        receive
    }

    fn respond_later(&mut self, to: End, number: u64, result: Result<Vec<u8>, Denied>) {
        // Responses arrive in the order of the requests.
        let at = self.now + self.delay();
        let Some(qp) = self.nodes[to.0].qp(to) else { return };
        let at = at.max(qp.responds_until);
        qp.responds_until = at;
        self.at(at, Happening::Response { to, number, result });
    }

    fn fail(&mut self, to: End, number: u64, denied: bool, after: Duration) {
        let now = self.now;
        let Some(qp) = self.nodes[to.0].qp(to) else { return };
        qp.failed = true;
        let at = (now + after).max(qp.responds_until);
        qp.responds_until = at;
        self.at(at, Happening::Response { to, number, result: Err(denied) });
    }

    /// A request is refused: both sides' QPs fail.
    fn break_both(&mut self, from: End, peer: End, number: u64) {
        let delay = self.delay();
        self.fail(from, number, true, delay);
        if let Some(qp) = self.nodes[peer.0].qp(peer) {
            qp.failed = true;
        }
        if peer != from {
            self.tell(peer, Completion::Lost);
        }
    }

    pub(super) fn respond(&mut self, to: End, number: u64, result: Result<Vec<u8>, Denied>) {
        let now = self.now;
        let node = &mut self.nodes[to.0];
        let Some(qp) = node.qp(to) else { return };
        let Some(wqe) = qp.queue.iter().find(|wqe| wqe.number == number).cloned() else { return };
        match result {
            Ok(bytes) => {
                if let What::Read { .. } = wqe.what
                    && wqe.local.len() > 0
                {
                    node.port.now = now;
                    node.port.land(&wqe.local, &bytes);
                }
                if wqe.signaled {
                    self.tell(to, Completion::Sent { number });
                }
            }
            Err(denied) => self.tell(to, Completion::Failed { number, denied }),
        }
    }
}
