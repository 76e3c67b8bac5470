//! Which thread drives the engine, and when the engine's thread sleeps.
//!
//! *Watching*: the thread waits for packets and deadlines. *Ticking*: a program polls, so the thread leaves the
//! sockets alone (waking it for each packet would cost the poller its core) and only checks at intervals whether the
//! program still polls. If such a program waits by looking at its memory, packets wake the thread nevertheless, while
//! the program does not poll (`standby.rs`).

mod armed;
mod polling;
mod spin;
mod standby;
mod tasks;
mod tick;
mod yield_backoff;

use crate::Errno;
use crate::os::locks::LeafMutex;
use crate::os::{clock, descriptors, epoll, threads};
use crate::pace::polling::Polling;
use crate::pace::standby::Standby;
use crate::pace::yield_backoff::YieldBackoff;
pub use spin::Spin;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
pub use tasks::ThreadTasks;

/// Shared between the threads that drive the engine and its own thread.
pub struct Pace {
    epoll: OwnedFd,
    kick: OwnedFd,
    timer: OwnedFd,
    packets: LeafMutex<Packets>,
    polling: Polling,
    standby: Standby,
    yield_backoff: YieldBackoff,
    /// When the timer fires (nanoseconds); `u64::MAX` if it is not armed.
    armed: AtomicU64,
    /// Becomes readable when the interface changes; -1 if that is not watched.
    interface: RawFd,
    interface_changed: AtomicBool,
    /// Becomes readable when there are messages about shared memory; -1 if there is none.
    local: RawFd,
    /// Bits of [`ThreadTasks`].
    tasks: AtomicU16,
    ended: AtomicBool,
    /// The program has closed descriptors of Weir.
    lost: AtomicBool,
    /// Number of requested flushes, and how many of them the engine's thread has done.
    flushes_asked: AtomicU32,
    flushes_done: AtomicU32,
}

/// Why the engine's thread wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The program polls: the thread moves no packets.
    Nothing,
    /// Packets wait, and the program may look at its memory: the thread handles them, and sleeps again.
    Standby,
    /// The program has just stopped polling: the thread moves packets from now on.
    Stopped,
    /// No program polls.
    Watch,
}

/// Descriptors of the sockets that receive packets.
struct Packets {
    descriptors: Vec<RawFd>,
    /// They are in the epoll set. While a program polls they are not: in the set, the kernel would look for waiting
    /// threads at each packet.
    watched: bool,
    /// They are in the set of the standby.
    on_standby: bool,
}

/// Sockets that an adapter may get without growth of a list: those of port 4791, connections of holders of that port,
/// and multicast groups.
pub const MORE_SOCKETS: usize = 96;

/// How long the thread sleeps at most (milliseconds): a program that closes all descriptors does not wake it.
const LONGEST_SLEEP: i32 = 5_000;

/// Tokens in the epoll set.
const TOKEN_KICK: u64 = 1;
const TOKEN_TIMER: u64 = 2;
const TOKEN_PACKETS: u64 = 3;
const TOKEN_INTERFACE: u64 = 4;
const TOKEN_LOCAL: u64 = 5;

