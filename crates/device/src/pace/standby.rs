//! Standby: a program that polls, but waits by looking at its memory in between, makes no call while it waits. Its
//! sockets then wake the engine's thread, although the thread ticks.
//!
//! The thread notices such a program: packets waited at its tick, and the program had stopped polling. From then on each
//! poll that returns a completion arms the standby, because the program may stop polling, and the next empty poll
//! disarms it. Only such programs pay for this: about two system calls per message.
//!
//! A program that receives much polls again soon, but packets come in between all the time and wake the thread, which
//! may take the core that the program would poll on. So the thread tests now and then whether it is needed: it leaves
//! the packets to the program for a moment. The standby ends when the program polls in all of several
//! tests in a row.
//!
//! The sockets are in one epoll set, and that set is in a second one, where it is armed and disarmed (`armed.rs`).
//! Arming looks for packets that have arrived before, so no wake-up is lost.

use crate::os::epoll;
use crate::pace::armed::Armed;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Stops in a row with packets waiting, each within `SOON` after the one before, after which the standby begins. A
/// program that only polls is off its core at a tick now and then, which looks the same.
const BEGIN_AFTER: u32 = 3;
/// Nanoseconds.
const SOON: u64 = 20_000_000;
/// Each end of a standby without need doubles the number of stops after which the next one begins, this often.
const MAX_DOUBLINGS: u32 = 5;
/// Disarmed this often since a test showed that the thread was needed, the standby ends.
const END_AFTER: u32 = 256;
/// Disarmed this often, it is doubtful: tests begin.
const DOUBTFUL_AFTER: u32 = 128;
/// A test that shows no need counts as much as this many times of disarming.
const TEST_WEIGHT: u32 = 16;
/// The length of a test (nanoseconds). A program that polls at all does so within this time, if it has its core.
pub const TEST: u64 = 50_000;

/// Shared between polling threads and the engine's thread.
pub struct Standby {
    /// The sockets, while there is a standby.
    sockets: OwnedFd,
    /// Contains `sockets`.
    outer: OwnedFd,
    active: AtomicBool,
    armed: Armed,
    stalls: AtomicU32,
    /// When the last of them was (nanoseconds).
    stalled_at: AtomicU64,
    /// How often it was disarmed since a test showed that the thread was needed.
    doubts: AtomicU32,
    /// How many in a row ended without need.
    ended: AtomicU32,
}

impl Standby {
    /// No standby. Both descriptors are epoll sets. Error: that of the system call.
    pub fn new(sockets: OwnedFd, outer: OwnedFd) -> io::Result<Standby> {
        let standby = Standby {
            sockets,
            outer,
            active: AtomicBool::new(false),
            armed: Armed::new(),
            stalls: AtomicU32::new(0),
            stalled_at: AtomicU64::new(0),
            doubts: AtomicU32::new(0),
            ended: AtomicU32::new(0),
        };
        epoll::add(&standby.outer, standby.sockets.as_raw_fd(), 0, 0)?;
        Ok(standby)
    }

