//! The sending side: the process that holds port 4791. It never waits for a receiver.

use super::connection::Connection;
use super::held_requests::HeldRequests;
use super::message;
use super::message_buffers::{MessageBuffers, Queue};
use super::receiver::Receiver;
use super::request_routes::RequestRoutes;
use crate::os::descriptors::DescriptorGuard;
use crate::os::seqpacket;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;
use weir_link::Arrival;
use weir_transport::Instant;

/// The most connections, each a descriptor of this process; and the most for the receivers of one user.
const LINKS: usize = 128;
const LINKS_OF_USER: usize = 64;
/// The first wait before a blocked receiver is tried again; the wait doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(64);
/// A receiver that has taken nothing for this long loses the messages that wait for it: it is stopped, or hangs.
const GIVE_UP_AFTER: Duration = Duration::from_secs(1);
/// How often a holder that is awake looks for processes that wait for its end, and for a later holder.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The holder of the name, and its connections to other processes. All that its lists and buffers need is reserved when
/// it is made.
pub struct Holder {
    pub held_requests: HeldRequests,
    pub request_routes: RequestRoutes,
    name: OwnedFd,
    buffers: MessageBuffers,
    links: Vec<Link>,
    /// Links with messages.
    pending: usize,
    uses: u64,
    reported: bool,
    /// When to look for processes that wait, and for later holders.
    next_look: Option<Instant>,
}

/// The connection to a receiver.
struct Link {
    to: Receiver,
    socket: Connection,
    /// The user of the receiver.
    user: u32,
    queue: Queue,
    /// When sending is tried again, and not before.
    retry: Option<Instant>,
    wait: Duration,
    /// When it began to take nothing.
    stuck: Option<Instant>,
    /// The number of its last use: the larger, the later.
    used: u64,
}

/// Why there is no link to a receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoLink {
    /// No process has the name.
    NoReceiver,
    /// The process has the name but takes no connection now, or no link can be ended for it, or no descriptor is left.
    NoRoom,
}

/// The result of sending.
enum Sent {
    All,
    /// The receiver does not keep up.
    Later,
    /// There is no such process.
    NoReceiver,
}

impl Holder {
    /// The holder of the name that this socket is bound to (`HolderNames::claim`). Error: no memory is left.
    pub fn of(name: OwnedFd) -> io::Result<Holder> {
        let (held_requests, request_routes) = (HeldRequests::new(), RequestRoutes::new());
        let (buffers, links) = (MessageBuffers::new()?, Vec::with_capacity(LINKS));
        Ok(Holder {
            held_requests,
            request_routes,
            name,
            buffers,
            links,
            pending: 0,
            uses: 0,
            reported: false,
            next_look: None,
        })
    }

    /// Queues a packet; the next [`flush`](Self::flush) sends it. The packet is lost, as on a wire, if too much waits
    /// already for receivers of the same user. Returns whether there is a receiver, or may be: `false` if no process
    /// has its name.
    pub fn hand_over(&mut self, to: Receiver, arrival: &Arrival, packet: &[u8]) -> bool {
        let at = match self.link(to) {
            Ok(at) => at,
            Err(reason) => return reason != NoLink::NoReceiver,
        };
        let user = self.links[at].user;
        let same = |link: &&Link| link.user == user;
        let taken = self.links.iter().filter(same).map(|link| link.queue.count).sum();
        let link = &mut self.links[at];
        let was_empty = link.queue.is_empty();
        let write = |message: &mut [u8; message::LONGEST], len| message::append(message, len, arrival, packet);
        if self.buffers.write(&mut link.queue, taken, write) {
            self.pending += usize::from(was_empty);
        } else if !std::mem::replace(&mut self.reported, true) {
            tracing::warn!(
                "the process @{} takes packets of foreign adapters too slowly: some are lost (said once)",
                &*to.name()
            );
        }
        true
    }

