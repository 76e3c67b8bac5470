//! The engine's thread: moves packets while no program polls.

use crate::Errno;
use crate::adapter::Adapter;
use crate::engine::Turn;
use crate::os::clock;
use crate::os::mask;
use crate::os::panics::catch_panic;
use crate::os::threads::with_signals_blocked;
use crate::pace::{Pace, ThreadTasks};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the thread spins before it sleeps: about the cost of a wake-up.
const SPIN: Duration = Duration::from_micros(40);

/// Starts the thread with the program's signals blocked, so that no handler runs on it. Error: EAGAIN.
pub fn start(adapter: &Arc<Adapter>) -> Result<(), Errno> {
    let pace = adapter.pace.clone();
    let adapter = Arc::downgrade(adapter);
    let run = move || {
        mask::assume_unblocked();
        let weak = adapter.clone();
        if !catch_panic(|| drive(&pace, &adapter))
            && let Some(adapter) = weak.upgrade()
        {
            adapter.mark_failed();
        }
    };
    with_signals_blocked(|| std::thread::Builder::new().name("weir-engine".into()).stack_size(256 << 10).spawn(run))?;
    Ok(())
}

/// Runs until the adapter is gone or has failed.
fn drive(pace: &Pace, adapter: &Weak<Adapter>) {
    while !pace.has_ended() {
        let mine = pace.wait();
        let changed = pace.interface_has_changed();
        let tasks = pace.take_tasks();
        let flush = pace.flush_requested();
        if !mine && !changed && tasks == ThreadTasks::NONE && flush.is_none() {
            continue;
        }
        let Some(adapter) = adapter.upgrade() else { return };
        if let Some(ticket) = flush {
            adapter.flush();
            pace.flushed(ticket);
        }
        if changed {
            adapter.watch.process_notifications();
        }
        adapter.run_tasks(tasks);
        if !mine {
            continue;
        }
        let mut last_work = clock::now();
        loop {
            let worked = adapter.drive(Turn::THREAD);
            let now = clock::now();
            if worked {
                last_work = now;
            }
            if now - last_work > SPIN || adapter.pace.program_polls() || pace.has_ended() {
                break;
            }
            if pace.flush_requested().is_some() {
                break;
            }
            // The program that the thread waits for may need this core.
            adapter.pace.offer_core();
        }
    }
}