    /// Its descriptors: the set of the sockets, and the set that becomes readable when the thread must wake.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.sockets.as_raw_fd(), self.outer.as_raw_fd()]
    }

    /// Whether polls arm it.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether packets wake the thread, because the program may have stopped polling.
    #[inline]
    pub fn is_armed(&self) -> bool {
        self.armed.is_armed()
    }

    /// The program stopped polling, and packets waited or not. Returns whether the standby should begin. `now`:
    /// nanoseconds.
    pub fn note_stop(&self, packets_waited: bool, now: u64) -> bool {
        let soon = now.saturating_sub(self.stalled_at.swap(now, Ordering::Relaxed)) <= SOON;
        let before = if soon { self.stalls.load(Ordering::Relaxed) } else { 0 };
        let stalls = if packets_waited { before + 1 } else { 0 };
        let begins = stalls >= BEGIN_AFTER << self.ended.load(Ordering::Relaxed).min(MAX_DOUBLINGS);
        self.stalls.store(if begins { 0 } else { stalls }, Ordering::Relaxed);
        begins
    }

    /// The sockets are in the set.
    pub fn begin(&self) {
        self.doubts.store(0, Ordering::Relaxed);
        self.active.store(true, Ordering::Relaxed);
    }

    /// A socket enters the set.
    pub fn add(&self, socket: RawFd) -> io::Result<()> {
        epoll::add(&self.sockets, socket, libc::EPOLLIN, 0)
    }

    /// A socket leaves the set; it need not be in it.
    pub fn remove(&self, socket: RawFd) {
        epoll::remove(&self.sockets, socket);
    }

    /// A poll returned a completion: the program may stop polling.
    #[cold]
    pub fn arm(&self) {
        self.armed.arm(|armed| self.set(armed));
    }

    /// A poll found nothing: the program polls.
    #[cold]
    pub fn disarm(&self) {
        if self.armed.disarm(|armed| self.set(armed)) {
            self.doubt(1);
        }
    }

    /// Whether the thread should test its need at its next wake-up: it leaves the packets to the program for
    /// [`TEST`].
    pub fn is_doubtful(&self) -> bool {
        self.is_active() && self.doubts.load(Ordering::Relaxed) >= DOUBTFUL_AFTER
    }

    /// What a test showed: the program polled meanwhile, or the thread was needed.
    pub fn note_test(&self, polled: bool) {
        if polled {
            self.doubt(TEST_WEIGHT);
        } else {
            self.doubts.store(0, Ordering::Relaxed);
            self.ended.store(0, Ordering::Relaxed);
        }
    }

    fn doubt(&self, weight: u32) {
        let doubts = self.doubts.load(Ordering::Relaxed) + weight;
        self.doubts.store(doubts, Ordering::Relaxed);
        if doubts >= END_AFTER && self.active.swap(false, Ordering::Relaxed) {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The thread was woken by packets. They wake it again only after [`rearm`](Self::rearm).
    pub fn take_wake(&self) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: one event on the stack.
        unsafe { libc::epoll_wait(self.outer.as_raw_fd(), &mut event, 1, 0) };
    }

    /// The thread has handled the packets. Further ones wake it again, unless the program polls.
    pub fn rearm(&self) {
        self.armed.rearm(|armed| self.set(armed));
    }

    fn set(&self, armed: bool) {
        let events = if armed { libc::EPOLLIN | libc::EPOLLONESHOT } else { 0 };
        // It cannot fail: the set is in the other one.
        let _ = epoll::modify(&self.outer, self.sockets.as_raw_fd(), events, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::own;

    /// A standby that has begun, with an eventfd in place of a socket.
    fn begun() -> (Standby, OwnedFd) {
        let (sockets, outer) = (epoll::create().unwrap(), epoll::create().unwrap());
        // SAFETY: the call creates a descriptor.
        let socket = unsafe { own(libc::eventfd(0, libc::EFD_NONBLOCK)).unwrap() };
        let standby = Standby::new(sockets, outer).unwrap();
        standby.add(socket.as_raw_fd()).unwrap();
        standby.begin();
        (standby, socket)
    }

    fn packet_arrives(socket: &OwnedFd) {
        let one = 1u64;
        // SAFETY: eight bytes from the stack.
        unsafe { libc::write(socket.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn packets_are_handled(socket: &OwnedFd) {
        crate::pace::drain(socket);
    }

    fn wakes(standby: &Standby) -> bool {
        let mut poll = libc::pollfd { fd: standby.descriptors()[1], events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn packets_wake_the_thread_only_while_the_program_does_not_poll() {
        let (standby, socket) = begun();
        packet_arrives(&socket);
        assert!(!wakes(&standby), "the program polls");
        standby.arm();
        assert!(wakes(&standby), "a packet that came before counts");
        standby.disarm();
        assert!(!wakes(&standby));
        packets_are_handled(&socket);
        standby.arm();
        assert!(!wakes(&standby));
        packet_arrives(&socket);
        assert!(wakes(&standby));
    }

    #[test]
    fn a_wake_up_comes_once_until_the_thread_stands_by_again() {
        let (standby, socket) = begun();
        standby.arm();
        packet_arrives(&socket);
        standby.take_wake();
        assert!(!wakes(&standby), "the thread works");
        standby.rearm();
        assert!(wakes(&standby), "the packet was not handled");
        standby.take_wake();
        standby.disarm();
        standby.rearm();
        assert!(!wakes(&standby), "the program polls");
    }

    #[test]
    fn it_begins_after_stops_in_a_row_with_packets_waiting() {
        let (standby, _) = begun();
        let begins: Vec<bool> = [true, true, false, true, true, true].map(|waited| standby.note_stop(waited, 7)).into();
        assert_eq!(begins, [false, false, false, false, false, true]);
    }

    #[test]
    fn it_does_not_begin_after_rare_stops() {
        let (standby, _) = begun();
        let rare = SOON + 1;
        assert!((1..100).all(|stop| !standby.note_stop(true, stop * rare)));
        assert!(!standby.note_stop(true, 100 * rare - SOON));
        assert!(standby.note_stop(true, 100 * rare - SOON + 1), "the third within a short time");
    }

    /// Arms and disarms `rounds` times, and tests the need where the thread would.
    fn receive(standby: &Standby, rounds: u32, needed: bool) {
        for _ in 0..rounds {
            standby.arm();
            if standby.is_doubtful() {
                standby.note_test(!needed);
            }
            standby.disarm();
        }
    }

    #[test]
    fn it_ends_for_a_program_that_polls_although_packets_come() {
        let (standby, _) = begun();
        receive(&standby, DOUBTFUL_AFTER, false);
        assert!(standby.is_active() && standby.is_doubtful());
        receive(&standby, (END_AFTER - DOUBTFUL_AFTER) / TEST_WEIGHT, false);
        assert!(!standby.is_active() && !standby.is_doubtful());
    }

    #[test]
    fn it_ends_when_no_packets_wake_the_thread_for_long() {
        let (standby, _) = begun();
        for _ in 0..END_AFTER {
            assert!(standby.is_active());
            standby.arm();
            standby.disarm();
        }
        assert!(!standby.is_active());
    }

    #[test]
    fn it_goes_on_for_a_program_that_looks_at_its_memory() {
        let (standby, _) = begun();
        receive(&standby, 3 * END_AFTER, true);
        assert!(standby.is_active());
    }

    #[test]
    fn after_an_end_without_need_it_begins_later() {
        let (standby, _) = begun();
        let stops = |standby: &Standby| (1..).find(|stop| standby.note_stop(true, *stop)).unwrap();
        for doublings in [0, 1, 2, 3, 4, 5, 5] {
            assert_eq!(stops(&standby), u64::from(BEGIN_AFTER) << doublings);
            standby.begin();
            receive(&standby, END_AFTER, false);
            assert!(!standby.is_active());
        }
        standby.begin();
        receive(&standby, END_AFTER, true);
        receive(&standby, END_AFTER, false);
        assert!(!standby.is_active());
        assert_eq!(stops(&standby), u64::from(BEGIN_AFTER) << 1, "it was needed meanwhile");
    }
}
