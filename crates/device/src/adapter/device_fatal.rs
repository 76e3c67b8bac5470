//! What a panic does to an adapter: the adapter fails as a broken hardware adapter does, and reports that.
//!
//! A panic is a bug of Weir. The state that it leaves is not trusted, but programs wait for it: so every QP goes to
//! the error state and its work requests are flushed, the contexts get `DeviceFatal`, and the log gives the reason.
//! After that the adapter moves no packets, calls return EIO, and objects can be destroyed. Locks ignore poisoning:
//! inconsistent state under them belongs to an adapter that has failed.
//!
//! A panic in engine work is caught while the engine is held ([`Adapter::guarded`]), so that the engine is always
//! released. The adapter fails in the same way when the program has closed descriptors of Weir.
//!
//! A panic elsewhere marks the adapter as failed ([`Adapter::mark_failed`]): it fails in the current or next
//! turn.

use crate::adapter::{Adapter, registry};
use crate::engine::Engine;
use crate::events::AsyncEvent;
use crate::os::engine_hold::hold_engine;
use crate::os::panics::{Failed, catch_panic};
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Adapter {
    /// Runs work with the engine, which this thread holds. After a panic in it the adapter has failed.
    #[inline]
    pub fn guarded<T>(&self, engine: &mut Engine, work: impl FnOnce(&mut Engine) -> T) -> Result<T, Failed> {
        let done = hold_engine(|| {
            let done = catch_unwind(AssertUnwindSafe(|| work(engine)));
            if done.is_err() || self.condition.is_marked_failed() || self.pace.has_lost() {
                self.fail(engine);
            }
            done
        });
        done.map_err(|_| Failed)
    }

    /// Makes the adapter fail, once; this thread holds the engine.
    #[cold]
    fn fail(&self, engine: &mut Engine) {
        if !self.condition.fail() {
            return;
        }
        let name = &self.device.name;
        if self.pace.has_lost() {
            tracing::error!(
                "{name}: DEVICE_FATAL because the program has closed descriptors of Weir: all QPs are in the error state. \
                 Close only descriptors that the program has opened; Weir protects its own from close, close_range and \
                 closefrom of the C library, but not from system calls"
            );
        } else {
            tracing::error!(
                "{name}: DEVICE_FATAL after a panic, a bug of Weir: all QPs are in the error state. Close the device and \
                 open it again; please report what the log says above"
            );
        }
        engine.fail(self);
        // No later turn would fire events that are held back until a deadline.
        catch_panic(|| self.cqs.moderated.fire(|cq| cq.moderation_due(u64::MAX), u64::MAX));
        catch_panic(|| self.watch.raise_in_all_contexts(AsyncEvent::DeviceFatal));
        self.pace.end();
    }
}

/// Makes all adapters of this process fail.
pub fn fail_all() {
    for adapter in registry::after_panic() {
        adapter.mark_failed();
    }
}

#[cfg(test)]
mod tests;
