//! How the thread waits while a program polls: it checks at intervals whether the program still does, and wakes for
//! packets if the program may look at its memory.

use crate::os::{clock, threads};
use crate::pace::polling::TICK;
use crate::pace::{Pace, ThreadTasks, Wake, drain, standby};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// A tick that takes so long has been interrupted, nanoseconds.
const STOPPED: u64 = 100_000_000;

impl Pace {
    /// Waits for a tick, for packets if the standby is armed, or until the thread has other work. `drives`: as for
    /// [`wait`](Self::wait).
    pub(super) fn tick(&self, drives: impl Fn() -> bool) -> Wake {
        if !self.still_has(&self.kick) {
            return Wake::Watch;
        }
        let watched = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let standby = if self.looks_at_memory() { self.standby.descriptors()[1] } else { -1 };
        // Otherwise the program needs the core more than the thread does.
        threads::take_short_slices(self.looks_at_memory());
        let own = [self.kick.as_raw_fd(), self.interface, self.local, standby];
        let mut poll = own.map(watched);
        if standby < 0 {
            self.end_standby();
        }
        threads::let_timers_wait(self.polling.check_may_wait(clock::now().0));
        let wait = libc::timespec { tv_sec: 0, tv_nsec: TICK as libc::c_long };
        // The reasons for kicks so far are checked by the thread itself.
        drain(&self.kick);
        if self.program_polls() && !self.is_wanted() {
            let begun = clock::now().0;
            // SAFETY: four pollfds, of which some may be -1, and one timespec on the stack.
            unsafe { libc::ppoll(poll.as_mut_ptr(), poll.len() as libc::nfds_t, &wait, std::ptr::null()) };
            // The process may have been stopped: another process may have taken port 4791 meanwhile.
            if clock::now().0 - begun > STOPPED {
                self.tasks.fetch_or(ThreadTasks::LISTEN.0, Ordering::Release);
            }
            drain(&self.kick);
        }
        if poll[1].revents != 0 {
            self.interface_changed.store(true, Ordering::Relaxed);
        }
        if poll[3].revents != 0 {
            self.standby.take_wake();
        }
        // A message of a peer may say that packets are in a ring.
        if (poll[2].revents != 0 || poll[3].revents != 0) && self.standby.is_doubtful() {
            self.test_standby(|pace| pace.wait_for_kick(standby::TEST));
        }
        if poll[2].revents != 0 {
            self.tasks.fetch_or(ThreadTasks::LOCAL.0, Ordering::Release);
        }
        // Otherwise the program arms a CQ at this moment: its kick may be among those drained here.
        if poll[3].revents != 0 && self.program_polls() {
            return Wake::Standby;
        }
        match (self.polling.still_polled(clock::now().0, drives()), self.standby.is_armed()) {
            (true, false) => Wake::Nothing,
            // Arming may have failed: packets may wait.
            (true, true) => Wake::Standby,
            (false, _) => {
                threads::let_timers_wait(0);
                Wake::Stopped
            }
        }
    }

    /// Packets have woken the thread from its standby: finds out whether the program takes them.
    /// `wait`: for the program, or until the thread is kicked. It returns whether it was.
    #[cold]
    pub(super) fn test_standby(&self, wait: impl FnOnce(&Pace) -> bool) {
        // The kick that came with the packets may be drained.
        if !self.program_polls() || self.is_wanted() {
            return;
        }
        let last = self.polling.last_poll();
        if !wait(self) {
            self.standby.note_test(self.polling.last_poll() != last);
        }
    }

    /// Waits until the thread is kicked, for this many nanoseconds at the most, and leaves the kick. Returns whether it
    /// was.
    fn wait_for_kick(&self, at_most: u64) -> bool {
        let mut kick = libc::pollfd { fd: self.kick.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let wait = libc::timespec { tv_sec: 0, tv_nsec: at_most as libc::c_long };
        threads::let_timers_wait(0);
        // SAFETY: one pollfd and one timespec on the stack.
        unsafe { libc::ppoll(&mut kick, 1, &wait, std::ptr::null()) != 0 }
    }
}
