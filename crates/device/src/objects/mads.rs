//! Management datagrams (MADs) of a process: sending them, and receiving those that the holder of port 4791 hands over.

use crate::Errno;
use crate::adapter::Adapter;
use crate::config;
use crate::engine::mads::checked;
use crate::objects::context::Context;
use crate::os::descriptors::{self, DescriptorGuard};
use crate::os::{clock, epoll, seqpacket};
use crate::relay::incoming::{Incoming, Received};
use crate::relay::message;
use crate::relay::port_authority::PortOwners;
use crate::relay::receiver::{COMMUNICATION_BITS, COMMUNICATIONS, Receiver};
use crate::shared::allowed_hosts::Senders;
use crate::shared::route::{Route, needs_scope};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use weir_transport::{Instant, Psn};
use weir_wire::mad::Mad;

/// The most messages that one call takes: each has up to a hundred MADs.
const MESSAGES: usize = 64;
/// How long no connection is accepted when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

impl Context {
    /// Sends a MAD from QP 1 of an address of this device to QP 1 of another adapter. EINVAL if the addresses are of
    /// different families; EACCES if `--allow` leaves the other one out.
    pub fn send_mad(&self, local: IpAddr, remote: IpAddr, psn: u32, mad: &Mad) -> Result<(), Errno> {
        if local.is_ipv4() != remote.is_ipv4() {
            return Err(Errno(libc::EINVAL));
        }
        self.adapter.check()?;
        self.adapter.permits(remote, None)?;
        let ifindex = if needs_scope(remote) { self.adapter.device.ifindex } else { 0 };
        let route = Route { local, remote, ifindex, hops: 0 };
        self.adapter.with_engine(|engine| engine.send_mad(&route, Psn::new(psn), mad));
        Ok(())
    }

    /// Processes the packets that have come, for 5 ms at most.
    pub fn take_packets(&self) {
        self.adapter.take_packets();
    }

    /// The process is about to end: takes turns until all packets are handed over that have come to port 4791, up to 5 ms.
    pub fn settle(&self) {
        self.adapter.drive_until_idle();
    }

    /// From now on some process of the network namespace takes the packets that come to port 4791: this one, if no
    /// other does.
    pub fn expect_mads(&self) {
        Adapter::expect_foreign_senders(&self.adapter);
    }
}

/// A MAD that has come, after the checks of its packet.
pub struct ReceivedMad<'a> {
    pub from: IpAddr,
    pub to: IpAddr,
    /// The interface that received it.
    pub ifindex: u32,
    pub bytes: &'a Mad,
}

/// A name of this process, by which it gets MADs.
pub struct MadSocket {
    name: Name,
    epoll: Arc<OwnedFd>,
    token: u64,
    /// When connections are accepted again, after the process had no descriptor left.
    resume: Option<Instant>,
    senders: Senders,
}

enum Name {
    /// No MAD is handed over yet.
    Reserved(OwnedFd),
    Open(Incoming),
}

impl MadSocket {
    /// Claims requests to a service, which do not come before [`open`](Self::open). From then on `epoll` reports
    /// `token` when a MAD has come. EADDRINUSE if another process of the network namespace has claimed the service.
    pub fn of_service(service: u64, epoll: &Arc<OwnedFd>, token: u64) -> Result<MadSocket, Errno> {
        Self::reserve(Receiver::Service(service), epoll, token)
    }

