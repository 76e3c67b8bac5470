//! Devices that go away: their interface is gone, or a bug of Weir has made them fail.

use super::Manager;
use super::id::State;
use crate::abi::event;
use crate::events::Parameters;
use weir_transport::Instant;

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
    }
}
