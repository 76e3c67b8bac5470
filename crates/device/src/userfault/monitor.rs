//! The thread that reads userfaultfd events. For each event a thread of the program waits in the middle of munmap,
//! perhaps within malloc: nothing here allocates, frees, or waits without a limit. If the thread ends, the descriptor
//! is closed, and the kernel releases all waiting threads.

use crate::Errno;
use crate::os::threads::spawn;
use std::ops::Range;
use std::sync::Arc;
use weir_userfault::{Event, Userfaultfd};

/// Receives events.
pub trait Listener: Send + Sync {
    /// Called before an event is read, which releases the thread that waits for it. Returns when no access that began
    /// before is under way, or after a time limit. Covered memory may have been unmapped.
    fn quiesce_all(&self);
    /// The mapping or contents of these addresses have changed, or are about to.
    fn changed(&self, addresses: Range<u64>);
}

/// Starts the thread. Error: EAGAIN.
pub fn start(userfault: Arc<Userfaultfd>, listener: &'static dyn Listener) -> Result<(), Errno> {
    spawn(c"weir-unmap", 256 << 10, move || watch(&userfault, listener))
}

fn watch(userfault: &Userfaultfd, listener: &dyn Listener) {
    loop {
        let mut poll = libc::pollfd { fd: userfault.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a single structure, on the stack.
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
        // The pages of an UNMAP are gone already, and reading it releases the thread that unmapped them: accesses
        // must end first. Events that arrive in between are read later, each after its own `quiesce_all`.
        listener.quiesce_all();
        match userfault.read() {
            Ok(None) => {}
            Ok(Some(event)) => handle(event, userfault, listener),
            Err(_) => return,
        }
    }
}

fn handle(event: Event, userfault: &Userfaultfd, listener: &dyn Listener) {
    match event {
        Event::Unmap { start, end } | Event::Remove { start, end } => listener.changed(start..end),
        Event::Remap { from, to, len } => {
            listener.changed(from..from.saturating_add(len));
            // At the new address no event is needed. If that address is registered too, its pages will fault.
            let _ = userfault.unregister(to, to.saturating_add(len));
            listener.changed(to..to.saturating_add(len));
        }
        Event::Other => {}
    }
}
