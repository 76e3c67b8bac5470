//! A QP of the program: its open requests, and its entry in the file.

use crate::biased::Biased;
use crate::building::Building;
use crate::clock::{self, Now};
use crate::contexts::{Context, is_odp};
use crate::file::{self, Counter};
use crate::guard::qp::Guarded;
use crate::locked::Raw;
use crate::room::Room;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use weir_abi::*;
use weir_doctor::expect::Expectation;
use weir_doctor::layout::{self, Request, SIZES, size_class, time_class};
use weir_doctor::queue::{Posted, SendQueue};

/// So many completions of a class of sizes in a row do not read the time, at most. Otherwise a program that polls in step
/// with the polls that read it could show none.
const MOST_UNTIMED: u32 = 15;

/// A QP. Threads that post hold `posting`, threads that report completions hold `polling`.
pub struct Qp {
    pub posting: Biased,
    polling: Biased,
    pub queue: SendQueue,
    expectation: Expectation,
    /// When the last completion was polled, or a time before that while no other request was open.
    served_until: AtomicU64,
    /// By class of size: completions since the last that read the time and was not late.
    untimed: [AtomicU32; SIZES],
    context: AtomicPtr<Context>,
    entry: AtomicPtr<layout::Qp>,
    key: AtomicU64,
    signal_all: AtomicBool,
    limits: [AtomicU32; 2],
    inherited: AtomicBool,
    /// The requests between `wr_start` and `wr_complete`; guarded by `posting`.
    pub building: UnsafeCell<Building>,
    /// The library's functions of an extended QP.
    pub builder: [AtomicPtr<c_void>; 24],
    pub guard: Guarded,
    pd: AtomicPtr<ibv_pd>,
}

// SAFETY: `building` is used under `posting` only.
unsafe impl Sync for Qp {}
// SAFETY: as above.
unsafe impl Send for Qp {}

/// When and how a completion was found.
pub struct Found {
    pub now: Now,
    /// When the CQ was last seen without it.
    pub missing: u64,
    pub armed: bool,
}

impl Qp {
    pub fn new(capacity: u32) -> Qp {
        Qp {
            posting: Biased::new(),
            polling: Biased::new(),
            queue: SendQueue::new(capacity),
            expectation: Expectation::default(),
            served_until: AtomicU64::new(0),
            untimed: [const { AtomicU32::new(0) }; SIZES],
            context: AtomicPtr::default(),
            entry: AtomicPtr::default(),
            key: AtomicU64::new(0),
            signal_all: AtomicBool::new(false),
            limits: [const { AtomicU32::new(0) }; 2],
            inherited: AtomicBool::new(false),
            building: UnsafeCell::default(),
            builder: [const { AtomicPtr::new(std::ptr::null_mut()) }; 24],
            guard: Guarded::default(),
            pd: AtomicPtr::default(),
        }
    }

    /// It becomes the state of a QP of the program. `entry`: NULL if `weir doctor` does not observe it.
    ///
    /// # Safety
    /// A QP that exists.
    pub unsafe fn open(&self, context: &'static Context, entry: *mut layout::Qp, qp: *mut ibv_qp, room: &Room) {
        // SAFETY: guaranteed by the caller.
        let (number, service, pd) = unsafe { ((*qp).qp_num, (*qp).qp_type, (*qp).pd) };
        self.pd.store(pd, Relaxed);
        self.context.store(std::ptr::from_ref(context).cast_mut(), Release);
        self.entry.store(entry, Release);
        self.key.store(context.key(number), Release);
        self.signal_all.store(room.signal_all, Relaxed);
        self.limits[0].store(room.sges, Relaxed);
        self.limits[1].store(room.inline, Relaxed);
        self.served_until.store(0, Relaxed);
        self.untimed.iter().for_each(|count| count.store(0, Relaxed));
        self.queue.clear();
        self.expectation.clear();
        // SAFETY: guaranteed by the caller.
        unsafe { self.guard.open(qp, room) };
        // SAFETY: a zeroed entry of the file, which this QP owns.
        let Some(entry) = (unsafe { entry.as_mut() }) else { return };
        entry.qp_num = number;
        entry.service = service as u32;
        entry.device = context.device;
        if context.no_odp {
            entry.bits |= layout::Qp::NO_ODP;
        }
    }

    /// The QP of the program is gone.
    pub fn close(&self) {
        let entry = self.entry();
        if entry.is_null() {
            return;
        }
        // SAFETY: the entry of this QP. Without a request in the file nothing refers to it.
        unsafe {
            (*entry).destroyed = clock::ticks();
            (*entry).oldest = 0;
        }
        self.queue.clear();
    }