    /// Returns whether to [look](Self::forget_waiting) for processes that wait, and for later holders.
    pub fn take_look(&mut self, now: Instant) -> bool {
        let due = self.next_look.is_some_and(|due| due <= now);
        if due || self.next_look.is_none() {
            self.next_look = Some(now + LOOK_INTERVAL);
        }
        due
    }

    /// Takes the connections of processes that wait for this one's end, and closes them: only so many fit into the
    /// socket's queue. Each makes another one.
    pub fn forget_waiting(&self) {
        let _guard = DescriptorGuard::begin();
        let _ = (0..=seqpacket::BACKLOG).try_for_each(|_| seqpacket::accept(&self.name).map(drop));
    }

    /// Returns whether there is a link to a receiver, after [`flush`](Self::flush): not if its process has ended.
    pub fn may_receive(&self, to: Receiver) -> bool {
        self.links.iter().any(|link| link.to == to)
    }

    /// Sends queued messages, as far as receivers take them.
    #[inline]
    pub fn flush(&mut self, now: Instant) {
        if self.pending > 0 {
            self.flush_pending(now);
        }
    }

    fn flush_pending(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.links.len() {
            let link = &mut self.links[at];
            let due = !link.queue.is_empty() && link.retry.is_none_or(|retry| retry <= now);
            if !due {
                at += 1;
                continue;
            }
            match link.send(&mut self.buffers) {
                Sent::All => {
                    self.pending -= 1;
                    at += 1;
                }
                Sent::Later => {
                    if link.is_stuck(now) {
                        self.buffers.clear(&mut link.queue);
                        (link.stuck, link.retry) = (None, None);
                        self.pending -= 1;
                    }
                    at += 1;
                }
                Sent::NoReceiver => self.end(at),
            }
        }
    }

    /// When to flush again (nanoseconds), if a receiver does not keep up.
    pub fn next(&self) -> Option<u64> {
        if self.pending == 0 {
            return None;
        }
        self.links.iter().filter(|link| !link.queue.is_empty()).map(|link| link.retry.map_or(0, |retry| retry.0)).min()
    }

    /// The index of the link to a receiver, made if there is none.
    fn link(&mut self, to: Receiver) -> Result<usize, NoLink> {
        self.uses += 1;
        let used = self.uses;
        if let Some(at) = self.links.iter().position(|link| link.to == to) {
            // A listener may have ended since the last request, and another one may have begun: requests are rare.
            let listener = matches!(to, Receiver::Service(_));
            if !listener || !self.links[at].socket.is_over() {
                self.links[at].used = used;
                return Ok(at);
            }
            self.end(at);
        }
        let refused = |error: &io::Error| {
            let usual = matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock);
            if !usual && !std::mem::replace(&mut self.reported, true) {
                tracing::warn!("packets of foreign adapters do not get to @{}: {error} (said once)", &*to.name());
            }
        };
        let (socket, user) = connect(to).inspect_err(refused).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => NoLink::NoReceiver,
            _ => NoLink::NoRoom,
        })?;
        if self.links.iter().filter(|link| link.user == user).count() == LINKS_OF_USER {
            self.end_one(|link| link.user == user).ok_or(NoLink::NoRoom)?;
        }
        if self.links.len() == LINKS {
            self.end_one(|_| true).ok_or(NoLink::NoRoom)?;
        }
        let (queue, wait) = (Queue::new(), FIRST_WAIT);
        self.links.push(Link { to, socket, user, queue, retry: None, wait, stuck: None, used });
        Ok(self.links.len() - 1)
    }

    /// Ends the least recently used idle link, or one with a receiver that takes nothing. Messages that are in its
    /// receiver's socket already can still be read.
    fn end_one(&mut self, which: impl Fn(&Link) -> bool) -> Option<()> {
        let idle = |link: &Link| link.queue.is_empty();
        let may_end = |(_, link): &(usize, &Link)| which(link) && (idle(link) || link.stuck.is_some());
        let (at, _) = self.links.iter().enumerate().filter(may_end).min_by_key(|(_, l)| (!idle(l), l.used))?;
        self.end(at);
        Some(())
    }

    fn end(&mut self, at: usize) {
        let mut link = self.links.swap_remove(at);
        self.pending -= usize::from(!link.queue.is_empty());
        self.buffers.clear(&mut link.queue);
    }
}

