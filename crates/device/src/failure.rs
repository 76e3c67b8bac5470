//! What a panic does to an adapter: the adapter fails, as a real one does that is broken, and says so.
//!
//! A panic is a bug of ours. What it has left behind is not to be trusted, but programs wait for it: so every QP goes to
//! the error state and its work requests are flushed, the contexts get `DeviceFatal`, and the log says why. From then on
//! the adapter moves no packets, calls answer EIO, and objects can be destroyed. Locks are usable after a panic: what
//! the panic left half done under them is of an adapter that has failed.
//!
//! Engine work is caught while the engine is still held ([`Adapter::guarded`]), so that the engine is never left held.
//! A panic elsewhere dooms the adapter ([`Adapter::doom`]): the next turn, or the one under way, makes it fail.

use crate::adapter::{self, Adapter};
use crate::engine::Engine;
use crate::{AsyncEvent, adapter::inside};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether an adapter works.
pub struct Condition(AtomicU8);

const WORKS: u8 = 0;
/// It is to fail as soon as the engine is free.
const DOOMED: u8 = 1;
const FAILED: u8 = 2;

/// What a panic carries on to the caller when its adapter has failed by it already.
pub struct Failed;

impl Condition {
    /// It works.
    pub fn new() -> Condition {
        Condition(AtomicU8::new(WORKS))
    }

    /// Whether it works.
    #[inline]
    pub fn works(&self) -> bool {
        self.0.load(Ordering::Acquire) == WORKS
    }

    /// It must not go on.
    pub fn doom(&self) {
        let _ = self.0.compare_exchange(WORKS, DOOMED, Ordering::AcqRel, Ordering::Acquire);
    }

    #[inline]
    fn is_doomed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == DOOMED
    }
}

impl Adapter {
    /// Work with the engine, which this thread holds. After a panic in it the adapter has failed.
    #[inline]
    pub fn guarded<T>(&self, engine: &mut Engine, work: impl FnOnce(&mut Engine) -> T) -> Result<T, Failed> {
        let done = inside(|| {
            let done = catch_unwind(AssertUnwindSafe(|| work(engine)));
            if done.is_err() || self.condition.is_doomed() {
                self.fail(engine);
            }
            done
        });
        done.map_err(|_| Failed)
    }

    /// Once; with the engine in this thread's hands.
    #[cold]
    fn fail(&self, engine: &mut Engine) {
        if self.condition.0.swap(FAILED, Ordering::AcqRel) == FAILED {
            return;
        }
        let name = &self.device.name;
        tracing::error!(
            "{name}: DEVICE_FATAL after a panic, a bug of Weir: all QPs are in the error state. Close the device and \
             open it again; please report what the log says above"
        );
        engine.fail(self);
        // What is held back until a deadline would be held back for ever.
        quietly(|| self.moderated.fire(u64::MAX));
        quietly(|| self.watch.tell_all(AsyncEvent::DeviceFatal));
        self.pace.end();
    }
}

/// There was a panic outside of an engine, under an entry point of the library or on a thread of its own: nobody can
/// tell what it has touched, so that all adapters of the process fail.
pub fn panicked() {
    for adapter in adapter::all() {
        adapter.doom();
    }
}

/// Whether a panic with this payload has had its adapter fail already.
pub fn is_known(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<Failed>()
}

/// Runs the body of a thread of ours; after a panic, all adapters fail.
pub fn watched(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body))
        && !is_known(&*payload)
    {
        panicked();
    }
}

/// A step of failing, which goes on whatever becomes of it. Whether there was no panic.
pub fn quietly(step: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(step)).is_ok()
}

#[cfg(test)]
mod tests;