    /// In a forked child: it is a QP of the parent. The child's calls only pass through, without its locks, which
    /// another thread of the parent may have held.
    pub fn inherit(&self) {
        self.inherited.store(true, Relaxed);
    }

    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed)
    }

    /// The most SGEs of a request.
    #[inline]
    pub fn most_sges(&self) -> usize {
        self.limits[0].load(Relaxed) as usize
    }

    /// The most bytes of inline data.
    #[inline]
    pub fn most_inline(&self) -> u64 {
        self.limits[1].load(Relaxed).into()
    }

    /// What identifies it among all QPs.
    pub fn key(&self) -> u64 {
        self.key.load(Acquire)
    }

    pub fn context(&self) -> &'static Context {
        // SAFETY: set before the QP is in a map; contexts are not freed.
        unsafe { &*self.context.load(Acquire) }
    }

    /// Whether `weir doctor` observes it.
    #[inline]
    pub fn is_observed(&self) -> bool {
        !self.entry().is_null()
    }

    pub fn pd(&self) -> *mut ibv_pd {
        self.pd.load(Relaxed)
    }

    /// Notes attributes that the program has set. `quick`: the smallest RNR delay was set in place of its own.
    pub fn modified(&self, attr: &ibv_qp_attr, mask: c_int, quick: bool) {
        self.guard.with(|state| state.modified(attr, mask, quick));
        // SAFETY: the entry of this QP; QPs are modified one call at a time.
        let Some(entry) = (unsafe { self.entry().as_mut() }) else { return };
        let set = |bit: c_int, to: &mut u8, value: u8| {
            if mask & bit != 0 {
                *to = value;
            }
        };
        set(IBV_QP_TIMEOUT, &mut entry.timeout, attr.timeout);
        set(IBV_QP_RETRY_CNT, &mut entry.retry_cnt, attr.retry_cnt);
        set(IBV_QP_RNR_RETRY, &mut entry.rnr_retry, attr.rnr_retry);
        set(IBV_QP_MIN_RNR_TIMER, &mut entry.min_rnr_timer, attr.min_rnr_timer);
        set(IBV_QP_MAX_QP_RD_ATOMIC, &mut entry.max_rd_atomic, attr.max_rd_atomic);
        if mask & IBV_QP_DEST_QPN != 0 {
            entry.dest_qp_num = attr.dest_qp_num;
        }
        if mask & IBV_QP_STATE != 0 && attr.qp_state == IBV_QPS_RTS {
            entry.bits |= layout::Qp::READY;
        }
        if mask & IBV_QP_STATE != 0 && attr.qp_state == IBV_QPS_RESET {
            self.queue.clear();
            entry.oldest = 0;
        }
    }

    /// Whether a request with these flags (IBV_SEND_*) has a completion.
    #[inline]
    pub fn signals(&self, flags: u32) -> bool {
        flags & IBV_SEND_SIGNALED != 0 || self.signal_all.load(Relaxed)
    }

    /// Describes a request, without its time. `flags` are IBV_SEND_*.
    #[inline]
    pub fn describe(&self, wr_id: u64, opcode: c_int, flags: u32) -> Posted {
        let signaled = self.signals(flags);
        Posted { wr_id, opcode: opcode as u8, signaled, ..Posted::default() }
    }

    /// Adds the data of an SGE to a request.
    #[inline]
    pub fn add_data(&self, posted: &mut Posted, sge: &ibv_sge) {
        posted.bytes = posted.bytes.wrapping_add(sge.length);
        if !posted.odp && is_odp(self.context(), sge.lkey) {
            posted.odp = true;
            posted.address = sge.addr;
        }
    }

    /// The last requests of the queue are posted, at this time. The caller holds `posting`.
    #[inline]
    pub fn opened(&self, count: u64, at: u64) {
        self.queue.set_time(count, at);
        let entry = self.entry();
        // SAFETY: the entry of this QP; posting threads take turns.
        let none = unsafe {
            (*entry).posted += count;
            (&raw const (*entry).oldest).read_volatile() == 0
        };
        if none {
            self.note_oldest(entry);
        }
    }

    /// The adapter has refused the last requests of the queue. The caller holds `posting`.
    #[cold]
    pub fn refused(&self, count: u64) {
        self.queue.withdraw(count);
        // A thread that polls may have noted one of them.
        self.note_oldest(self.entry());
    }

    /// A receive has completed.
    #[inline]
    pub fn received(&self) {
        let entry = self.entry();
        if entry.is_null() {
            return;
        }
        // SAFETY: the entry of this QP; the counter is for people, and a lost increment of two threads is no harm.
        unsafe { (*entry).received += 1 };
    }

    /// A completion was polled. `status` is IBV_WC_*.
    #[inline]
    pub fn completed(&self, wr_id: u64, status: c_int, found: &mut Found) {
        if !self.is_observed() {
            return;
        }
        self.polling.with(|| self.end(wr_id, status, found));
    }

    fn end(&self, wr_id: u64, status: c_int, found: &mut Found) {
        let entry = self.entry();
        // Data in ODP memory of any request that this completion ends. Those that asked for no completion may have
        // been over long ago, so the service of this one began when it was posted itself.
        let (mut odp, mut last) = (None, None);
        let matched = self.queue.complete(wr_id, status != IBV_WC_SUCCESS, |posted, own| {
            if posted.odp {
                odp.get_or_insert(posted.address);
            }
            if own {
                last = Some(posted);
            }
        });
        let Some(mut posted) = last.filter(|_| matched) else {
            // Completions of receives with an error have no opcode.
            if status == IBV_WC_SUCCESS {
                file::count(Counter::Unmatched, 1);
            }
            return;
        };
        // SAFETY: the entry of this QP; threads that report completions take turns.
        unsafe { (*entry).completed += 1 };
        self.note_oldest(entry);
        if posted.at == 0 {
            // The thread that posts is about to read the time.
            posted.at = found.now.ticks();
        }
        let begun = posted.at.max(self.served_until.load(Relaxed));
        let until = if found.armed { found.now.ticks() } else { found.missing };
        let certain = clock::to_ns(until.saturating_sub(begun));
        let failed = status != IBV_WC_SUCCESS && status != IBV_WC_WR_FLUSH_ERR;
        let late = self.expectation.is_late(posted.bytes, certain) || failed;
        let alone = status == IBV_WC_SUCCESS && self.queue.open() == 0;
        let untimed = &self.untimed[size_class(posted.bytes)];
        let before = untimed.load(Relaxed);
        if alone && !late && !found.now.is_known() && before < MOST_UNTIMED {
            // A read of the time costs more than all else here, and no other request needs to know when this one ended.
            untimed.store(before + 1, Relaxed);
            return self.served_until.store(until.max(begun), Relaxed);
        }
        let now = found.now.ticks();
        let begun = begun.min(now);
        self.served_until.store(now, Relaxed);
        let served = clock::to_ns(now.saturating_sub(begun));
        // Those before it that did not read the time were not late, and took as long as this one, as far as is known.
        let counted = if late { 0 } else { before };
        untimed.store(before - counted, Relaxed);
        // SAFETY: as above.
        unsafe {
            (*entry).served_until = now;
            (*entry).served[size_class(posted.bytes)][time_class(served)] += 1 + counted;
        }
        if late {
            self.keep(
                entry,
                posted,
                Request {
                    begun,
                    done: now,
                    missing: found.missing,
                    address: odp.unwrap_or(0),
                    status: status as u8,
                    bits: bits(odp.is_some(), found.armed),
                    ..zeroed()
                },
            );
        }
        if status != IBV_WC_SUCCESS {
            // SAFETY: as above.
            unsafe { (*entry).failed += 1 };
        }
    }

    #[cold]
    fn keep(&self, entry: *mut layout::Qp, posted: Posted, request: Request) {
        // SAFETY: the entry of this QP.
        unsafe { (*entry).bits |= layout::Qp::KEPT };
        // The adapter sends only so many READs at once; other requests leave all.
        // SAFETY: the entry of this QP.
        let most = u64::from(unsafe { (*entry).max_rd_atomic }).saturating_sub(1);
        let since = request.begun + clock::to_ticks(Request::TOGETHER);
        let next = self.queue.posted_since(since, most).filter(|next| next.at < request.done);
        let next_us = next.map_or(0, |next| clock::to_ns(next.at - request.begun) / 1000);
        file::keep(Request {
            qp: file::index_of(entry),
            next_us: next_us.min(u32::MAX.into()) as u32,
            posted: posted.at.min(request.done),
            bytes: posted.bytes,
            opcode: posted.opcode,
            ahead: posted.ahead.into(),
            ..request
        });
        file::note_time();
    }

    /// The file gets the oldest open request. A poster looks for it if there was none, a poller at each completion.
    #[inline]
    fn note_oldest(&self, entry: *mut layout::Qp) {
        let oldest = self.queue.oldest();
        // SAFETY: the entry of this QP. The members are for a reader after the end of the process.
        unsafe {
            match oldest {
                Some(posted) => {
                    (*entry).oldest_bytes = posted.bytes;
                    (*entry).oldest_opcode = posted.opcode.into();
                    (*entry).oldest_address = posted.address;
                    // A thread is posting it, and about to read the time.
                    let at = if posted.at == 0 { clock::ticks() } else { posted.at };
                    (&raw mut (*entry).oldest).write_volatile(at);
                }
                None => (&raw mut (*entry).oldest).write_volatile(0),
            }
        }
    }

    #[inline]
    fn entry(&self) -> *mut layout::Qp {
        self.entry.load(Acquire)
    }
}

