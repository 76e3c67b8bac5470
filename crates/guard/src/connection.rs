//! The open requests of a reliable connection, and what its guards do about them.
//!
//! Completions of a connection end all requests before their own (IBTA 10.8.5.1). Two threads that poll one CQ can
//! report two of them in the other order, so a request with a completion stays open until that is reported.
//!
//! A request is tracked from the first READ on: without a READ there is neither damming nor flood, and programs that do
//! not READ pay next to nothing.

use crate::answer::{Action, Completed, Flushed};
use crate::list::Guards;
use crate::open::Open;
use crate::patience::Patience;
use crate::request::{Kind, Remote, Request};
use std::collections::VecDeque;

/// Places that dummies may take in a send queue, in addition to the program's requests. All of them may be taken: a
/// request without a completion leaves the send queue only with a later one.
pub const SPARE: u32 = 16;

/// A request without a completion may be lost behind a READ that was open so short a time ago, ns. Later ones get no
/// dummy: their program does not wait for them, and the peer may have destroyed its QP once it had them.
const BEHIND_READ: u64 = 100_000_000;

/// So often a QP starts again at most before a request completes.
const STARTS: u32 = 4;

/// The requests of a QP. `T` is what the caller needs to post one again.
#[derive(Debug)]
pub struct Connection<T> {
    guards: Guards,
    open: VecDeque<Open<T>>,
    patience: Patience,
    /// Bytes of a packet's payload.
    mtu: u32,
    next_psn: u32,
    /// The QP can send.
    ready: bool,
    tracking: bool,
    /// No request is open that is not tracked.
    complete: bool,
    /// Requests before the first READ, and those of them that have a completion, which is still to come.
    untracked: u64,
    untracked_signaled: u64,
    /// The last READ, and the last WRITE that has completed.
    read: Remote,
    write: Option<Remote>,
    /// When a READ was last known to be open.
    read_at: u64,
    /// When the adapter could begin with the oldest request, unless that was posted later.
    served_until: u64,
    /// Open dummies, and those since the last completion.
    dummies: u32,
    since_completion: u32,
    last_dummy: u64,
    /// After ERROR: completions of flushed requests, and how many there should be.
    flushed: usize,
    to_flush: usize,
    /// Starts since the last completion.
    starts: u32,
}

/// What a program waits for.
struct Waits {
    /// When the adapter could begin with it.
    since: u64,
    /// Bytes of all open requests up to it.
    bytes: u64,
    /// No open request of the program has a completion.
    silent: bool,
}

impl<T> Connection<T> {
    /// Of a QP that is not connected.
    pub fn new(guards: Guards) -> Connection<T> {
        Connection {
            guards,
            open: VecDeque::new(),
            patience: Patience::new(),
            mtu: 0,
            next_psn: 0,
            ready: false,
            tracking: false,
            complete: true,
            untracked: 0,
            untracked_signaled: 0,
            read: Remote::default(),
            write: None,
            read_at: 0,
            served_until: 0,
            dummies: 0,
            since_completion: 0,
            last_dummy: 0,
            flushed: 0,
            to_flush: 0,
            starts: 0,
        }
    }

    /// The QP has become ready to send, with this path MTU and first PSN.
    pub fn connect(&mut self, mtu: u32, first_psn: u32) {
        *self = Connection { mtu, next_psn: first_psn & PSN, ready: true, ..Connection::new(self.guards) };
    }

    /// The QP can send, or cannot. Requests stay open.
    pub fn set_ready(&mut self, ready: bool) {
        self.ready = ready && self.mtu != 0;
    }

    /// Whether requests are entered from now on: the first READ is.
    #[inline]
    pub fn tracks(&self, kind: Kind) -> bool {
        self.tracking || kind == Kind::Read
    }

    /// Counts a request that is not tracked and is about to be posted.
    #[inline]
    pub fn pass(&mut self, kind: Kind, bytes: u64, signaled: bool) {
        self.untracked += 1;
        self.untracked_signaled += u64::from(signaled);
        self.next_psn = (self.next_psn + kind.psns(bytes, self.mtu)) & PSN;
    }

