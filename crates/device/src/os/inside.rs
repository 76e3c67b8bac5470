//! Whether this thread holds an engine. A memory hook of the program that runs meanwhile may call the library again.

use crate::os::cancel::Uncancelled;
use crate::os::locks::{Held, rank};
use crate::os::mask;
use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread holds an engine: what the engine uses must not be freed then.
#[inline]
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs `work` while this thread holds an engine. The thread is not cancelled meanwhile.
pub fn inside<T>(work: impl FnOnce() -> T) -> T {
    struct Outside;
    impl Drop for Outside {
        fn drop(&mut self) {
            INSIDE.set(false);
            mask::turn_ends();
        }
    }
    let _uncancelled = Uncancelled::new();
    if is_inside() {
        // A memory hook takes a turn of another adapter within a turn of this one, which goes on afterwards.
        return work();
    }
    let _held = Held::<{ rank::ENGINE }>::begin();
    INSIDE.set(true);
    mask::turn_begins();
    let _outside = Outside;
    work()
}
