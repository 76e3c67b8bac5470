//! Whether this thread holds an engine. A memory hook of the program that runs meanwhile may call the library again.

use crate::os::cancel::Uncancelled;
use crate::os::locks::{Held, rank};
use crate::os::mask;
use std::cell::Cell;

thread_local! {
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread holds an engine: what the engine uses must not be freed then.
#[inline]
pub fn holds_engine() -> bool {
    HOLDS.get()
}

/// Runs `work` with an engine that this thread holds, and records that it does. The thread is not cancelled meanwhile.
pub fn hold_engine<T>(work: impl FnOnce() -> T) -> T {
    struct Released;
    impl Drop for Released {
        fn drop(&mut self) {
            HOLDS.set(false);
            mask::turn_ends();
        }
    }
    let _uncancelled = Uncancelled::new();
    if holds_engine() {
        // A memory hook takes a turn of another adapter within a turn of this one, which goes on afterwards.
        return work();
    }
    let _held = Held::<{ rank::ENGINE }>::begin();
    HOLDS.set(true);
    mask::turn_begins();
    let _released = Released;
    work()
}
