//! The protocol with its port: completions and events of the adapter go in, ends of operations come out.

use crate::adapter_counters;
use crate::core::{log, warn};
use crate::domain::Keys;
use crate::endpoint::links::{LISTENER, Links};
use crate::endpoint::numbers::{Request, request_of};
use crate::endpoint::port::VerbsPort;
use crate::info::{name_of, parse_name};
use crate::rdma::{Adapter, EMPTY_COMPLETION, Errno, Event, EventKind};
use crate::timer::Timer;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use weir_abi::{IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_wc};
use weir_fabric_abi::FI_LOG_EP_CTRL;
use weir_msg::{ConnectionId, Endpoint, Hello, Reason, Rejection, Settings, Verdict};

/// Completions that are taken at a time.
const BATCH: usize = 16;
/// How often connection events are looked for: a look is a system call.
const LOOKS: Duration = Duration::from_millis(1);
/// The same, while connections are being established.
const LOOKS_SOON: Duration = Duration::from_micros(20);
/// How often counters are shown to `weir stat`.
const PUBLISHES: Duration = Duration::from_millis(100);
/// Peers for which the completion queue has room.
const PEERS: u32 = 256;
/// An endpoint that closes waits so long for the end of what it has sent, since anything that it has sent has ended last.
const DRAIN: Duration = Duration::from_secs(10);
/// The same, whatever happens.
const LONGEST_DRAIN: Duration = Duration::from_secs(60);
const IBV_WC_REM_INV_REQ_ERR: i32 = 9;
const IBV_WC_REM_ACCESS_ERR: i32 = 10;
const IBV_WC_RECV: i32 = 1 << 7;
const IBV_WC_RECV_RDMA_WITH_IMM: i32 = IBV_WC_RECV | 1;

static ENGINES: AtomicUsize = AtomicUsize::new(0);

/// An enabled endpoint.
pub struct Engine {
    pub protocol: Endpoint,
    pub port: VerbsPort,
    began: Instant,
    looked: Duration,
    published: Duration,
    /// Ends a wait when the protocol has something to do although nothing has happened. `None`: there was no descriptor left.
    timer: Option<Timer>,
    /// Requests of the send queues that have completed.
    sent: u64,
    /// Tells endpoints of the process apart.
    number: usize,
}

impl Engine {
    /// Listens at an address, with port 0 at any.
    pub fn new(
        adapter: &Arc<Adapter>,
        address: SocketAddr,
        settings: Settings,
        keys: &Arc<Keys>,
    ) -> Result<Engine, Errno> {
        let links = Links::new(adapter, address, settings.receive_slots, PEERS)?;
        let protocol = Endpoint::new(settings, name_of(links.address()));
        let port = VerbsPort::new(adapter, links, &settings, keys);
        let (looked, published) = Default::default();
        let number = ENGINES.fetch_add(1, Ordering::Relaxed);
        Ok(Engine { protocol, port, began: Instant::now(), looked, published, timer: Timer::new(), sent: 0, number })
    }

    /// The time of the protocol.
    #[inline]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time, when the program calls. The protocol learns first until when the call before has worked, so that it does not
    /// take a long call for a program that computes.
    #[inline]
    fn called(&mut self) -> Duration {
        if let Some(worked) = self.port.worked.take() {
            self.protocol.has_waited(worked.duration_since(self.began));
        }
        self.now()
    }

    /// The protocol, its port, and the time.
    #[inline]
    pub fn parts(&mut self) -> (&mut Endpoint, &mut VerbsPort, Duration) {
        let now = self.called();
        (&mut self.protocol, &mut self.port, now)
    }

    /// Where peers find it.
    pub fn address(&self) -> SocketAddr {
        self.port.links.address()
    }

    /// Takes what the adapter has, and goes on with what has room.
    pub fn progress(&mut self) {
        let now = self.called();
        self.protocol.awaits(&mut self.port, now);
        self.take_completions(now);
        self.look_for_events(now);
        self.protocol.progress(&mut self.port, now);
        if now >= self.published + PUBLISHES {
            self.published = now;
            self.publish(false);
        }
    }