fn bits(odp: bool, armed: bool) -> u16 {
    [(odp, Request::ODP), (armed, Request::ARMED)]
        .into_iter()
        .fold(0, |bits, (set, bit)| if set { bits | bit } else { bits })
}

fn zeroed() -> Request {
    zerocopy::FromZeros::new_zeroed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QP that is observed. Its entry is not freed.
    fn observed() -> Qp {
        clock::start();
        let own = Qp::new(16);
        own.entry.store(Box::into_raw(Box::new(zerocopy::FromZeros::new_zeroed())), Release);
        own
    }

    fn entry_of(own: &Qp) -> layout::Qp {
        // SAFETY: `observed` has made it, and no other thread has it.
        unsafe { *own.entry() }
    }

    /// Requests with equal IDs, which the adapter is about to get.
    fn publish(own: &Qp, count: u64) {
        for nth in 0..count {
            assert!(own.queue.stage(nth, own.describe(7, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED)));
        }
        own.queue.publish(count);
    }

    #[test]
    fn a_completion_may_come_before_the_time_of_its_request_is_read() {
        let own = observed();
        let post = || publish(&own, 1);
        let second = clock::to_ticks(1_000_000_000);
        let polled = |now| {
            own.completed(7, IBV_WC_SUCCESS, &mut Found { now: Now::known(Some(now)), missing: now, armed: true })
        };
        post();
        own.opened(1, second);
        polled(second + 1);
        // The QP then has nothing to do for nine seconds.
        post();
        polled(10 * second);
        own.opened(1, 10 * second + 1);
        post();
        own.opened(1, 11 * second);
        polled(11 * second + 1);
        let entry = entry_of(&own);
        assert_eq!((entry.posted, entry.completed, entry.oldest, entry.bits), (3, 3, 0, 0), "none is late");
        assert_eq!(entry.served[0][0], 3, "none took long");
    }

    #[test]
    fn a_completion_that_is_not_late_needs_no_time_if_its_request_was_the_only_one() {
        clock::start();
        let second = clock::to_ticks(1_000_000_000);
        let from = clock::ticks() - 20 * second;
        // For each number: posts so many requests, and completes them on a CQ that was seen empty at this time. Returns
        // whether the completions read the time, and what the entry has then.
        let run = |batches: &[(u64, u64)], armed: bool| {
            let own = observed();
            let complete = |missing| {
                let mut found = Found { now: Now::default(), missing, armed };
                own.completed(7, IBV_WC_SUCCESS, &mut found);
                found.now.is_known()
            };
            let mut timed = vec![];
            for (count, missing) in batches {
                publish(&own, *count);
                own.opened(*count, from);
                timed.extend((0..*count).map(|_| complete(*missing)));
            }
            let entry = entry_of(&own);
            (timed, entry.completed, entry.served.iter().flatten().sum::<u32>(), entry.bits & layout::Qp::KEPT != 0)
        };
        let (soon, late) = (from + 5, from + second);
        assert_eq!(run(&[(1, soon)], false), (vec![false], 1, 0, false));
        let (timed, all, counted, kept) = run(&[(1, soon), (2, soon)], false);
        assert_eq!(timed, [false, true, false], "the second of two begins to be served when the first completes");
        assert_eq!((all, counted, kept), (3, 2, false), "the first counts with the one that reads the time");
        assert_eq!(run(&[(1, late)], false), (vec![true], 1, 1, true), "the CQ was empty for a second");
        assert_eq!(run(&[(1, soon), (1, late)], false).2, 1, "the late one says nothing of the other");
        assert_eq!(run(&[(1, 0)], true), (vec![true], 1, 1, true), "the program has waited until now");
        let (timed, all, counted, _) = run(&[(1, soon); 40], false);
        let some = timed.iter().filter(|timed| **timed).count();
        assert_eq!((some, all, counted), (2, 40, 32), "some read it all the same");
    }

    #[test]
    fn a_refused_request_is_not_open_although_another_thread_noted_it() {
        let own = observed();
        publish(&own, 1);
        own.note_oldest(own.entry());
        assert_ne!(entry_of(&own).oldest, 0);
        own.refused(1);
        own.opened(0, clock::ticks());
        let entry = entry_of(&own);
        assert_eq!((entry.posted, entry.oldest), (0, 0));
    }
}
