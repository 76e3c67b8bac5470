//! Devices that go away: their interface is gone, or a bug of Weir has made them fail.

use super::Manager;
use super::id::State;
use crate::abi::event;
use crate::events::Parameters;
use std::time::Duration;
use weir_transport::Instant;

/// Time between two looks for a device, while there is none.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Manager {
    /// These devices are gone. Every id that is bound to one of them learns it and ends, as in the kernel; an id that
    /// listens on all addresses goes on.
    pub fn devices_removed(&mut self, now: Instant, devices: &[String]) {
        self.now = now;
        let is_gone = |name: &String| devices.contains(name);
        let bound = |id: &super::id::Id| id.attached.as_ref().is_some_and(|attached| is_gone(&attached.device.name));
        let gone: Vec<u32> = self.ids.iter().filter(|(_, id)| bound(id)).map(|(number, _)| number).collect();
        for number in gone {
            self.release_port(number);
            let Some(id) = self.ids.get_mut(number) else { continue };
            (id.state, id.attached) = (State::Removed, None);
            let (connection, groups) = (id.connection.take(), std::mem::take(&mut id.groups));
            for group in groups {
                self.groups.remove(group);
            }
            if let Some(connection) = connection {
                self.connections.remove(&connection);
                self.cm.forget(now, connection);
            }
            self.raise(number, event::DEVICE_REMOVAL, 0, Parameters::None);
        }
        self.work();
        if !devices.is_empty() {
            self.look_at = Some(now);
            self.look_for_device();
        }
    }

    /// Requests to the ids that have bound a port come by any device: if the last one is gone, another is opened as
    /// soon as there is one.
    pub(super) fn look_for_device(&mut self) {
        if self.look_at.is_none_or(|at| self.now < at) {
            return;
        }
        let waits = self.ids.iter().any(|(_, id)| id.owns_port && matches!(id.state, State::Bound | State::Listen));
        let found = !waits || self.host.use_device(None).is_ok();
        self.look_at = (!found).then_some(self.now + LOOK_AGAIN);
    }
}