    /// Enters a request that is about to be posted.
    pub fn post(&mut self, now: u64, request: Request<T>) {
        if !self.tracking {
            self.tracking = true;
            self.complete = self.untracked == 0;
        }
        if request.kind == Kind::Read {
            (self.read, self.read_at) = (request.remote, now);
        }
        self.enter(now, request, false);
    }

    /// Enters a dummy that is about to be posted. `signaled`: all requests of the QP have completions.
    pub fn posted_dummy(&mut self, now: u64, request: Request<T>) {
        (self.last_dummy, self.since_completion) = (now, self.since_completion + 1);
        self.dummies += 1;
        self.enter(now, request, true);
    }

    fn enter(&mut self, at: u64, request: Request<T>, dummy: bool) {
        let psn = self.next_psn;
        self.next_psn = (psn + request.kind.psns(request.bytes, self.mtu)) & PSN;
        let request = Some(request);
        self.open.push_back(Open { request, at, psn, dummy, again: 0, barred: false });
    }

    /// The adapter has refused the last request that was entered or passed.
    pub fn refused(&mut self, kind: Kind, bytes: u64, signaled: bool) {
        self.next_psn = self.next_psn.wrapping_sub(kind.psns(bytes, self.mtu)) & PSN;
        match self.open.back() {
            Some(last) if last.psn == self.next_psn && last.request.as_ref().is_some_and(|r| r.kind == kind) => {
                self.dummies -= u32::from(last.dummy);
                self.open.pop_back();
            }
            _ => {
                self.untracked = self.untracked.saturating_sub(1);
                self.untracked_signaled = self.untracked_signaled.saturating_sub(signaled.into());
            }
        }
    }

    /// A completion was polled. True: it is that of a request that is not tracked. Otherwise [`Connection::completed`]
    /// follows.
    #[inline]
    pub fn passed(&mut self, success: bool) -> bool {
        // Requests complete in order, so the first completions are those of what is not tracked.
        let passed = success && self.untracked_signaled > 0;
        self.untracked_signaled -= u64::from(passed);
        passed
    }

    /// A completion of a tracked request was polled. `each` gets what is over: of earlier requests without a completion,
    /// too; true: it has succeeded.
    pub fn completed(&mut self, now: u64, wr_id: u64, success: bool, mut each: impl FnMut(&T, bool)) -> Completed {
        let Some(at) = self.find(wr_id, !success) else { return Completed::Unknown };
        if success {
            (self.complete, self.starts) = (true, 0);
            self.learn(now, at);
        } else {
            self.ready = false;
        }
        for place in 0..=at {
            let open = &mut self.open[place];
            // What comes before a request that fails has succeeded, too.
            let (success, over) = (success || place < at, place == at || open.is_silent());
            if let Some(request) = open.request.as_ref().filter(|_| over) {
                self.dummies -= u32::from(open.dummy);
                if request.kind == Kind::Write && success && !open.dummy {
                    self.write = Some(request.remote);
                }
                if request.kind == Kind::Read && !open.dummy {
                    self.read_at = now;
                }
                each(&request.work, success);
                open.request = None;
            }
        }
        let dummy = self.open[at].dummy;
        (self.served_until, self.since_completion) = (now, 0);
        self.drop_ended();
        if dummy { Completed::Dummy } else { Completed::Theirs }
    }

    /// When to call [`Connection::poll`] next; `None`: not before the next post.
    pub fn next(&self) -> Option<u64> {
        let waits = self.waits()?;
        let dummy = self.may_post_dummy().then(|| self.dummy_at(&waits));
        [dummy, self.stuck_at(&waits)].into_iter().flatten().min()
    }

    /// What to do now.
    pub fn poll(&mut self, now: u64) -> Option<Action> {
        let waits = self.waits()?;
        if self.stuck_at(&waits).is_some_and(|at| now >= at) {
            return Some(Action::StartAgain);
        }
        if self.may_post_dummy() && now >= self.dummy_at(&waits) {
            // READs wait for a free place among those that the peer serves at once, WRITEs do not.
            let (kind, remote) = self.write.map_or((Kind::Read, self.read), |remote| (Kind::Write, remote));
            return Some(Action::Dummy { kind, remote, signaled: waits.silent });
        }
        None
    }

