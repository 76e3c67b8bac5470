//! One adapter: the engine of one device in one process, and the threads that drive it.
//!
//! A thread that posts or polls drives the engine inline if no other thread holds it. While no program polls, the
//! engine's thread does: see [`crate::pace`]. Contexts of one device share an adapter; a forked child has none.

mod control;
mod device_fatal;
pub(crate) mod fork;
mod local_links;
mod open;
mod page_faults;
pub mod process_exit;
mod registry;
#[cfg(test)]
mod testing;
mod thread;
mod thread_tasks;

pub use open::at_exit;

use crate::Errno;
use crate::engine::{Engine, Turn};
use crate::local::listener::Listener;
use crate::os::clock;
use crate::os::descriptors::DescriptorGuard;
use crate::os::engine_hold::holds_engine;
use crate::os::locks::{Held, rank};
use crate::os::panics::Failed;
use crate::os::process::Owned;
use crate::os::refused::refused;
use crate::os::threads::let_timers_wait;
use crate::pace::ThreadTasks;
use crate::shared::handover::Handover;
use crate::shared::qp::QpShared;
use crate::shared::state::AdapterState;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A device's engine in this process.
pub(crate) struct Adapter {
    state: AdapterState,
    /// The profile was given by the caller of [`Adapter::open`], not by the environment.
    own_profile: bool,
    engine: Owned<Handover<Engine>>,
    /// Where peers ask for shared memory; `None` if this process shares none.
    listener: Option<Owned<Listener>>,
    /// Held while the descriptors are closed. The last member: members are dropped in this order.
    closing: Option<DescriptorGuard>,
}

/// How long a thread sleeps at most after many failed attempts to take a turn.
const ASLEEP: Duration = Duration::from_millis(1);

/// How often the engine's thread looks whether the engine is free before it sleeps: for some microseconds, in which a
/// short turn on another core ends.
const TRIES: u32 = 200;

/// In this time a peer on this machine would have answered.
const MOMENT: Duration = Duration::from_micros(300);

/// A posted burst of this many bytes goes out at once.
const FULL_BURST: u32 = 64 << 10;

impl Adapter {
    /// Logs why a control call is refused, with the device's name, and returns its error.
    #[cold]
    pub fn refuse(&self, errno: i32, why: fmt::Arguments<'_>) -> Errno {
        refused(errno, format_args!("{}: {why}", self.device.name))
    }

    /// Marks the adapter as untrusted: it fails in a turn of this thread, or in another turn of the holder.
    #[cold]
    pub fn mark_failed(&self) {
        if self.is_ours() {
            self.condition.mark_failed();
            self.request_turn();
        }
    }

    /// Rings a QP's doorbell. Takes a turn at once if `now` is set, a full burst has gathered, or, while a program
    /// polls, nothing of the QP is in flight. Otherwise requests may wait, so that they leave in larger bursts: for the
    /// next poll, or, while no program polls, as [`Gathering`](crate::shared::gathering::Gathering) says.
    pub fn ring(&self, shared: &QpShared, now: bool) {
        if self.check().is_err() {
            return;
        }
        self.doorbells.ring(&shared.bell, shared.num);
        let wait = !now && shared.unsent.load(Ordering::Relaxed) < FULL_BURST && self.may_gather(shared);
        if !wait {
            self.request_turn();
        }
    }

    /// Returns whether a later turn will take a doorbell that has rung: that of the next poll, or of the engine's
    /// thread.
    fn may_gather(&self, shared: &QpShared) -> bool {
        if self.pace.program_polls() {
            return shared.busy.load(Ordering::Relaxed);
        }
        self.gathering.may_wait(&shared.busy, || clock::now().0)
    }

    /// An empty CQ was polled: takes one turn. Returns whether there was work; `None` if another thread holds the
    /// engine or the adapter does not work. After many such polls in one turn of the holder, sleeps up to `ASLEEP`.
    pub fn drive_for_poll(&self) -> Option<bool> {
        if self.check().is_ok() { self.attempt(Turn::POLL) } else { None }
    }

    /// A program polled and drove the engine ([`Pace::polled`](crate::pace::Pace::polled)).
    #[inline]
    pub fn polled(&self, empty: bool, worked: Option<bool>) {
        if self.pace.polled(empty, worked) {
            self.sleepers.unwatch();
        }
    }

    /// A poll returned completions: the program may look at its memory from now on.
    #[inline]
    pub fn may_stop_polling(&self) {
        if self.pace.may_stop() {
            self.watch_rings();
        }
    }

    /// Packets in rings wake the thread from now on. Those that came before are taken here.
    #[cold]
    fn watch_rings(&self) {
        if self.sleepers.watch() {
            // An ACK still waits for the program's reply.
            self.drive(Turn::LOOK);
        }
    }

    /// Takes turns until there was no work for a moment, for 5 ms at most: for control paths that need what is under way.
    pub fn drive_until_idle(&self) {
        const AT_MOST: Duration = Duration::from_millis(5);
        let began = clock::now();
        let mut last_work = began;
        while self.check().is_ok() && clock::now() - last_work < MOMENT && clock::now() - began < AT_MOST {
            if self.drive(Turn::POLL) {
                last_work = clock::now();
            }
            std::thread::yield_now();
        }
    }

