//! What a panic does to an adapter: the adapter fails as a broken hardware adapter does, and reports that.
//!
//! A panic is a bug of Weir. The state that it leaves is not trusted, but programs wait for it: so every QP goes to
//! the error state and its work requests are flushed, the contexts get `DeviceFatal`, and the log gives the reason.
//! After that the adapter moves no packets, calls return EIO, and objects can be destroyed. Locks ignore poisoning:
//! inconsistent state under them belongs to an adapter that has failed.
//!
//! A panic in engine work is caught while the engine is held ([`Adapter::guarded`]), so that the engine is always
//! released. A panic elsewhere marks the adapter as failed ([`Adapter::mark_failed`]): it fails in the current or next
//! turn.

use crate::adapter::{self, Adapter};
use crate::engine::Engine;
use crate::{AsyncEvent, adapter::inside};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether an adapter works.
pub struct Condition(AtomicU8);

const WORKS: u8 = 0;
/// It fails as soon as the engine is free.
const MARKED: u8 = 1;
const FAILED: u8 = 2;

/// The panic payload for a caller if its adapter has already failed because of the panic.
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

    /// It must fail.
    pub fn mark_failed(&self) {
        let _ = self.0.compare_exchange(WORKS, MARKED, Ordering::AcqRel, Ordering::Acquire);
    }

    #[inline]
    fn is_marked_failed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == MARKED
    }
}

impl Adapter {
    /// Runs work with the engine, which this thread holds. After a panic in it the adapter has failed.
    #[inline]
    pub fn guarded<T>(&self, engine: &mut Engine, work: impl FnOnce(&mut Engine) -> T) -> Result<T, Failed> {
        let done = inside(|| {
            let done = catch_unwind(AssertUnwindSafe(|| work(engine)));
            if done.is_err() || self.condition.is_marked_failed() {
                self.fail(engine);
            }
            done
        });
        done.map_err(|_| Failed)
    }

    /// Makes the adapter fail, once; this thread holds the engine.
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
        // No later turn would fire events that are held back until a deadline.
        catch_panic(|| self.cqs.moderated.fire(|cq| cq.moderation_due(u64::MAX), u64::MAX));
        catch_panic(|| self.watch.raise_in_all_contexts(AsyncEvent::DeviceFatal));
        self.pace.end();
    }
}

/// A panic occurred outside of an engine, in an entry point of the library or on one of its threads. It is unknown
/// what state it has damaged, so all adapters of the process fail.
pub fn panicked() {
    for adapter in adapter::all() {
        adapter.mark_failed();
    }
}

/// Whether a panic with this payload has already made its adapter fail.
pub fn is_known(payload: &(dyn std::any::Any + Send)) -> bool {
    payload.is::<Failed>()
}

/// Runs the body of a library thread; after a panic, all adapters fail.
pub fn watched(body: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(body))
        && !is_known(&*payload)
    {
        panicked();
    }
}

/// A step of failing; a panic in it does not stop the next step. Whether there was no panic.
pub fn catch_panic(step: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(step)).is_ok()
}

#[cfg(test)]
mod tests;
