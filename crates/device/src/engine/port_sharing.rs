//! Port 4791, to which foreign adapters send: one process of a network namespace holds it and hands packets over to
//! the others.

use crate::engine::{Engine, Turn};
use crate::os::clock;
use crate::os::descriptors::DescriptorGuard;
use crate::pace::ThreadTasks;
use crate::relay::incoming::{Link, Received};
use crate::relay::message;
use crate::relay::port_authority::PortOwners;
use crate::shared::state::AdapterState;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use weir_link::Inbox;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Handed-over messages that one turn takes at most.
const MESSAGES: usize = 8;
/// For this long after a packet was handed over, each turn receives handed-over messages.
const LATELY: Duration = Duration::from_secs(1);
/// With connections, a new one is looked for only after this many looks for messages.
const LOOKS: u32 = 16;
/// How long no connection is accepted when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// What was taken of that which the holder handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Messages and ended connections.
    pub count: usize,
    /// Bytes of the messages.
    pub bytes: usize,
}

impl Engine {
    /// A UD QP is ready to receive from any adapter, or the process takes MADs. While another process is the holder,
    /// there is a try from time to time: this process may be idle when that process ends.
    pub fn expect_foreign_senders(&mut self, adapter: &AdapterState, now: Instant) {
        self.foreign.schedule_listening(now);
        self.foreign.take_try(now);
        self.listen(adapter);
        self.wake_to_try(adapter);
    }

    /// No turn may follow: the thread must wake up to try again.
    fn wake_to_try(&mut self, adapter: &AdapterState) {
        if let Some(next) = self.foreign.next() {
            self.next_due = self.next_due.min(next);
            adapter.pace.wake_by(Some(self.next_due));
        }
    }

    /// The state of a peer is not decided yet. A foreign adapter may send before it is recognized as one, and a closed
    /// port would end its attempts by an ICMP error. There is only one try, so that a process with Weir peers only
    /// never wakes up for the port.
    pub(super) fn expect_foreign(&mut self, adapter: &AdapterState) {
        self.listen(adapter);
    }

    /// Tries to become the holder. For control calls and the engine's thread, because it allocates.
    pub fn listen(&mut self, adapter: &AdapterState) {
        if self.foreign.holder.is_none() && adapter.condition.works() {
            self.try_to_hold(adapter);
        }
    }

    /// Has the engine's thread try to become the holder, if a try is due.
    pub(super) fn foreign_turn(&mut self, adapter: &AdapterState, now: Instant) {
        if self.foreign.resume.is_some_and(|due| due <= now) {
            self.foreign.resume = None;
            self.watch_incoming(adapter);
        }
        let looks = self.foreign.holder.as_mut().is_some_and(|holder| holder.take_look(now));
        if self.foreign.take_try(now) || looks {
            adapter.pace.ask_thread(ThreadTasks::LISTEN);
        }
    }

    /// The engine's thread was asked to try to become the holder, or it was stopped. If this process is the holder it gives
    /// up the port where a later holder took its place meanwhile, and tries again from time to time.
    pub fn look_at_port(&mut self, adapter: &AdapterState) {
        if !adapter.condition.works() || adapter.pace.has_lost() {
            return;
        }
        let Some(holder) = &self.foreign.holder else {
            // Nothing needs the port if no try was due.
            if self.foreign.next_try.is_some() {
                self.listen(adapter);
            }
            return;
        };
        holder.forget_waiting();
        let _closing = DescriptorGuard::begin();
        if self.foreign.names.is_replaced().unwrap_or(false) {
            self.give_port_up(adapter);
        }
    }

    fn give_port_up(&mut self, adapter: &AdapterState) {
        // What came before the other process had the port.
        let now = clock::now();
        self.catch_up(adapter, now, usize::MAX);
        self.foreign.flush(now);
        if let Some(holder) = self.foreign.holder.take() {
            adapter.forget_socket(holder.as_raw_fd());
        }
        for socket in std::mem::take(&mut self.foreign.sockets) {
            adapter.forget_socket(socket);
            self.carrier.leave(socket);
        }
        if self.foreign.tried || self.foreign.peers {
            self.foreign.schedule_listening(now);
            self.wake_to_try(adapter);
        }
        tracing::info!("{}: another process takes the packets of foreign adapters now", adapter.device.name);
    }