    /// Handles the packets that have come by now; waits for the engine.
    pub fn take_packets(&self) {
        if !holds_engine() && self.check().is_ok() {
            self.with_engine(|engine| engine.take_packets(self));
        }
    }

    /// Handles the packets that have come by now, and looks again for a moment as long as `waits`. On a busy core a look
    /// can take longer than that: it looks several times.
    pub fn take_packets_while(&self, waits: impl Fn() -> bool) {
        const LOOKS: u32 = 4;
        self.take_packets();
        let (began, mut looks) = (clock::now(), 0);
        while waits() && (looks < LOOKS || clock::now() - began < MOMENT) {
            std::thread::yield_now();
            self.take_packets();
            looks += 1;
        }
    }

    /// A program armed a CQ and will sleep: the engine's thread must watch the sockets.
    pub fn expects_events(&self) {
        self.pace.hand_to_thread();
    }

    /// One turn unless another thread holds the engine. Returns whether there was work; true if the engine is held.
    pub fn drive(&self, turn: Turn) -> bool {
        self.attempt(turn).unwrap_or(true)
    }

    /// One turn as soon as no other thread holds the engine, for the engine's thread: it may have taken the core from a
    /// thread of the program in the middle of a turn, which needs that core to end the turn. So it does not try for
    /// long before it sleeps, for `ASLEEP` at most. Returns whether there was work; `None` if the engine is still held.
    fn drive_when_free(&self, turn: Turn) -> Option<bool> {
        let mut tries = 0;
        while tries < TRIES && self.engine.is_held() {
            std::hint::spin_loop();
            tries += 1;
        }
        if tries == TRIES {
            let_timers_wait(0);
        }
        self.engine.wait_within(ASLEEP, |engine| self.turn(engine, turn), |engine| self.another_turn(engine))
    }

    /// The engine's thread is about to sleep, or leaves the packets to a program that polls: requests wait no longer.
    fn end_gathering(&self) {
        self.gathering.thread_sleeps();
        if self.doorbells.any() {
            self.request_turn();
        }
    }

    fn attempt(&self, turn: Turn) -> Option<bool> {
        self.engine.attempt_or_sleep(ASLEEP, |engine| self.turn(engine, turn), |engine| self.another_turn(engine))
    }

    /// Returns whether there was work.
    fn turn(&self, engine: &mut Engine, turn: Turn) -> bool {
        self.guarded(engine, |engine| engine.turn(self, turn)).unwrap_or(false)
    }

    /// Sends owed ACKs. Waits for the engine.
    pub fn flush(&self) {
        if !holds_engine() && self.check().is_ok() {
            self.with_engine(|engine| engine.turn(self, Turn::FLUSH));
        }
    }

    /// Outside of a turn, a CQ got a deadline or has overflowed. Waits for the engine.
    pub fn follow_cqs(&self) {
        if !holds_engine() && self.check().is_ok() {
            self.with_engine(|engine| engine.follow_cqs(self));
        }
    }

    /// Requests that wait for others to gather leave now: what they need is about to be destroyed.
    pub fn send_gathered(&self) {
        if self.doorbells.any() && !holds_engine() && self.check().is_ok() {
            self.with_engine(|engine| engine.turn(self, Turn::SEND));
        }
    }

    /// Another turn of the holder, for a doorbell that rang meanwhile.
    fn another_turn(&self, engine: &mut Engine) {
        self.turn(engine, Turn::SEND);
    }

    /// Returns when no access that began before this call is still under way.
    pub fn quiesce(&self) {
        if !holds_engine() && self.is_ours() {
            self.with_engine(|_| ());
        }
    }

    /// As [`quiesce`](Self::quiesce), but waits for `at_most` at the longest: the thread that unmaps memory may hold
    /// what the engine waits for, such as a lock of malloc. If it runs a signal handler, it may also hold any lock that
    /// a turn takes. So the engine's thread takes the turns that other threads want meanwhile.
    fn quiesce_within(&self, at_most: Duration) {
        if !holds_engine() && self.is_ours() {
            self.engine.wait_in_handler_within(at_most, |_| (), |_| self.pace.ask_thread(ThreadTasks::TURN));
        }
    }

    /// Runs `work` while nothing is staged: all that was sent has left application memory.
    pub fn between_turns<T>(&self, work: impl FnOnce() -> T) -> T {
        if holds_engine() { work() } else { self.with_engine(|_| work()) }
    }

    /// Waits for the engine; control paths only. A panic in `work` is passed on after the engine is released.
    pub fn with_engine<T>(&self, work: impl FnOnce(&mut Engine) -> T) -> T {
        Held::<{ rank::ENGINE }>::check();
        let done = self.engine.wait(|engine| self.guarded(engine, work), |engine| self.another_turn(engine));
        done.unwrap_or_else(|failed: Failed| std::panic::resume_unwind(Box::new(failed)))
    }

    /// Ensures a turn that begins after this call began: on this thread, or as another turn of the holder.
    #[inline]
    fn request_turn(&self) {
        self.engine.request_turn(|engine| self.another_turn(engine));
    }
}

impl Deref for Adapter {
    type Target = AdapterState;

    #[inline]
    fn deref(&self) -> &AdapterState {
        &self.state
    }
}
