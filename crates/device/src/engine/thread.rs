//! The engine's thread: moves packets while no program polls.

use crate::adapter::Adapter;
use crate::engine::Turn;
use crate::engine::pace::Pace;
use crate::failure::quietly;
use crate::memory::mask;
use crate::{Errno, clock};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long the thread looks for more before it sleeps: about what a wake-up costs.
const SPIN: Duration = Duration::from_micros(40);

/// Starts it, with all signals blocked: they are the program's. Error: EAGAIN.
pub fn start(adapter: &Arc<Adapter>) -> Result<(), Errno> {
    let pace = adapter.pace.clone();
    let adapter = Arc::downgrade(adapter);
    let run = move || {
        mask::is_open();
        let doomed = adapter.clone();
        if !quietly(|| drive(&pace, &adapter))
            && let Some(adapter) = doomed.upgrade()
        {
            adapter.doom();
        }
    };
    with_signals_blocked(|| std::thread::Builder::new().name("weir-engine".into()).stack_size(256 << 10).spawn(run))?;
    Ok(())
}

/// Until the adapter is gone or has failed.
fn drive(pace: &Pace, adapter: &Weak<Adapter>) {
    while !pace.has_ended() {
        let mine = pace.wait();
        let changed = pace.interface_has_changed();
        let complains = pace.has_complaints();
        let flush = pace.flush_wanted();
        if !mine && !changed && !complains && flush.is_none() {
            continue;
        }
        let Some(adapter) = adapter.upgrade() else { return };
        if let Some(ticket) = flush {
            adapter.flush();
            pace.flushed(ticket);
        }
        if changed {
            adapter.watch.look();
        }
        if complains {
            adapter.complaints.tell(&adapter.device, adapter.config.without);
        }
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
            if now - last_work > SPIN || adapter.pace.somebody_polls() || pace.has_ended() {
                break;
            }
            if pace.flush_wanted().is_some() {
                break;
            }
            // The program may have the same core, and be the one that we wait for.
            adapter.pace.offer_core();
        }
    }
}

/// Threads inherit the mask.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: masks on the stack; SIGSEGV and SIGBUS stay open, for the guarded copy needs them.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}