impl Pace {
    /// Watches `packets` for arrivals, `interface`, and `local` for messages about shared memory; these must stay open as
    /// long as the adapter exists. `watchful`: the thread never ticks. Error: EMFILE.
    pub fn new(
        packets: Vec<RawFd>,
        interface: Option<RawFd>,
        local: Option<RawFd>,
        watchful: bool,
    ) -> Result<Pace, Errno> {
        let (epoll, sockets, outer) = (epoll::create()?, epoll::create()?, epoll::create()?);
        // SAFETY: each call creates a descriptor, owned from here on if the call succeeds.
        let (kick, timer) = unsafe {
            (
                own(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
                own(libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK))?,
            )
        };
        let pace = Pace {
            epoll,
            kick,
            timer,
            packets: LeafMutex::new(Packets {
                descriptors: Vec::with_capacity(packets.len() + MORE_SOCKETS),
                watched: true,
                on_standby: false,
            }),
            polling: Polling::new(watchful),
            standby: Standby::new(sockets, outer)?,
            yield_backoff: YieldBackoff::new(),
            armed: AtomicU64::new(u64::MAX),
            interface: interface.unwrap_or(-1),
            interface_changed: AtomicBool::new(false),
            local: local.unwrap_or(-1),
            tasks: AtomicU16::new(0),
            ended: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            flushes_asked: AtomicU32::new(0),
            flushes_done: AtomicU32::new(0),
        };
        pace.descriptors().into_iter().for_each(descriptors::mark);
        pace.add(pace.kick.as_raw_fd(), TOKEN_KICK)?;
        pace.add(pace.timer.as_raw_fd(), TOKEN_TIMER)?;
        for descriptor in packets {
            pace.watch(descriptor)?;
        }
        if let Some(interface) = interface {
            pace.add(interface, TOKEN_INTERFACE)?;
        }
        if let Some(local) = local {
            pace.add(local, TOKEN_LOCAL)?;
        }
        Ok(pace)
    }

