//! A QP's part of the guards.

use super::attributes::Attributes;
use super::list;
use super::work::Work;
use crate::cq::{CQS, Cq};
use crate::lock::Lock;
use crate::locked::{Locked, Taken};
use crate::room::Room;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use weir_abi::*;
use weir_guard::{Connection, Depth, Guards, Kind};

/// State of a QP for its guards. It is off for QPs other than reliable connections.
#[derive(Default)]
pub struct Guarded {
    on: AtomicBool,
    /// A request may be open, so the thread looks at it.
    busy: AtomicBool,
    /// Places of the send queue in addition to the program's.
    pub places: AtomicU32,
    /// A receive was posted to it, so it cannot start again.
    receives: AtomicBool,
    /// It has posted a READ, so its requests are kept.
    tracks: AtomicBool,
    /// It has started again, so READs into pinned memory may be open.
    started: AtomicBool,
    /// The thread acts on the QP, or the program changes it.
    acting: Locked<(), Lock>,
    state: Locked<Option<State>, Lock>,
}

/// What the lock of a guarded QP protects.
pub struct State {
    pub qp: *mut ibv_qp,
    /// Those of its sends and of its receives.
    pub cq: *mut ibv_cq,
    recv_cq: *mut ibv_cq,
    pub connection: Connection<Work>,
    pub depth: Depth,
    pub attributes: Attributes,
    pub signal_all: bool,
    /// It has an SRQ, so receives arrive that the layer does not see.
    pub shared: bool,
    /// Dummies that have an entry of the CQ.
    entries: u32,
    /// The status of a dummy that has failed, until the program gets it.
    pub failed: Option<i32>,
    /// So many completions of requests that failed are not shown: the program has them already.
    pub given: usize,
}

// SAFETY: the pointers are used for calls of the library, which threads may make.
unsafe impl Send for State {}

/// Places of the send queue of a QP of this type (IBV_QPT_*), in addition to the program's.
pub fn places(service: i32) -> u32 {
    if service == IBV_QPT_RC && list().dummy { weir_guard::SPARE } else { 0 }
}

impl Guarded {
    /// It belongs to a new QP of the program.
    ///
    /// # Safety
    /// A QP that exists.
    pub unsafe fn open(&self, qp: *mut ibv_qp, room: &Room) {
        self.on.store(false, Relaxed);
        self.busy.store(false, Relaxed);
        self.receives.store(false, Relaxed);
        self.tracks.store(false, Relaxed);
        self.started.store(false, Relaxed);
        self.places.store(room.spare, Relaxed);
        // SAFETY: guaranteed by the caller.
        let (service, cq, recv_cq, srq) = unsafe { ((*qp).qp_type, (*qp).send_cq, (*qp).recv_cq, (*qp).srq) };
        if service != IBV_QPT_RC || !list().any() {
            return;
        }
        let state = State {
            qp,
            cq,
            recv_cq,
            // A dummy must not take a place of the program.
            connection: Connection::new(Guards { dummy: list().dummy && room.spare != 0, ..list() }),
            depth: Depth::new(if room.spare == 0 { 0 } else { room.requests }),
            attributes: Attributes::default(),
            signal_all: room.signal_all,
            shared: !srq.is_null(),
            entries: 0,
            failed: None,
            given: 0,
        };
        *self.state.lock() = Some(state);
        let knows_qps = |cq: &&Cq| list().watches_requests() && !cq.guard.is_blind();
        if let Some(cq) = CQS.get(cq as u64).filter(knows_qps) {
            cq.turn_guard_on();
            self.on.store(true, Release);
        }
    }

    /// The program is about to destroy the QP: from now on no thread of the guards uses it. What is returned must live
    /// until the QP is gone: its READs may still write to pinned memory.
    pub fn close(&self) -> Option<Connection<Work>> {
        let _acting = self.acting();
        self.on.store(false, Release);
        self.purge();
        let mut state = self.state.lock().take()?;
        let connection = std::mem::replace(&mut state.connection, Connection::new(Guards::default()));
        state.settle();
        Some(connection)
    }

