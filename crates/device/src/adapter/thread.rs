//! The engine's thread: moves packets while no program polls.

use crate::Errno;
use crate::adapter::Adapter;
use crate::adapter::local_links::LocalLinks;
use crate::engine::Turn;
use crate::local::endpoint::Sleepers;
use crate::os::clock;
use crate::os::panics::catch_panic;
use crate::os::threads::spawn_unwatched;
use crate::pace::{Pace, Spin, ThreadTasks, Wake};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The most turns of the thread on one wake-up from its standby.
const STANDBY_TURNS: usize = 64;
/// How often a thread with steady work looks at its other descriptors.
const LOOK: Duration = Duration::from_millis(1);

/// Starts the thread with the program's signals blocked, so that no handler runs on it. Error: EAGAIN.
pub fn start(adapter: &Arc<Adapter>) -> Result<(), Errno> {
    let (pace, sleepers) = (adapter.pace.clone(), adapter.sleepers.clone());
    let adapter = Arc::downgrade(adapter);
    let run = move || {
        let weak = adapter.clone();
        if !catch_panic(|| drive(&pace, &sleepers, &adapter))
            && let Some(adapter) = weak.upgrade()
            && adapter.is_ours()
        {
            // Another thread could hand a turn to this thread, which has ended: so this thread waits for the engine.
            adapter.condition.mark_failed();
            catch_panic(|| adapter.with_engine(|_| ()));
        }
    };
    spawn_unwatched(c"weir-engine", 256 << 10, run)
}

/// Runs until the adapter is gone or has failed.
fn drive(pace: &Pace, sleepers: &Sleepers, adapter: &Weak<Adapter>) {
    let mut links = LocalLinks::default();
    let mut spin = Spin::default();
    while !pace.has_ended() {
        // The adapter's other threads are those of the program.
        let wake = pace.wait(|| adapter.upgrade().is_some_and(|adapter| adapter.engine.is_held()));
        if pace.has_lost() {
            if let Some(adapter) = adapter.upgrade() {
                adapter.with_engine(|_| ());
            }
            break;
        }
        let mine = wake != Wake::Nothing;
        if !pace.stands_by() {
            sleepers.disarm();
        }
        let changed = pace.interface_has_changed();
        let tasks = pace.take_tasks();
        let flush = pace.flush_requested();
        if !mine && !changed && tasks == ThreadTasks::NONE && flush.is_none() {
            continue;
        }
        let Some(adapter) = adapter.upgrade() else { break };
        if let Some(ticket) = flush {
            adapter.flush();
            pace.flushed(ticket);
        }
        if changed {
            adapter.watch.process_notifications();
        }
        adapter.run_tasks(tasks, &mut links);
        if !mine {
            continue;
        }
        if wake == Wake::Standby {
            // It does not spin, as below.
            for _ in 0..STANDBY_TURNS {
                if adapter.drive_when_free(Turn::THREAD) != Some(true) || !pace.stands_by() || pace.is_wanted() {
                    break;
                }
            }
            pace.stand_by();
            if pace.stands_by() && sleepers.watch() {
                adapter.drive_when_free(Turn::THREAD);
            }
            continue;
        }
        let mut stopped = wake == Wake::Stopped;
        let mut now = clock::now();
        let (mut last_work, mut last_look) = (now, now);
        adapter.gathering.thread_wakes();
        spin.begin();
        loop {
            // Steady work must not keep the thread from changes of the interface. A turn follows: it arms the timer.
            if now - last_look > LOOK {
                pace.look();
                last_look = now;
            }
            let is_driven = adapter.engine.is_held();
            let worked = adapter.drive_when_free(Turn::THREAD).unwrap_or(true);
            if std::mem::take(&mut stopped) {
                pace.note_stop(worked && !is_driven);
            }
            now = clock::now();
            if worked {
                last_work = now;
            }
            if adapter.pace.program_polls() || pace.has_ended() {
                break;
            }
            // A program that looks at its memory may need this core.
            if !worked && pace.looks_at_memory() || !spin.goes_on(worked, (now - last_work).as_nanos() as u64) {
                // A peer wakes the thread for packets that come after this turn.
                if !sleepers.arm() || !adapter.drive(Turn::THREAD) {
                    break;
                }
                sleepers.disarm();
                last_work = now;
            }
            if pace.is_wanted() {
                break;
            }
            // The program that the thread waits for may need this core. Without packets to wait for, the thread had
            // better sleep: a wake-up gets the core back sooner.
            if spin.is_idle() {
                adapter.pace.offer_core();
            }
        }
        adapter.end_gathering();
    }
    if pace.has_lost() {
        // The numbers of its sockets may stand for files of the program.
        std::mem::forget(links);
    }
}

#[cfg(test)]
mod tests {
    use crate::adapter::testing::Bed;
    use crate::engine::Turn;
    use std::io;
    use std::os::fd::RawFd;
    use std::time::{Duration, Instant};
    use weir_link::{Arrival, Carrier, Inbox, Outbox};
    use weir_transport::Profile;

    /// A carrier on which garbage arrives all the time: every turn has work.
    struct Noisy(Option<Box<dyn Carrier>>);

    impl Carrier for Noisy {
        fn send(&mut self, outbox: &Outbox) -> io::Result<()> {
            self.0.as_mut().map_or(Ok(()), |inner| inner.send(outbox))
        }
        fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
            inbox.arrivals.clear();
            inbox.arrivals.push(Arrival::new(([10, 0, 0, 1], 1).into(), 2, 0, 4));
            Ok(1)
        }
        fn max_segments(&self) -> usize {
            1
        }
        fn listen(&mut self, _: u16) -> io::Result<()> {
            Err(io::ErrorKind::AddrInUse.into())
        }
        fn fds(&self) -> Vec<RawFd> {
            self.0.as_ref().map_or_else(Vec::new, |inner| inner.fds())
        }
    }

    #[test]
    fn a_turn_of_the_thread_waits_for_the_holder_only_so_long() {
        let bed = Bed::new(&Profile::ideal());
        let adapter = bed.adapter();
        adapter.with_engine(|_| {
            let waits =
                std::thread::scope(|scope| scope.spawn(|| adapter.drive_when_free(Turn::THREAD)).join().unwrap());
            assert_eq!(waits, None);
        });
        // The adapter's own thread may hold it, without its core.
        assert!((0..1000).any(|_| adapter.drive_when_free(Turn::THREAD).is_some()));
    }

    #[test]
    fn steady_work_does_not_keep_the_thread_from_its_tasks() {
        let bed = Bed::new(&Profile { name: "steady work".into(), ..Profile::ideal() });
        bed.receive(1).unwrap();
        bed.send().unwrap();
        bed.completions(2);
        let adapter = bed.adapter().clone();
        adapter.with_engine(|engine| engine.replace_carrier(|inner| Box::new(Noisy(inner))));
        let destroyed = bed.qps.each_ref().map(|qp| qp.weak_shared());
        bed.qps.iter().for_each(|qp| qp.destroy().unwrap());
        drop(bed);
        let end = Instant::now() + Duration::from_secs(10);
        while destroyed.iter().any(|qp| qp.strong_count() > 0) {
            assert!(Instant::now() < end, "destroyed QPs are never freed");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