    /// The descriptors that it opened: epoll sets, eventfd and timer.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let own = [&self.epoll, &self.kick, &self.timer].map(|fd| fd.as_raw_fd());
        own.into_iter().chain(self.standby.descriptors()).collect()
    }

    /// Watches a further descriptor for arrivals.
    pub fn watch(&self, descriptor: RawFd) -> io::Result<()> {
        let mut packets = self.packets.lock();
        if packets.watched {
            self.add(descriptor, TOKEN_PACKETS)?;
        }
        if packets.on_standby {
            self.standby.add(descriptor)?;
        }
        packets.descriptors.push(descriptor);
        Ok(())
    }

    /// Stops watching a descriptor, which is about to be closed.
    pub fn forget(&self, descriptor: RawFd) {
        let mut packets = self.packets.lock();
        packets.descriptors.retain(|other| *other != descriptor);
        if packets.watched {
            self.remove(descriptor);
        }
        if packets.on_standby {
            self.standby.remove(descriptor);
        }
    }

    /// The program has stopped polling, and packets waited or not: begins the standby if that happens often.
    pub fn note_stop(&self, packets_waited: bool) {
        if self.standby.is_active() || !self.standby.note_stop(packets_waited, clock::now().0) {
            return;
        }
        let mut packets = self.packets.lock();
        packets.on_standby = true;
        // A socket that cannot be added is looked at when the program has stopped, as without a standby.
        packets.descriptors.iter().for_each(|descriptor| drop(self.standby.add(*descriptor)));
        drop(packets);
        self.standby.begin();
    }

    /// Takes the sockets out of the set of a standby that has ended.
    fn end_standby(&self) {
        let mut packets = self.packets.lock();
        if std::mem::take(&mut packets.on_standby) {
            packets.descriptors.iter().for_each(|descriptor| self.standby.remove(*descriptor));
        }
    }

    /// Returns whether the program waits by looking at its memory, as far as is known.
    pub fn looks_at_memory(&self) -> bool {
        self.standby.is_active()
    }

    /// The thread has handled the packets that woke it from its standby.
    pub fn stand_by(&self) {
        self.standby.rearm();
    }

    /// A poll returned completions: the program may stop polling. Returns whether packets must wake the thread from now
    /// on.
    #[inline]
    pub fn may_stop(&self) -> bool {
        let arms = self.standby.is_active() && !self.standby.is_armed();
        if arms {
            self.standby.arm();
        }
        arms
    }

    /// Returns whether packets wake the thread although the program counts as a poller.
    pub fn stands_by(&self) -> bool {
        self.program_polls() && self.standby.is_armed()
    }

    /// Adds the descriptors of `packets` to the epoll set, or removes them.
    fn watch_packets(&self, watched: bool) {
        let mut packets = self.packets.lock();
        if packets.watched == watched {
            return;
        }
        packets.watched = watched;
        let mut failed = None;
        for descriptor in &packets.descriptors {
            if !watched {
                self.remove(*descriptor);
            } else if let Err(error) = self.add(*descriptor, TOKEN_PACKETS) {
                failed = Some(error);
            }
        }
        drop(packets);
        if let Some(error) = failed {
            tracing::warn!("a socket is not watched for packets: {error}");
        }
    }

    fn remove(&self, descriptor: RawFd) {
        epoll::remove(&self.epoll, descriptor);
    }

    fn add(&self, descriptor: RawFd, token: u64) -> io::Result<()> {
        epoll::add(&self.epoll, descriptor, libc::EPOLLIN, token)
    }

    /// Returns whether the interface has changed since the last call. The caller must then check it.
    pub fn interface_has_changed(&self) -> bool {
        self.interface_changed.swap(false, Ordering::Relaxed)
    }

    /// Asks the thread for work that the holder of the engine must not do.
    pub fn ask_thread(&self, tasks: ThreadTasks) {
        self.tasks.fetch_or(tasks.0, Ordering::Release);
        self.kick();
    }

    /// Returns the work that the thread was asked for since the last call.
    pub fn take_tasks(&self) -> ThreadTasks {
        ThreadTasks(self.tasks.swap(0, Ordering::Acquire))
    }

    /// Returns whether a program polls repeatedly.
    #[inline]
    pub fn program_polls(&self) -> bool {
        self.polling.program_polls()
    }

    /// A poll takes a turn at the time `now` (nanoseconds).
    #[inline]
    pub fn polls(&self, now: u64) {
        self.polling.note_poll(now);
    }

    /// A program polled and drove the engine. `worked`: whether there was work, `None` if another thread held the
    /// engine. `empty`: the poll found no completion. Returns whether packets need not wake the thread any more.
    #[inline]
    pub fn polled(&self, empty: bool, worked: Option<bool>) -> bool {
        if !empty {
            return false;
        }
        let disarms = self.standby.is_armed();
        if disarms {
            self.standby.disarm();
        }
        if self.yield_backoff.polled_in_vain() {
            // With fewer cores than pollers, the peer that this program waits for may have no core.
            self.offer_core();
        }
        if worked.is_some() && self.polling.note_empty_poll(|| clock::now().0) {
            self.kick();
        }
        disarms
    }

    /// Offers the core to other threads, unless they kept it for long lately.
    pub fn offer_core(&self) {
        self.yield_backoff.offer(|| clock::now().0, std::thread::yield_now);
    }

    /// A program is about to sleep until an event comes.
    pub fn hand_to_thread(&self) {
        if self.polling.hand_over() {
            self.kick();
        }
    }

    /// Wakes the thread by `deadline` (nanoseconds), if it is watching.
    pub fn wake_by(&self, deadline: Option<u64>) {
        let Some(deadline) = deadline else { return };
        if self.program_polls() || deadline >= self.armed.load(Ordering::Relaxed) {
            return;
        }
        self.armed.store(deadline, Ordering::Relaxed);
        let when = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: (deadline / 1_000_000_000) as libc::time_t,
                // Zero would disarm the timer.
                tv_nsec: (deadline % 1_000_000_000).max(1) as libc::c_long,
            },
        };
        // SAFETY: one itimerspec on the stack.
        unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &when, std::ptr::null_mut());
        }
    }

    /// Wakes the thread.
    pub fn kick(&self) {
        if !self.still_has(&self.kick) {
            return;
        }
        let one = 1u64;
        // A thread of the program may call this without holding the engine: as a raw system call it is no cancellation
        // point.
        // SAFETY: eight bytes from the stack.
        unsafe { libc::syscall(libc::SYS_write, self.kick.as_raw_fd(), &raw const one, 8usize) };
    }

    /// Returns whether a descriptor still stands for its file. Otherwise the program has closed it by a system call that
    /// Weir does not see, and the number may stand for a file of the program: nothing must be written there.
    fn still_has(&self, descriptor: &OwnedFd) -> bool {
        let marked = descriptors::is_marked(descriptor.as_raw_fd());
        if !marked {
            self.note_loss();
        }
        marked
    }

    /// The program has closed descriptors of Weir: the adapter must fail. A signal handler may call this.
    #[cold]
    pub fn note_loss(&self) {
        if !self.lost.swap(true, Ordering::SeqCst) {
            descriptors::lose();
        }
    }

    /// Returns whether the program has closed descriptors of Weir.
    #[inline]
    pub fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.kick();
    }

    /// Asks the engine's thread to send owed ACKs. Returns a ticket for [`has_flushed`](Self::has_flushed). A signal
    /// handler may call both.
    pub fn ask_flush(&self) -> u32 {
        let ticket = self.flushes_asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        self.kick();
        ticket
    }

    /// Returns whether the flush of a ticket is done.
    pub fn has_flushed(&self, ticket: u32) -> bool {
        self.flushes_done.load(Ordering::SeqCst).wrapping_sub(ticket) as i32 >= 0
    }

    /// The ticket of a flush that is not done yet.
    pub fn flush_requested(&self) -> Option<u32> {
        let asked = self.flushes_asked.load(Ordering::SeqCst);
        (!self.has_flushed(asked)).then_some(asked)
    }

    /// The engine's thread has done a flush.
    pub fn flushed(&self, ticket: u32) {
        self.flushes_done.store(ticket, Ordering::SeqCst);
    }

    /// Returns whether the thread should end.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The thread waits until there is something to do, or, if the program polls, for a tick. `drives`: whether a thread
    /// of the program takes a turn at this moment.
    pub fn wait(&self, drives: impl Fn() -> bool) -> Wake {
        // A look may have taken the kick of a flush that was requested later than the thread checked.
        if self.is_wanted() {
            if self.program_polls() { Wake::Nothing } else { Wake::Watch }
        } else if self.program_polls() {
            self.watch_packets(false);
            self.tick(drives)
        } else {
            self.watch_packets(true);
            // A program that looks at its memory and never polls may have the core.
            threads::take_short_slices(true);
            self.wait_for_packets(LONGEST_SLEEP);
            Wake::Watch
        }
    }

    /// Takes what is ready among the descriptors, without waiting.
    pub fn look(&self) {
        self.wait_for_packets(0);
    }

    /// Returns whether the thread has work besides packets: it was asked for tasks, or the interface has changed.
    fn has_other_work(&self) -> bool {
        self.tasks.load(Ordering::Relaxed) != 0 || self.interface_changed.load(Ordering::Relaxed)
    }

    /// Returns whether the thread has anything to do but to move packets.
    pub fn is_wanted(&self) -> bool {
        self.flush_requested().is_some() || self.has_other_work() || self.has_ended()
    }

    /// `timeout`: milliseconds.
    fn wait_for_packets(&self, timeout: i32) {
        if !self.still_has(&self.epoll) {
            return;
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let (epoll, room) = (self.epoll.as_raw_fd(), events.len() as i32);
        // SAFETY: eight events on the stack.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, timeout) };
        if count <= 0 {
            // The process was stopped and goes on: another process may have taken port 4791 meanwhile.
            if count < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                self.tasks.fetch_or(ThreadTasks::LISTEN.0, Ordering::Release);
            }
            // A thread that waits keeps the set, but not what was in it.
            self.still_has(&self.kick);
            return;
        }
        for event in &events[..count as usize] {
            match event.u64 {
                TOKEN_KICK => drain(&self.kick),
                TOKEN_TIMER => {
                    drain(&self.timer);
                    self.armed.store(u64::MAX, Ordering::Relaxed);
                }
                TOKEN_INTERFACE => self.interface_changed.store(true, Ordering::Relaxed),
                TOKEN_LOCAL => {
                    self.tasks.fetch_or(ThreadTasks::LOCAL.0, Ordering::Release);
                }
                _ => {}
            }
        }
    }
}

/// # Safety
/// `descriptor` is new and has no other owner, or is -1 for an error.
unsafe fn own(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as the caller guarantees.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn drain(descriptor: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: eight bytes onto the stack; the descriptor does not block.
    unsafe { libc::read(descriptor.as_raw_fd(), (&raw mut count).cast(), 8) };
}

#[cfg(test)]
mod tests;