/// Connects to a receiver; returns the user of its process, too.
fn connect(to: Receiver) -> io::Result<(Connection, u32)> {
    Connection::open(&to.name())
}

impl AsRawFd for Holder {
    fn as_raw_fd(&self) -> RawFd {
        self.name.as_raw_fd()
    }
}

impl Link {
    fn send(&mut self, buffers: &mut MessageBuffers) -> Sent {
        let mut tried = false;
        while let Some(message) = buffers.first(&self.queue) {
            let error = match self.socket.send(message) {
                Ok(()) => {
                    buffers.drop_first(&mut self.queue);
                    (self.retry, self.stuck, self.wait) = (None, None, FIRST_WAIT);
                    continue;
                }
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => return Sent::Later,
                // The process that had the name has ended; another may have it now.
                Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) if !tried => {
                    match connect(self.to) {
                        Ok((socket, user)) => (self.socket, self.user, tried) = (socket, user, true),
                        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Sent::NoReceiver,
                        // It takes no connection now, or this process has no descriptor left.
                        Err(_) => return Sent::Later,
                    }
                }
                _ => return Sent::NoReceiver,
            }
        }
        Sent::All
    }

    /// Postpones the next attempt. Returns whether the receiver is given up for now.
    fn is_stuck(&mut self, now: Instant) -> bool {
        self.retry = Some(now + self.wait);
        self.wait = (2 * self.wait).min(LONGEST_WAIT);
        let since = *self.stuck.get_or_insert(now);
        now - since >= GIVE_UP_AFTER
    }
}