    /// Claims a number, and returns it as the upper bits of communication ids. The lower `COMMUNICATION_BITS` are
    /// free. EADDRINUSE if all numbers of the network namespace are taken.
    pub fn of_process(epoll: &Arc<OwnedFd>, token: u64) -> Result<(u32, MadSocket), Errno> {
        let start = getrandom::u32().map_err(|_| Errno(libc::EAGAIN))?;
        for step in 0..COMMUNICATIONS {
            // Communication id 0 stands for none.
            let number = start.wrapping_add(step) % COMMUNICATIONS;
            if number == 0 {
                continue;
            }
            match Self::reserve(Receiver::Communication(number), epoll, token) {
                Ok(mut socket) => {
                    socket.open()?;
                    return Ok((number << COMMUNICATION_BITS, socket));
                }
                Err(Errno(libc::EADDRINUSE)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno(libc::EADDRINUSE))
    }

    /// The bits of a communication id that the process may choose.
    pub const COMMUNICATION_BITS: u32 = COMMUNICATION_BITS;

    /// Returns whether a process of the network namespace has this number in its communication ids, as far as this
    /// process can tell.
    pub fn is_of_process(number: u32) -> bool {
        let _opening = DescriptorGuard::begin();
        // Only a free name can be claimed; it is free again at once.
        seqpacket::reserve(&Receiver::Communication(number).name()).is_err()
    }

    fn reserve(receiver: Receiver, epoll: &Arc<OwnedFd>, token: u64) -> Result<MadSocket, Errno> {
        let _opening = DescriptorGuard::begin();
        let socket = seqpacket::reserve(&receiver.name())?;
        descriptors::register(&[socket.as_raw_fd()]);
        // Opening a device reports a list that is wrong.
        let senders = Senders::of(config::allowed().unwrap_or_default());
        Ok(MadSocket { name: Name::Reserved(socket), epoll: epoll.clone(), token, resume: None, senders })
    }

    /// Lets the holder of port 4791 hand MADs over.
    pub fn open(&mut self) -> Result<(), Errno> {
        let Name::Reserved(socket) = &self.name else { return Ok(()) };
        let same = socket.try_clone()?;
        seqpacket::accept_connections(&same)?;
        epoll::add(&self.epoll, same.as_raw_fd(), libc::EPOLLIN, self.token)?;
        descriptors::register(&[same.as_raw_fd()]);
        if let Name::Reserved(socket) = std::mem::replace(&mut self.name, Name::Open(Incoming::of(same))) {
            descriptors::forget(&[socket.as_raw_fd()]);
        }
        Ok(())
    }

    /// When to [`resume`](Self::resume), if the process had no descriptor left for a connection of the holder.
    pub fn resumes(&self) -> Option<Instant> {
        self.resume
    }

    /// Accepts connections again if it is time.
    pub fn resume(&mut self, now: Instant) {
        if self.resume.is_some_and(|due| due <= now)
            && let Name::Open(incoming) = &self.name
        {
            self.resume = None;
            if let Err(error) = epoll::add(&self.epoll, incoming.as_raw_fd(), libc::EPOLLIN, self.token) {
                tracing::error!("requests for connections do not come any more: {error}");
            }
        }
    }

    /// Takes MADs that have come, and gives them to `deliver`. Returns at the latest after a few thousand.
    pub fn take(&mut self, mut deliver: impl FnMut(ReceivedMad<'_>)) {
        let Name::Open(incoming) = &mut self.name else { return };
        let mut buffer = vec![0; message::LONGEST];
        let mut owners_were_read = false;
        for _ in 0..MESSAGES {
            match incoming.receive(&mut buffer, clock::now()) {
                Received::Message { len, user } => {
                    for arrival in message::packets(&buffer[..len]) {
                        let packet = &buffer[arrival.start..arrival.start + arrival.len];
                        let from = arrival.from.ip();
                        if self.senders.permits(from, clock::now())
                            && incoming.accepts_from(user, from, clock::now())
                            && let Some(bytes) = checked(&arrival, packet)
                        {
                            deliver(ReceivedMad { from, to: arrival.to, ifindex: arrival.ifindex, bytes });
                        }
                    }
                    continue;
                }
                Received::Ended(link) => {
                    epoll::remove(&self.epoll, link.as_raw_fd());
                    descriptors::forget(&[link.as_raw_fd()]);
                    continue;
                }
                Received::Nothing => {}
            }
            let opening = DescriptorGuard::begin();
            match incoming.accept(clock::now()) {
                Ok(Some(accepted)) => {
                    if let Some(link) = accepted.ended {
                        epoll::remove(&self.epoll, link.as_raw_fd());
                        descriptors::forget(&[link.as_raw_fd()]);
                    }
                    descriptors::register(&[accepted.new]);
                    let _ = epoll::add(&self.epoll, accepted.new, libc::EPOLLIN, self.token);
                    continue;
                }
                Ok(None) => {}
                // The socket of the name stays readable, and would keep the thread awake.
                Err(error) if self.resume.is_none() => {
                    tracing::warn!("connection management of other processes is delayed: {error}");
                    epoll::remove(&self.epoll, incoming.as_raw_fd());
                    self.resume = Some(clock::now() + PAUSE);
                }
                Err(_) => {}
            }
            drop(opening);
            if std::mem::replace(&mut owners_were_read, true) || !incoming.take_owners_request() {
                return;
            }
            let (began, mut owners) = (clock::now(), PortOwners::read());
            incoming.renew_owners(&mut owners, began, clock::now());
        }
    }
}

impl Drop for MadSocket {
    fn drop(&mut self) {
        match &self.name {
            Name::Reserved(socket) => descriptors::forget(&[socket.as_raw_fd()]),
            Name::Open(incoming) => descriptors::forget(&incoming.descriptors()),
        }
    }
}