    fn try_to_hold(&mut self, adapter: &AdapterState) {
        // A child that is forked meanwhile must not keep the name.
        let _opening = DescriptorGuard::begin();
        let name = &adapter.device.name;
        let (holder, stopped) = match self.foreign.claim(clock::now()) {
            Ok(claimed) => claimed,
            // Another Weir process has the port, and hands over packets for this one.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return,
            Err(error) => return self.foreign.report_listen_error(name, &error),
        };
        match self.open_sockets(adapter, |carrier| carrier.listen(ROCE_PORT)) {
            Ok(sockets) => {
                adapter.add_sockets(&[holder.as_raw_fd()]);
                (self.foreign.holder, self.foreign.sockets) = (Some(holder), sockets);
                self.foreign.tried = self.foreign.next_try.take().is_some();
                if let Some(process) = stopped {
                    tracing::info!(
                        "{name}: takes the packets of foreign adapters for all processes, because process {process}, which \
                         did so before, is stopped"
                    );
                }
            }
            Err(error) => self.foreign.report_listen_error(name, &error),
        }
    }

    /// Returns whether another process that holds the port may hand packets over.
    pub(super) fn expects_handed_over(&self, now: Instant) -> bool {
        let lately = self.foreign.last_handed_over.is_some_and(|last| now - last < LATELY);
        lately || self.foreign.peers && self.foreign.holder.is_none()
    }

    /// Takes packets that the holder of port 4791 handed over.
    pub(super) fn receive_handed_over(&mut self, adapter: &AdapterState, now: Instant) -> HandedOver {
        let taken = self.take_handed_over(adapter, now);
        if self.slot.incoming.take_owners_request() {
            adapter.pace.ask_thread(ThreadTasks::PORT_OWNERS);
        }
        taken
    }

    /// The engine's thread has read the owners of port 4791, from `began` on: connections and messages wait for that.
    pub fn renew_port_owners(&mut self, adapter: &AdapterState, owners: &mut PortOwners, began: Instant) {
        let now = clock::now();
        self.slot.incoming.renew_owners(owners, began, now);
        self.accept_holder(adapter, now);
        self.receive_handed_over(adapter, now);
        self.turn(adapter, Turn::SEND);
    }

    fn take_handed_over(&mut self, adapter: &AdapterState, now: Instant) -> HandedOver {
        let mut taken = HandedOver::default();
        while taken.count < MESSAGES {
            match self.slot.incoming.receive(&mut self.inbox.bytes, now) {
                Received::Message { len, user } => {
                    taken.bytes += len;
                    self.foreign.last_handed_over = Some(now);
                    self.deliver_handed_over(adapter, len, user, now);
                }
                Received::Ended(link) => end(adapter, link),
                Received::Nothing => {
                    self.foreign.looks = self.foreign.looks.wrapping_add(1);
                    let look = !self.slot.incoming.is_connected() || self.foreign.looks.is_multiple_of(LOOKS);
                    if !look || !self.accept_holder(adapter, now) {
                        return taken;
                    }
                }
            }
            taken.count += 1;
        }
        taken
    }

    fn deliver_handed_over(&mut self, adapter: &AdapterState, len: usize, user: u32, now: Instant) {
        let inbox = std::mem::replace(&mut self.inbox, Inbox::new(0));
        for arrival in message::packets(&inbox.bytes[..len]) {
            // The holder of the port may have other prefixes, or none.
            let from = arrival.from.ip();
            if self.foreign.senders.permits(from, now) && self.slot.incoming.accepts_from(user, from, now) {
                self.shown.traffic.received(&[arrival]);
                self.deliver(adapter, &inbox, &arrival, now);
            }
        }
        self.inbox = inbox;
    }

    /// Accepts a connection of the holder. Returns whether there was one.
    fn accept_holder(&mut self, adapter: &AdapterState, now: Instant) -> bool {
        if self.foreign.resume.is_some() {
            return false;
        }
        let accepted = match self.slot.incoming.accept(now) {
            Ok(Some(accepted)) => accepted,
            Ok(None) => return false,
            Err(error) => {
                // The socket stays readable, and would keep the thread awake.
                tracing::warn!("{}: packets of foreign adapters are delayed: {error}", adapter.device.name);
                adapter.pace.forget(self.slot.incoming.as_raw_fd());
                self.foreign.resume = Some(now + PAUSE);
                return false;
            }
        };
        if let Some(link) = accepted.ended {
            end(adapter, link);
        }
        adapter.add_sockets(&[accepted.new]);
        if let Err(error) = adapter.pace.watch(accepted.new) {
            tracing::warn!("{}: packets of foreign adapters may be late: {error}", adapter.device.name);
        }
        true
    }