    /// Whether the QP can start again now, after the caller has reported all completions that there were.
    pub fn may_start_again(&self, now: u64) -> bool {
        self.waits().and_then(|waits| self.stuck_at(&waits)).is_some_and(|at| now >= at)
    }

    /// The open requests that would go to pinned memory, and do not yet.
    pub fn into_pinned(&self) -> impl Iterator<Item = &Request<T>> {
        let new = self.open.iter().filter(|open| open.again == 0);
        new.filter_map(|open| open.request.as_ref()).filter(|request| request.on_demand)
    }

    /// The QP cannot start again for the sake of the oldest request.
    pub fn cannot_start_again(&mut self) {
        if let Some(open) = self.open.iter_mut().find(|open| open.request.is_some() && !open.dummy) {
            open.barred = true;
        }
    }

    /// The caller has taken the QP to ERROR, and has polled a completion with IBV_WC_WR_FLUSH_ERR. All requests from the
    /// first flushed one on are flushed, so their number tells which.
    pub fn flushed(&mut self, wr_id: u64) -> Flushed {
        let matches = |open: &Open<T>| open.request.as_ref().is_some_and(|request| request.wr_id == wr_id);
        if self.flushed == 0 {
            let Some(first) = self.open.iter().position(matches) else { return Flushed::Unknown };
            self.to_flush = self.open.len() - first;
        }
        self.flushed += 1;
        Flushed::Kept
    }

    /// Whether the completion of each open request was polled after ERROR.
    pub fn is_quiet(&self) -> bool {
        self.open.is_empty() || self.flushed != 0 && self.flushed >= self.to_flush
    }

    /// Whether that may be so: if the program gave several requests the same `wr_id`, fewer completions may come than
    /// [`Connection::is_quiet`] expects, but not fewer than from the first request on that has a completion. If none has
    /// one, as when only a dummy is open, all may have succeeded without a word.
    pub fn may_be_quiet(&self) -> bool {
        let first = self.open.iter().position(|open| open.request.as_ref().is_some_and(|request| request.signaled));
        first.is_none_or(|first| self.flushed != 0 && self.flushed >= self.open.len() - first)
    }

    /// Completions of flushed requests since ERROR.
    pub fn flushes(&self) -> usize {
        self.flushed
    }

    /// After ERROR: the PSN to start with. Requests that asked for no completion, before the first that lacks its own or
    /// was flushed, have succeeded; `each` gets them.
    pub fn resume(&mut self, mut each: impl FnMut(&T)) -> u32 {
        let flushed = self.open.len() - self.flushed.min(self.open.len());
        let lacks = |open: &Open<T>| open.request.as_ref().is_some_and(|request| request.signaled);
        let first = self.open.iter().position(lacks).unwrap_or(self.open.len()).min(flushed);
        for open in self.open.drain(..first) {
            if let Some(request) = &open.request {
                self.dummies -= u32::from(open.dummy);
                each(&request.work);
            }
        }
        (self.flushed, self.to_flush) = (0, 0);
        (self.since_completion, self.starts) = (0, self.starts + 1);
        self.open.front().map_or(self.next_psn, |open| open.psn)
    }

    /// The requests to post again, in order. Those that are `on_demand` go to pinned memory.
    pub fn again(&mut self, now: u64) -> impl Iterator<Item = &mut Request<T>> {
        self.served_until = now;
        self.open.iter_mut().filter_map(move |open| {
            (open.at, open.again) = (now, open.again + 1);
            open.request.as_mut()
        })
    }

    /// Ends all requests: the QP was reset, failed or destroyed. `each` gets them.
    pub fn end(&mut self, mut each: impl FnMut(Request<T>)) {
        (self.ready, self.dummies) = (false, 0);
        self.open.drain(..).filter(|open| !open.dummy).filter_map(|open| open.request).for_each(&mut each);
    }

    /// Whether there is nothing to wait for: until the next post.
    pub fn is_idle(&self) -> bool {
        self.awaited().is_none()
    }

