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
    /// A QP of ours has a foreign peer.
    peers: bool,
}

impl Foreign {
    /// There is a foreign peer: somebody must listen.
    pub fn wanted(&mut self, now: Instant) {
        self.peers = true;
        self.welcome(now);
    }

    /// Strangers may send, as they may to UD QPs: it is as well that somebody listens.
    pub fn welcome(&mut self, now: Instant) {
        if self.holder.is_none() && self.next_try.is_none() {
            self.next_try = Some(now);
        }
    }

    /// Whether packets are to be expected from another process that holds the port.
    pub fn expects(&self) -> bool {
        self.peers && self.holder.is_none()
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
    /// A UD QP is ready to receive, from anybody.
    pub fn welcome_strangers(&mut self, adapter: &Adapter, now: Instant) {
        self.foreign.welcome(now);
        self.foreign_turn(adapter, now);
    }

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
                self.foreign.holder = Some(holder);
                self.foreign.next_try = None;
            }
            Err(error) => tracing::info!("{}: UDP port {ROCE_PORT} is taken: {error}", adapter.device.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::engine::Turn;
    use crate::slot::Slot;
    use crate::stat::publish;
    use std::io;
    use std::os::fd::RawFd;
    use weir_link::{Carrier, Inbox, Outbox};

    /// Always has more than one turn takes.
    struct Busy;

    impl Carrier for Busy {
        fn send(&mut self, _: &Outbox) -> io::Result<()> {
            Ok(())
        }
        fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
            inbox.arrivals.clear();
            let noise = Arrival::new(([10, 0, 0, 1], 1).into(), 2, 0, 4);
            inbox.arrivals.extend([noise; 8]);
            Ok(8)
        }
        fn max_segments(&self) -> usize {
            1
        }
        fn listen(&mut self, _: u16) -> io::Result<()> {
            Err(io::ErrorKind::AddrInUse.into())
        }
        fn fds(&self) -> Vec<RawFd> {
            Vec::new()
        }
    }

    /// Other tests claim it, too, for a moment.
    fn holder() -> Holder {
        std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(1));
            Holder::claim()
        })
        .take(10_000)
        .find_map(Result::ok)
        .expect("nobody keeps it")
    }

    #[test]
    fn what_is_handed_over_does_not_wait_for_a_quiet_moment() {
        let adapter = Adapter::open("weir_lo", None).unwrap();
        let (slot, ports) = Slot::claim().unwrap();
        let shown = publish::device(&adapter.device.name, 0);
        let (number, qpn) = (slot.number(), u32::from(slot.number()) << crate::slot::INDEX_BITS);
        let mut engine = Engine::new(&adapter.device, &adapter.config, &adapter.profile, slot, ports, shown).unwrap();
        engine.carrier = Box::new(Busy);
        let holder = holder();
        engine.foreign.wanted(clock::now());
        assert_eq!(slot_of(qpn), number);
        let other = Foreign { holder: Some(holder), ..Foreign::default() };
        let arrival = Arrival::new(([10, 0, 0, 2], 7).into(), ROCE_PORT, 0, 20);
        (0..5).for_each(|_| other.hand_over(qpn, &arrival, &[0; 20]));
        assert!(engine.turn(&adapter, Turn::POLL));
        assert!(engine.slot.receive(&mut [0; 100]).is_none(), "one turn has taken them all");
    }
}
