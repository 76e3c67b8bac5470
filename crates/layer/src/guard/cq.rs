//! A CQ's part of the guards.

use super::list;
use crate::biased::Biased;
use crate::locked::{Locked, Taken};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::*};
use weir_abi::ibv_wc;

/// Entries that a CQ gets in addition to the program's: dummies of failed QPs take them, and requests that asked for no
/// completion while their QP starts again.
const SPARE: i64 = 512;

/// Entries to ask for in addition to a program's.
pub fn wanted_entries(cqe: i32) -> i32 {
    if list().watches_requests() && cqe > 0 { SPARE as i32 } else { 0 }
}

/// State of a CQ on which guarded QPs report.
#[derive(Default)]
pub struct GuardedCq {
    on: AtomicBool,
    /// Entries in addition to the program's that nothing may take at present.
    spare: AtomicI64,
    /// The program may poll it by `ibv_start_poll`, so completions cannot be kept for later.
    one_by_one: AtomicBool,
    /// The QPs of its completions are not known.
    blind: AtomicBool,
    stash: Locked<VecDeque<ibv_wc>, Biased>,
}

impl GuardedCq {
    /// It belongs to a new CQ of the program, with so many entries in addition.
    pub fn open(&self, spare: i64) {
        self.on.store(false, Relaxed);
        self.one_by_one.store(false, Relaxed);
        self.blind.store(false, Relaxed);
        self.spare.store(spare, Relaxed);
    }

    /// The program has destroyed it.
    pub fn close(&self) {
        if self.is_on() {
            self.stash().clear();
        }
    }

    /// A guarded QP reports on it.
    pub fn turn_on(&self) {
        self.on.store(true, Release);
    }

    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Completions that were polled for the program. The lock keeps polls of the program in order.
    #[inline]
    pub fn stash(&self) -> Taken<'_, VecDeque<ibv_wc>, Biased> {
        self.stash.lock()
    }

    /// It is an extended CQ; `blind`: without the QP of a completion.
    pub fn extended(&self, blind: bool) {
        self.one_by_one.store(true, Relaxed);
        self.blind.store(blind, Relaxed);
    }

    pub fn is_blind(&self) -> bool {
        self.blind.load(Relaxed)
    }

    /// It was resized, and has no entries in addition any more.
    pub fn lose_spare(&self) {
        self.spare.store(i64::MIN / 2, Relaxed);
    }

    pub fn is_polled_one_by_one(&self) -> bool {
        self.one_by_one.load(Relaxed)
    }

    /// Takes entries. False: there are not so many.
    pub fn take(&self, count: i64) -> bool {
        let taken = self.spare.fetch_sub(count, AcqRel) >= count;
        if !taken {
            self.give(count);
        }
        taken
    }

    /// Entries are free again.
    pub fn give(&self, count: i64) {
        self.spare.fetch_add(count, AcqRel);
    }
}