    /// Whether a READ into pinned memory is open: the program's memory does not have its data yet.
    pub fn has_pinned(&self) -> bool {
        let pinned = |open: &Open<T>| open.again > 0 && open.request.as_ref().is_some_and(|request| request.on_demand);
        self.open.iter().any(pinned)
    }

    /// The QP must not start again any more: a request of it may read what a READ before it brings (IBV_SEND_FENCE).
    pub fn bar_starts(&mut self) {
        self.guards.reissue = false;
    }

    /// Number of open dummies.
    pub fn dummies(&self) -> u32 {
        self.dummies
    }

    /// Number of open requests, dummies included.
    pub fn open(&self) -> usize {
        self.open.iter().filter(|open| open.request.is_some()).count()
    }

    /// Open requests that have no completion if they succeed.
    pub fn unsignaled(&self) -> usize {
        self.open.iter().filter(|open| open.is_silent()).count()
    }

    fn find(&self, wr_id: u64, failed: bool) -> Option<usize> {
        let completes = |request: &Request<T>| request.wr_id == wr_id && (failed || request.signaled);
        self.open.iter().position(|open| open.request.as_ref().is_some_and(completes))
    }

    fn learn(&mut self, now: u64, at: usize) {
        let open = &self.open[at];
        let took = now.saturating_sub(open.at.max(self.served_until));
        match (open.again, &open.request) {
            (0, _) if open.dummy => {}
            (0, _) => {
                let bytes = self.bytes(at);
                self.patience.learn(bytes, took);
            }
            (_, Some(request)) if request.on_demand => self.patience.started_again(now.saturating_sub(open.at)),
            _ => {}
        }
    }

    /// Bytes of the open requests up to a place.
    fn bytes(&self, to: usize) -> u64 {
        self.open.iter().take(to + 1).filter_map(|open| open.request.as_ref()).map(|request| request.bytes).sum()
    }

    fn drop_ended(&mut self) {
        let ended = self.open.iter().take_while(|open| open.request.is_none()).count();
        // Not moved out one by one.
        self.open.drain(..ended);
    }

    /// What the program waits for, if the QP can send.
    fn waits(&self) -> Option<Waits> {
        let (at, silent) = self.awaited().filter(|_| self.ready)?;
        Some(Waits { since: self.open[at].at.max(self.served_until), bytes: self.bytes(at), silent })
    }

    /// The place of the oldest request with a completion. Without one, of the last request soon after a READ, which is
    /// silent: only a dummy with a completion tells that it is over.
    fn awaited(&self) -> Option<(usize, bool)> {
        let theirs = |open: &Open<T>| !open.dummy && open.request.is_some();
        let signaled = self.open.iter().position(|open| theirs(open) && !open.is_silent());
        let behind = |open: &Open<T>| theirs(open) && open.at <= self.read_at + BEHIND_READ;
        let last = || self.open.iter().rposition(behind).filter(|_| self.guards.dummy);
        signaled.map(|at| (at, false)).or_else(|| last().map(|at| (at, true)))
    }

    fn may_post_dummy(&self) -> bool {
        self.guards.dummy && self.dummies < SPARE
    }

    fn dummy_at(&self, waits: &Waits) -> u64 {
        match self.since_completion {
            0 => waits.since + self.patience.dummy_after(waits.bytes),
            nth => self.last_dummy + self.patience.next_dummy_after(nth),
        }
    }

    /// When the oldest request is to start again, if that is possible: a READ into ODP memory. Where the peer has lost
    /// requests behind it, a second start makes up for the loss.
    fn stuck_at(&self, waits: &Waits) -> Option<u64> {
        let mut open = self.open.iter().filter(|open| open.request.is_some() && !open.dummy);
        let oldest = open.next().filter(|open| self.starts < STARTS && !open.barred)?;
        let possible = self.guards.reissue
            && !waits.silent
            && self.complete
            && oldest.request.as_ref().is_some_and(|request| request.on_demand)
            && self.open.iter().all(|open| open.request.as_ref().is_some_and(|request| request.repeatable));
        possible.then(|| waits.since + (self.patience.stuck_after(waits.bytes) << self.starts))
    }
}

/// Bits of a PSN.
const PSN: u32 = 0xff_ffff;
