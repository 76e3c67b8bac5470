//! Port 4791, where foreign adapters send to: one process of a host holds it and hands packets to the others.

use crate::adapter::Adapter;
use crate::engine::Engine;
use crate::slot::{Holder, slot_of};
use std::os::fd::AsRawFd;
use std::time::Duration;
use weir_link::Arrival;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// How often a process with foreign peers tries to become the holder, for the one that is may end.
const RETRY: Duration = Duration::from_millis(50);

/// Our part in port 4791.
#[derive(Default)]
pub struct Foreign {
    holder: Option<Holder>,
    next_try: Option<Instant>,
}

impl Foreign {
    /// There is a foreign peer: somebody must listen.
    pub fn wanted(&mut self, now: Instant) {
        if self.holder.is_none() && self.next_try.is_none() {
            self.next_try = Some(now);
        }
    }

    /// Whether packets may come from another process that holds the port.
    pub fn expects(&self) -> bool {
        self.next_try.is_some()
    }

    /// When to try again.
    pub fn next(&self) -> Option<u64> {
        self.next_try.map(|instant| instant.0)
    }

    /// Gives a packet to the slot that it is for.
    pub fn hand_over(&self, dest: u32, arrival: &Arrival, packet: &[u8]) {
        if let Some(holder) = &self.holder {
            holder.hand_over(slot_of(dest), arrival, packet);
        }
    }
}

impl Engine {
    /// Tries to become the holder if that is wanted and due.
    pub(super) fn foreign_turn(&mut self, adapter: &Adapter, now: Instant) {
        if self.foreign.next_try.is_none_or(|due| due > now) {
            return;
        }
        self.foreign.next_try = Some(now + RETRY);
        let Ok(holder) = Holder::claim() else { return };
        let before = self.carrier.fds();
        match self.carrier.listen(ROCE_PORT) {
            Ok(()) => {
                let mut new = self.carrier.fds();
                new.retain(|descriptor| !before.contains(descriptor));
                for descriptor in &new {
                    if let Err(error) = adapter.pace.watch(*descriptor) {
                        tracing::error!("{}: cannot watch port {ROCE_PORT}: {error}", adapter.device.name);
                    }
                }
                new.push(holder.as_raw_fd());
                adapter.add_sockets(&new);
                self.foreign = Foreign { holder: Some(holder), next_try: None };
            }
            Err(error) => tracing::info!("{}: UDP port {ROCE_PORT} is taken: {error}", adapter.device.name),
        }
    }
}
