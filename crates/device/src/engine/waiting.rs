//! QPs that wait for a peer, or for room for a new peer. The links of these lists are in the QPs' entries, so that a
//! list takes no memory, however many QPs wait: a QP is in one list at most.

use crate::engine::peers::identity::PeerId;

/// QPs in the order in which they began to wait.
#[derive(Debug, Default)]
pub struct WaitList {
    /// The indices of the first and of the last QP.
    ends: Option<(u16, u16)>,
}

/// What a QP waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The peer's state must become known, or its window open.
    Peer(PeerId),
    /// There is no room for the entry of a new peer.
    Room,
}

/// A QP's membership in a list.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub reason: WaitReason,
    /// The index of the next QP of the list.
    next: Option<u16>,
}

/// Where the links of the lists are.
pub trait Links {
    /// A QP's membership in a list; `None` if there is no such QP.
    fn link(&mut self, index: u16) -> Option<&mut Option<Waiting>>;
}

impl WaitList {
    /// Returns whether no QP waits.
    pub fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    /// Appends a QP that is in no list.
    pub fn push(&mut self, links: &mut impl Links, index: u16, reason: WaitReason) {
        let Some(link) = links.link(index) else { return };
        *link = Some(Waiting { reason, next: None });
        let Some((first, last)) = self.ends.replace((index, index)) else { return };
        self.ends = Some((first, index));
        if let Some(waiting) = links.link(last).and_then(Option::as_mut) {
            waiting.next = Some(index);
        }
    }

    /// Removes the first QP.
    pub fn pop(&mut self, links: &mut impl Links) -> Option<u16> {
        let (first, last) = self.ends.take()?;
        let waiting = links.link(first).and_then(Option::take);
        self.ends = waiting.and_then(|waiting| waiting.next).map(|next| (next, last));
        Some(first)
    }

    /// Removes a QP, wherever in the list it is.
    pub fn remove(&mut self, links: &mut impl Links, index: u16) {
        let reason = links.link(index).and_then(|link| *link).map(|waiting| waiting.reason);
        let mut all = std::mem::take(self);
        while let Some(other) = all.pop(links) {
            if let Some(reason) = reason.filter(|_| other != index) {
                self.push(links, other, reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QpCreate;
    use crate::objects::context::Context;
    use weir_transport::{QpCaps, Service};

    #[test]
    fn qps_leave_a_list_in_order_and_from_anywhere() {
        let context = Context::open("weir_lo").unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(10, None, 0).unwrap();
        let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let create = QpCreate { service: Service::Ud, caps, sq_sig_all: false, cookie: 0 };
        let qps: Vec<_> = (0..5).map(|_| pd.create_qp(&create, &cq, &cq).unwrap()).collect();
        context.adapter.with_engine(|engine| {
            let indices: Vec<u16> = qps.iter().map(|qp| engine.table.index(qp.num()).unwrap()).collect();
            // The first, one in the middle and the last leave the list, in that order.
            for leaves in [vec![], vec![0], vec![2], vec![4], vec![0, 2, 4], vec![0, 1, 2, 3, 4]] {
                for index in &indices {
                    engine.wait_for(WaitReason::Room, *index);
                    engine.wait_for(WaitReason::Room, *index);
                }
                for at in &leaves {
                    engine.stop_waiting(indices[*at]);
                    engine.stop_waiting(indices[*at]);
                }
                let left = (0..5).filter(|at| !leaves.contains(at)).map(|at| indices[at]);
                let mut list = std::mem::take(&mut engine.wait_for_room);
                let got: Vec<u16> = std::iter::from_fn(|| list.pop(&mut engine.table)).collect();
                assert_eq!(got, left.collect::<Vec<_>>(), "without {leaves:?}");
                assert!(list.is_empty() && indices.iter().all(|at| engine.table.get(*at).unwrap().waiting.is_none()));
            }
        });
    }
}