    /// Shows what the endpoint has done.
    fn publish(&self, closed: bool) {
        adapter_counters::publish(self.number, self.protocol.settings().scheme, self.protocol.counters(), closed);
    }

    /// Asks for descriptors to become readable. False: there is something now.
    pub fn may_block(&mut self) -> bool {
        let queue = &self.port.links.queue;
        // Notifications that have come are not needed any more: what they tell of is taken by `progress`.
        let _ = queue.take_notifications();
        if queue.request_notification().is_err() {
            return true;
        }
        let now = self.called();
        if let Some(timer) = &self.timer {
            timer.set(self.protocol.next_time().map(|time| time.saturating_sub(now)));
        }
        !self.take_completions(now)
    }

    /// The program has waited until now, and computed nothing.
    pub fn waited(&mut self) {
        let now = self.now();
        self.protocol.has_waited(now);
    }

    /// Descriptors that are readable when there is something to do.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let links = &self.port.links;
        let timer = self.timer.as_ref().map(Timer::fd);
        links.queue.channel_fd().into_iter().chain([links.channel.fd()]).chain(timer).collect()
    }

    /// Waits until all that the program has sent has arrived, as far as peers answer, and ends all connections.
    pub fn close(&mut self) {
        let began = Instant::now();
        let (mut active, mut sent) = (began, self.sent);
        while active.elapsed() < DRAIN && began.elapsed() < LONGEST_DRAIN && !self.protocol.is_drained() {
            let now = self.now();
            self.protocol.flush(&mut self.port);
            self.take_completions(now);
            if std::mem::replace(&mut sent, self.sent) != self.sent {
                active = Instant::now();
            }
            self.look_for_events(now);
            self.protocol.progress(&mut self.port, now);
            std::thread::yield_now();
        }
        if !self.protocol.is_drained() {
            warn(FI_LOG_EP_CTRL, "an endpoint closes although peers have not taken all that was sent to them");
        }
        self.protocol.close(&mut self.port);
        self.publish(true);
    }

    /// Takes completions. True: there were some.
    fn take_completions(&mut self, now: Duration) -> bool {
        let mut any = false;
        loop {
            let mut completions = [EMPTY_COMPLETION; BATCH];
            let count = match self.port.links.queue.poll(&mut completions) {
                Ok(count) => count,
                Err(error) => {
                    warn(FI_LOG_EP_CTRL, &format!("the completion queue fails: {error}"));
                    return any;
                }
            };
            completions[..count].iter().for_each(|completion| self.completed(now, completion));
            any |= count > 0;
            if count < BATCH {
                return any;
            }
        }
    }

    fn completed(&mut self, now: Duration, completion: &ibv_wc) {
        let (protocol, port) = (&mut self.protocol, &mut self.port);
        match request_of(completion.wr_id) {
            Request::Receive(connection, slot) if completion.status == IBV_WC_SUCCESS => {
                // A message can overtake the event that the connection is established.
                if port.links.get(connection).is_some_and(|link| !link.established) {
                    self.established(now, connection, None);
                }
                let (protocol, port) = (&mut self.protocol, &mut self.port);
                if completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
                    let immediate = u32::from_be(completion.imm_data);
                    protocol.written(port, now, connection, slot, completion.byte_len.into(), immediate);
                } else {
                    protocol.received(port, now, connection, slot, completion.byte_len as usize);
                }
            }
            Request::Send(connection, number) if completion.status == IBV_WC_SUCCESS => {
                self.sent += 1;
                protocol.sent(port, now, connection, number);
            }
            Request::Send(connection, number) => {
                let denied = matches!(completion.status, IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR);
                if completion.status != IBV_WC_WR_FLUSH_ERR {
                    let (status, vendor) = (completion.status, completion.vendor_err);
                    warn(FI_LOG_EP_CTRL, &format!("a request has failed: status {status}, vendor error {vendor:#x}"));
                }
                protocol.send_failed(port, connection, number, denied);
            }
            Request::Receive(connection, _) => protocol.lost(port, connection),
        }
    }

    fn look_for_events(&mut self, now: Duration) {
        while let Some(own) = self.port.links.next_ready() {
            // The endpoint hears what it says itself.
            let hello = self.port.links.get(own).and_then(|link| Hello::parse(&link.hello));
            self.established(now, own, hello.as_ref());
        }
        if now < self.looked + LOOKS_SOON || now < self.looked + LOOKS && !self.port.links.is_connecting() {
            return;
        }
        self.looked = now;
        loop {
            match self.port.links.channel.next() {
                Ok(Some(event)) => self.event(now, event),
                Ok(None) => return,
                Err(error) => {
                    warn(FI_LOG_EP_CTRL, &format!("connection events fail: {error}"));
                    return;
                }
            }
        }
    }

    fn event(&mut self, now: Duration, event: Event) {
        if event.token == LISTENER {
            if let EventKind::ConnectRequest(request) = event.kind {
                // A peer that names another address than its own is none, nor may it have two names for one address.
                let from = |hello: &Hello| {
                    parse_name(hello.name.as_bytes()).filter(|&name| name_of(name) == hello.name).map(|name| name.ip())
                };
                let peer = request.peer.ip();
                let hello = Hello::parse(&request.private_data).filter(|hello| from(hello) == Some(peer));
                // The request may take the place of a connection, of which all that has arrived counts.
                self.take_completions(now);
                match self.port.links.incoming(request) {
                    Ok(connection) => self.incoming(connection, hello.as_ref()),
                    Err(error) => warn(FI_LOG_EP_CTRL, &format!("a connection request is lost: {error}")),
                }
            }
            return;
        }
        let connection = ConnectionId(event.token as u32);
        let system = |error: Errno| Reason::System(weir_msg::Errno(error.0));
        let step = match event.kind {
            EventKind::AddressResolved => self.port.links.resolve_route(connection),
            EventKind::RouteResolved => self.port.links.send_request(&self.port.slots, connection),
            EventKind::Established { private_data } => {
                self.established(now, connection, Hello::parse(&private_data).as_ref());
                Ok(())
            }
            EventKind::Rejected { reason, private_data } => {
                let rejection = private_data.first().and_then(|&code| Rejection::from_code(code));
                let reason = match rejection {
                    Some(rejection) => Reason::Rejected(rejection),
                    None => {
                        log(weir_fabric_abi::FI_LOG_INFO, FI_LOG_EP_CTRL, &format!("refused for reason {reason}"));
                        Reason::System(weir_msg::Errno(libc::ECONNREFUSED))
                    }
                };
                self.protocol.refused(&mut self.port, now, connection, reason);
                Ok(())
            }
            EventKind::AddressError(error)
            | EventKind::RouteError(error)
            | EventKind::ConnectError(error)
            | EventKind::Unreachable(error) => Err(error),
            EventKind::Disconnected | EventKind::DeviceRemoval => {
                // What the peer has sent before has arrived.
                self.take_completions(now);
                self.protocol.lost(&mut self.port, connection);
                Ok(())
            }
            EventKind::ConnectRequest(_) | EventKind::TimewaitExit | EventKind::Other(_) => Ok(()),
        };
        if let Err(error) = step {
            self.protocol.refused(&mut self.port, now, connection, system(error));
            // A connection that was accepted is not refused, but lost.
            self.protocol.lost(&mut self.port, connection);
        }
    }

    fn incoming(&mut self, connection: ConnectionId, hello: Option<&Hello>) {
        if let Verdict::Rejected(rejection) = self.protocol.incoming(&mut self.port, connection, hello) {
            log(weir_fabric_abi::FI_LOG_INFO, FI_LOG_EP_CTRL, &format!("a peer is refused: {rejection}"));
            self.port.links.reject(connection, rejection.code());
        }
    }

    fn established(&mut self, now: Duration, connection: ConnectionId, hello: Option<&Hello>) {
        let Some(link) = self.port.links.get_mut(connection) else { return };
        if std::mem::replace(&mut link.established, true) {
            return;
        }
        let depth = self.port.links.depth(connection);
        self.protocol.established(&mut self.port, now, connection, hello, depth);
    }
}
