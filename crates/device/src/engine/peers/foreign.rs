//! The part of a process in sharing port 4791, to which foreign adapters send.

use crate::relay::holder::Holder;
use crate::relay::holder_names::HolderNames;
use crate::relay::receiver::Receiver;
use crate::shared::allowed_hosts::Senders;
use crate::slot::{is_used, slot_of};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;
use weir_link::Arrival;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// How often a process with foreign peers tries to become the holder, because the present holder may end: packets of
/// foreign adapters are lost until then.
const RETRY: Duration = Duration::from_millis(50);
/// How often a process without such peers tries that expects datagrams or MADs. Their senders repeat them; more tries
/// would cost idle processes more.
const RETRY_IDLE: Duration = Duration::from_millis(200);

/// This process's part in sharing port 4791.
#[derive(Default)]
pub struct Foreign {
    pub holder: Option<Holder>,
    /// The sockets of port 4791 of this process, if it is the holder.
    pub sockets: Vec<RawFd>,
    pub names: HolderNames,
    pub next_try: Option<Instant>,
    /// This process tried from time to time before it became the holder.
    pub tried: bool,
    /// A QP of this process has a foreign peer.
    pub peers: bool,
    /// When packets were last handed over to this process.
    pub last_handed_over: Option<Instant>,
    pub looks: u32,
    /// When connections are accepted again.
    pub resume: Option<Instant>,
    pub reported: bool,
    /// Of packets that are handed over.
    pub senders: Senders,
}

impl Foreign {
    /// There is a foreign peer: some process must listen.
    pub fn note_foreign_peer(&mut self, now: Instant) {
        self.peers = true;
        self.schedule_listening(now);
    }

    /// A UD QP may get packets of foreign adapters: some process should listen.
    pub fn schedule_listening(&mut self, now: Instant) {
        if self.holder.is_none() && self.next_try.is_none() {
            self.next_try = Some(now);
        }
    }

    /// Whether a try is due at `now`. The next one is due later then.
    pub fn take_try(&mut self, now: Instant) -> bool {
        let due = self.next_try.is_some_and(|due| due <= now);
        if due {
            self.next_try = Some(now + self.retry());
        }
        due
    }

    fn retry(&self) -> Duration {
        if self.peers { RETRY } else { RETRY_IDLE }
    }

    /// The next try, flush or look for a listener (nanoseconds).
    pub fn next(&self) -> Option<u64> {
        let flush = self.holder.as_ref().and_then(Holder::next);
        let held = self.holder.as_ref().and_then(|holder| holder.held_requests.next());
        let due = [self.next_try, self.resume, held].into_iter().flatten().map(|instant| instant.0);
        due.chain(flush).min()
    }

    /// Queues a packet for the slot that it is for; the next [`flush`](Self::flush) sends it.
    pub fn hand_over(&mut self, dest: u32, arrival: &Arrival, packet: &[u8]) {
        let slot = slot_of(dest);
        if let Some(holder) = &mut self.holder
            && is_used(slot)
        {
            holder.hand_over(Receiver::Slot(slot), arrival, packet);
        }
    }

    /// Claims a name of the holder; returns the process, too, that is the holder and stopped. Errors: as of
    /// [`HolderNames::claim`].
    pub fn claim(&mut self, now: Instant) -> io::Result<(Holder, Option<i32>)> {
        let (claimed, stopped) = match self.next_try {
            Some(_) => self.names.claim(now)?,
            None => (self.names.claim_first()?, None),
        };
        Ok((Holder::of(claimed)?, stopped))
    }

    /// Sends the queued packets.
    #[inline]
    pub fn flush(&mut self, now: Instant) {
        if let Some(holder) = &mut self.holder {
            holder.flush(now);
        }
    }

    /// Logs once why no packet of a foreign adapter gets here; for a process without foreign peers, at the debug level
    /// only.
    pub fn report_listen_error(&mut self, device: &str, error: &io::Error) {
        let retry = self.retry();
        let matters = self.peers || self.next_try.is_some();
        if !matters || std::mem::replace(&mut self.reported, true) {
            tracing::debug!("{device}: cannot listen on UDP port {ROCE_PORT}: {error}");
        } else if error.kind() == io::ErrorKind::AddrInUse {
            tracing::warn!(
                "{device}: another program has UDP port {ROCE_PORT}, perhaps the kernel's Soft-RoCE: no packet of a \
                 foreign adapter gets to this process, while Weir peers are not affected. End that program (`ss -ulpn \
                 sport = :{ROCE_PORT}` shows it) or remove the rxe device (`rdma link`); the port is tried again every \
                 {retry:?}"
            );
        } else {
            tracing::warn!(
                "{device}: cannot listen on UDP port {ROCE_PORT}, where foreign adapters send to: {error}. It is tried \
                 again every {retry:?}"
            );
        }
    }
}
