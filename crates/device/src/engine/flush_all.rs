//! The last step of the engine of an adapter that has failed: all QPs go to the error state, and no completion is
//! outstanding after it.

use crate::engine::Engine;
use crate::engine::host::QpHost;
use crate::memory::keys::Cached;
use crate::os::panics::catch_panic;
use crate::shared::state::AdapterState;
use weir_transport::Side;

impl Engine {
    /// Moves every QP to the error state and flushes its work requests.
    pub fn fail(&mut self, adapter: &AdapterState) {
        catch_panic(|| self.carrier.mark(&"the adapter has failed (IBV_EVENT_DEVICE_FATAL)"));
        // Completions of a turn that did not end.
        catch_panic(|| self.publish_completions(adapter));
        // The engine's thread ends, and the removed QPs keep the adapter open.
        drop(self.take_removed());
        for index in self.table.indices() {
            let Some(entry) = self.table.get(index) else { continue };
            let shared = entry.shared.clone();
            if entry.retired.is_some() {
                // It only acknowledged duplicates.
                self.table.remove(index);
                continue;
            }
            let mut cached = Cached::default();
            let mut host = QpHost {
                shared: &shared,
                regions: &adapter.regions,
                cached: &mut cached,
                completions: None,
                side: Side::Requester,
            };
            let flushed = catch_panic(|| shared.lock().enter_error_state(&mut host))
                || catch_panic(|| shared.lock().flush_queues(&mut host));
            if !flushed {
                tracing::error!(
                    "{}, QP {:#08x}: its work requests could not be flushed",
                    adapter.device.name,
                    shared.num
                );
            }
        }
    }
}

#[cfg(test)]
impl Engine {
    /// Wraps the present carrier; `wrap` is first called with `None`.
    pub fn replace_carrier<C: weir_link::Carrier + 'static>(
        &mut self,
        wrap: impl Fn(Option<Box<dyn weir_link::Carrier>>) -> Box<C>,
    ) {
        let inner = std::mem::replace(&mut self.carrier, wrap(None));
        self.carrier = wrap(Some(inner));
    }
}