    fn watch_incoming(&self, adapter: &AdapterState) {
        if let Err(error) = adapter.pace.watch(self.slot.incoming.as_raw_fd()) {
            tracing::warn!("{}: packets of foreign adapters may be late: {error}", adapter.device.name);
        }
    }
}

/// Closes a connection and stops watching it.
fn end(adapter: &AdapterState, link: Link) {
    adapter.forget_socket(link.as_raw_fd());
    drop(link);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::Adapter;
    use crate::engine::peers::foreign::Foreign;
    use crate::os::seqpacket;
    use crate::relay::holder::Holder;
    use crate::slot::Slot;
    use crate::stat::publish;
    use std::io;
    use std::os::fd::RawFd;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use weir_link::{Arrival, Carrier, Outbox};

    /// A carrier that always has more than one turn takes, or nothing.
    struct Noise(usize);

    impl Carrier for Noise {
        fn send(&mut self, _: &Outbox) -> io::Result<()> {
            Ok(())
        }
        fn receive(&mut self, inbox: &mut Inbox) -> io::Result<usize> {
            inbox.arrivals.clear();
            let noise = Arrival::new(([10, 0, 0, 1], 1).into(), 2, 0, 4);
            inbox.arrivals.extend(std::iter::repeat_n(noise, self.0));
            Ok(self.0)
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

    /// An engine to which messages of one packet each were handed over, and what did so.
    fn with_handed_over(adapter: &Adapter, noise: usize, messages: usize) -> (Engine, Foreign) {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let (slot, ports) = Slot::claim(weir_link::DisabledFeatures::empty()).unwrap();
        let shown = publish::device(&adapter.device.name, 0).unwrap();
        let (number, qpn) = (slot.number(), u32::from(slot.number()) << crate::slot::INDEX_BITS);
        let mut engine =
            Engine::new(&adapter.device, &adapter.config, &adapter.profile, slot, ports, shown, false).unwrap();
        engine.carrier = Box::new(Noise(noise));
        let name = format!("weir/test/{}/{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        engine.foreign.note_foreign_peer(clock::now());
        assert_eq!(crate::slot::slot_of(qpn), number);
        let holder = Holder::of(seqpacket::claim(&name).unwrap()).unwrap();
        let mut other = Foreign { holder: Some(holder), ..Foreign::default() };
        let arrival = Arrival::new(([10, 0, 0, 2], 7).into(), ROCE_PORT, 0, 20);
        for _ in 0..messages {
            other.hand_over(qpn, &arrival, &[0; 20]);
            other.flush(clock::now());
        }
        (engine, other)
    }

    /// The number of messages that are left.
    fn left(engine: &mut Engine) -> usize {
        let mut receive = || engine.slot.incoming.receive(&mut [0; 100], clock::now());
        std::iter::from_fn(|| matches!(receive(), Received::Message { .. }).then_some(())).count()
    }

    #[test]
    fn handed_over_packets_are_taken_while_the_carrier_is_busy() {
        let adapter = Adapter::open("weir_lo", None).unwrap();
        let (mut engine, _other) = with_handed_over(&adapter, 8, 5);
        assert!(engine.turn(&adapter, Turn::POLL));
        assert!(engine.slot.incoming.is_connected());
        assert_eq!(left(&mut engine), 0, "one turn has taken them all");
    }

    #[test]
    fn a_look_for_all_packets_ends_after_its_bytes() {
        let adapter = Adapter::open("weir_lo", None).unwrap();
        let (mut engine, _other) = with_handed_over(&adapter, 0, 40);
        // The first message comes after a connection.
        engine.catch_up(&adapter, clock::now(), 1);
        let before = left(&mut engine);
        assert!((40 - MESSAGES..40).contains(&before), "{before} are left");
        let (mut engine, _other) = with_handed_over(&adapter, 0, 40);
        engine.catch_up(&adapter, clock::now(), usize::MAX);
        assert_eq!(left(&mut engine), 0);
    }
}
