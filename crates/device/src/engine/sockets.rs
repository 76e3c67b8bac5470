//! Sockets that the carrier opens while the adapter is in use.

use crate::engine::{Engine, Turn};
use crate::os::descriptors::DescriptorGuard;
use crate::shared::state::AdapterState;
use std::io;
use std::os::fd::RawFd;
use weir_link::Carrier;

impl Engine {
    /// Opens a socket for the destination of most packets. For the engine's thread, because it allocates.
    pub fn add_socket(&mut self, adapter: &AdapterState) {
        if !adapter.condition.works() {
            return;
        }
        // Packets that came earlier are taken first.
        self.turn(adapter, Turn::LOOK);
        if let Err(error) = self.open_sockets(adapter, |carrier| carrier.add_socket()) {
            tracing::debug!("{}: no connected socket: {error}. Packets go without one", adapter.device.name);
        }
    }

    /// The thread watches the sockets that `open` opens, and a forked child closes them.
    pub(super) fn open_sockets(
        &mut self,
        adapter: &AdapterState,
        open: impl FnOnce(&mut dyn Carrier) -> io::Result<()>,
    ) -> io::Result<Vec<RawFd>> {
        // A child that is forked meanwhile must not keep them.
        let _opening = DescriptorGuard::begin();
        let before = self.carrier.fds();
        open(&mut *self.carrier)?;
        let mut new = self.carrier.fds();
        new.retain(|descriptor| !before.contains(descriptor));
        // Packets in a socket that nothing watches would wait for ever.
        if let Err(error) = new.iter().try_for_each(|descriptor| adapter.pace.watch(*descriptor)) {
            for descriptor in new {
                adapter.pace.forget(descriptor);
                self.carrier.leave(descriptor);
            }
            return Err(error);
        }
        adapter.add_sockets(&new);
        Ok(new)
    }
}