/// Runs a test in its own network namespace, which has its own socket names. Only this thread is in it.
#[cfg(test)]
pub(super) fn in_own_namespace(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            work();
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::clock;
    use crate::relay::holder_names::HolderNames;
    use crate::relay::incoming::{Incoming, Received};
    use crate::relay::message_buffers::MESSAGES;
    use crate::slot;
    use weir_wire::ROCE_PORT;

    fn claim() -> Holder {
        Holder::of(HolderNames::default().claim_first().unwrap()).unwrap()
    }

    fn arrival() -> Arrival {
        Arrival::new(([10, 0, 0, 2], 7).into(), ROCE_PORT, 0, 0)
    }

    fn packet(number: usize) -> Vec<u8> {
        number.to_be_bytes().repeat(135)
    }

    /// Accepts connections and receives one message; returns the packets in it.
    fn take(incoming: &mut Incoming) -> Vec<Vec<u8>> {
        while incoming.accept(clock::now()).is_ok_and(|link| link.is_some()) {}
        let mut buffer = vec![0; 1 << 16];
        match incoming.receive(&mut buffer, crate::os::clock::now()) {
            Received::Message { len, .. } => {
                message::packets(&buffer[..len]).map(|p| buffer[p.start..][..p.len].to_vec()).collect()
            }
            Received::Ended(_) | Received::Nothing => Vec::new(),
        }
    }

    fn send(holder: &mut Holder, slot: u16, numbers: std::ops::Range<usize>) {
        for number in numbers {
            holder.hand_over(Receiver::Slot(slot), &arrival(), &packet(number));
            if number % 64 == 63 {
                holder.flush(clock::now());
            }
        }
    }

    /// Flushes and receives until `count` packets have come.
    fn take_all(holder: &mut Holder, incoming: &mut Incoming, count: usize) -> Vec<Vec<u8>> {
        let (mut got, began) = (Vec::new(), clock::now());
        while got.len() < count && clock::now() - began < Duration::from_secs(10) {
            holder.flush(clock::now());
            got.extend(take(incoming));
        }
        got
    }

    #[test]
    #[ignore = "needs root"]
    fn a_burst_arrives_whole() {
        const BURST: usize = 4000;
        in_own_namespace(|| {
            let mut incoming = Incoming::claim(&slot::name(5)).unwrap();
            let mut holder = claim();
            // Some four MiB, before the receiver runs.
            send(&mut holder, 5, 0..BURST);
            let got = take_all(&mut holder, &mut incoming, BURST);
            assert_eq!(got.len(), BURST);
            assert!(got.iter().enumerate().all(|(number, bytes)| *bytes == packet(number)), "in order, unchanged");
            assert_eq!((holder.pending, holder.next()), (0, None));
        });
    }

    /// Sockets that another user has claimed.
    fn of_user(user: u32, slots: std::ops::Range<u16>) -> Vec<Incoming> {
        std::thread::scope(|scope| {
            let claim = || {
                // SAFETY: changes the user of this thread only, where the library's call would change that of all
                // threads.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
                slots.map(|slot| Incoming::claim(&slot::name(slot)).unwrap()).collect()
            };
            scope.spawn(claim).join().unwrap()
        })
    }

    #[test]
    #[ignore = "needs root"]
    fn receivers_that_take_nothing_do_not_affect_other_users() {
        in_own_namespace(|| {
            let stopped = of_user(12345, 5..105);
            let mut incoming = Incoming::claim(&slot::name(200)).unwrap();
            let mut holder = claim();
            for slot in 5..105 {
                send(&mut holder, slot, 0..1000);
            }
            holder.flush(clock::now());
            assert_eq!(holder.links.len(), LINKS_OF_USER);
            assert_eq!(holder.links.iter().map(|link| link.queue.count).sum::<usize>(), MESSAGES / 2);
            // Some four MiB for another user's process still arrive complete.
            send(&mut holder, 200, 0..4000);
            assert_eq!(take_all(&mut holder, &mut incoming, 4000).len(), 4000);
            // The stopped receivers are given up in the end, and no deadline is left.
            let mut now = clock::now();
            for _ in 0..100 {
                now = now + LONGEST_WAIT;
                holder.flush(now);
            }
            assert_eq!((holder.pending, holder.next()), (0, None));
            drop(stopped);
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn the_next_process_of_a_slot_gets_its_packets() {
        in_own_namespace(|| {
            let mut holder = claim();
            send(&mut holder, 5, 0..10);
            holder.flush(clock::now());
            assert_eq!((holder.links.len(), holder.pending), (0, 0), "no process has the slot");
            for process in 0..3 {
                let mut incoming = Incoming::claim(&slot::name(5)).unwrap();
                send(&mut holder, 5, process..process + 10);
                let got = take_all(&mut holder, &mut incoming, 10);
                assert_eq!(got[0], packet(process));
                assert_eq!((got.len(), holder.links.len()), (10, 1));
            }
        });
    }

    #[test]
    #[ignore = "needs root"]
    fn the_last_link_used_stays() {
        in_own_namespace(|| {
            let _used = Incoming::claim(&slot::name(5)).unwrap();
            let slots = 6..6 + LINKS as u16 + 40;
            let mut receivers: Vec<_> = slots.clone().map(|slot| Incoming::claim(&slot::name(slot)).unwrap()).collect();
            let mut holder = claim();
            for (slot, incoming) in slots.zip(&mut receivers) {
                send(&mut holder, slot, 0..1);
                send(&mut holder, 5, 0..1);
                assert_eq!(take_all(&mut holder, incoming, 1).len(), 1, "slot {slot}");
            }
            assert_eq!(holder.links.len(), LINKS_OF_USER);
            assert!(holder.links.iter().any(|link| link.to == Receiver::Slot(5)));
        });
    }
}
