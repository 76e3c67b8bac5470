//! The thread that reads the events. Somebody waits for each of them in the middle of munmap, perhaps within malloc:
//! nothing here allocates, frees, or waits without a limit. If it ends, its descriptor is closed, and the kernel lets
//! everybody go.

use crate::Errno;
use crate::engine::thread::with_signals_blocked;
use crate::failure::watched;
use crate::userfault::sys::{Event, Userfaultfd};
use std::ops::Range;
use std::sync::Arc;

/// Who hears of events.
pub trait Listener: Send + Sync {
    /// Before an event is read, which lets whoever waits for that go on: returns when no access that began before is under
    /// way, or after a while. What was covered may have been unmapped.
    fn settle(&self);
    /// What these addresses mean has changed, or is about to.
    fn changed(&self, addresses: Range<u64>);
}

/// Starts it. Error: EAGAIN.
pub fn start(userfault: Arc<Userfaultfd>, listener: &'static dyn Listener) -> Result<(), Errno> {
    let run = move || watched(|| watch(&userfault, listener));
    let spawn = || std::thread::Builder::new().name("weir-unmap".into()).stack_size(256 << 10).spawn(run);
    with_signals_blocked(spawn)?;
    Ok(())
}

fn watch(userfault: &Userfaultfd, listener: &dyn Listener) {
    loop {
        let mut poll = libc::pollfd { fd: userfault.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, on the stack.
        let ready = unsafe { libc::poll(&mut poll, 1, -1) };
        if ready < 0 && Errno::last() == Errno(libc::EINTR) {
            continue;
        }
        if ready <= 0 || !userfault.is_ours() {
            return;
        }
        if poll.revents & libc::POLLIN == 0 {
            return;
        }
        // The pages of an UNMAP are gone, and whoever unmapped them goes on when it is read: accesses first. Those that
        // come in between are read in their turn, after this one.
        listener.settle();
        match userfault.read() {
            Ok(None) => {}
            Ok(Some(event)) => hear(event, userfault, listener),
            Err(_) => return,
        }
    }
}

fn hear(event: Event, userfault: &Userfaultfd, listener: &dyn Listener) {
    match event {
        Event::Unmap { start, end } | Event::Remove { start, end } => listener.changed(start..end),
        Event::Remap { from, to, len } => {
            listener.changed(from..from.saturating_add(len));
            // Where it is now it is nobody's business, unless it is registered there too, and then it will fault.
            let _ = userfault.unregister(to, to.saturating_add(len));
            listener.changed(to..to.saturating_add(len));
        }
        Event::Other => {}
    }
}