    /// Adapters drop the completions of a QP that is reset or destroyed; so are those dropped that were kept. The caller
    /// holds `acting`.
    pub fn purge(&self) {
        // SAFETY: the QP exists, because its owner has not destroyed it yet.
        let of = self.with(|state| ([state.cq, state.recv_cq], unsafe { (*state.qp).qp_num }));
        let Some((cqs, number)) = of.filter(|_| list().reissue) else { return };
        for cq in cqs.iter().filter_map(|cq| CQS.get(*cq as u64)) {
            cq.guard.stash().retain(|wc| wc.qp_num != number);
        }
    }

    /// Whether its requests are entered.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub fn is_busy(&self) -> bool {
        self.busy.load(Acquire)
    }

    /// True: it was not busy before.
    #[inline]
    pub fn set_busy(&self) -> bool {
        !self.busy.load(Relaxed) && !self.busy.swap(true, AcqRel)
    }

    pub fn set_idle(&self) {
        self.busy.store(false, Release);
    }

    /// Whether a request has to be described. From the first READ on all are.
    #[inline]
    pub fn tracks(&self, kind: Kind) -> bool {
        if kind == Kind::Read {
            self.tracks.store(true, Relaxed);
        }
        self.tracks.load(Relaxed)
    }

    /// A receive is about to be posted. The first waits for a start that is under way: RESET would lose it.
    #[inline]
    pub fn note_receive(&self) -> Option<Taken<'_, (), Lock>> {
        if self.receives.load(Relaxed) {
            return None;
        }
        let acting = self.acting();
        self.receives.store(true, Release);
        Some(acting)
    }

    pub fn note_start(&self) {
        self.started.store(true, Release);
    }

    /// Whether it has started again at some time.
    #[inline]
    pub fn has_started(&self) -> bool {
        self.started.load(Acquire)
    }

    pub fn has_receives(&self) -> bool {
        self.receives.load(Acquire)
    }

    /// Until the guard is dropped, neither the thread nor the program changes the QP's state.
    pub fn acting(&self) -> Taken<'_, (), Lock> {
        self.acting.lock()
    }

    /// Runs `body`, if it is guarded.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&mut State) -> R) -> Option<R> {
        self.state.lock().as_mut().map(body)
    }
}

impl State {
    /// The CQ of its send queue; `None`: it does not exist any more.
    pub fn cq(&self) -> Option<&'static Cq> {
        CQS.get(self.cq as u64)
    }

    /// The program has changed the QP; `quick`: with the smallest RNR delay in place of its own.
    pub fn modified(&mut self, attr: &ibv_qp_attr, mask: i32, quick: bool) {
        self.attributes.set(attr, mask);
        self.attributes.quick = quick || self.attributes.quick && mask & IBV_QP_MIN_RNR_TIMER == 0;
        if mask & IBV_QP_STATE == 0 {
            return;
        }
        match attr.qp_state {
            IBV_QPS_RTS if mask & IBV_QP_SQ_PSN != 0 => {
                let mtu = 128u32 << self.attributes.attr.path_mtu.clamp(1, 5);
                self.connection.connect(mtu, attr.sq_psn);
            }
            IBV_QPS_RTS => self.connection.set_ready(true),
            // Requests will not complete any more.
            IBV_QPS_RESET => {
                self.connection.end(|_| ());
                self.depth.clear();
                (self.failed, self.given) = (None, 0);
                self.settle();
            }
            _ => self.connection.set_ready(false),
        }
    }

    /// Takes an entry of the CQ for a dummy. False: none is free.
    pub fn take_entry(&mut self) -> bool {
        let taken = self.cq().is_some_and(|cq| cq.guard.take(1));
        self.entries += u32::from(taken);
        taken
    }

    /// Gives back the entries of dummies that are over.
    pub fn settle(&mut self) {
        let over = self.entries.saturating_sub(self.connection.dummies());
        if over != 0 {
            self.entries -= over;
            if let Some(cq) = self.cq() {
                cq.guard.give(over.into());
            }
        }
    }
}
