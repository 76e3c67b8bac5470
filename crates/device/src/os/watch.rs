//! Watches the interface behind a device: notifications of the kernel become port and GID events.
//!
//! Queries use a descriptor that stays open. If the kernel does not respond, the last known state is used.

use crate::Errno;
use crate::events::{AsyncEvent, PortEvent};
use crate::os::device_info;
use crate::os::grow::with_room;
use crate::os::interfaces::{self, DeviceInfo};
use crate::os::locks::{LeafMutex, RankedMutex, rank};
use crate::os::netlink::{Link, Netlink};
use crate::os::notify::Notify;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// The last known state of a device's interface, and the event queues to notify.
pub struct Watch {
    name: String,
    ifname: String,
    /// Names and indices of its interfaces.
    members: Vec<(String, u32)>,
    /// None where a sandbox forbids it: queries still return the port's current state, but there are no events.
    socket: Option<OwnedFd>,
    query: RankedMutex<Query, { rank::INTERFACE }>,
    seen: LeafMutex<Arc<Seen>>,
    /// Last known speed, Mbit/s.
    speed: AtomicU32,
    /// Entries stay where they are; [`Watch::add_listener`] replaces those that have ended.
    listeners: LeafMutex<Vec<Weak<Notify<AsyncEvent>>>>,
}

/// The socket for queries, and the last result.
struct Query {
    netlink: Netlink,
    /// None: there was no such interface, or the interface had no address.
    last: Option<DeviceInfo>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    exists: bool,
    up: bool,
    gids: Vec<Option<IpAddr>>,
    /// Interfaces that pass no packets, of a device that joins several.
    down: Vec<Down>,
}

/// An interface that passes no packets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Down {
    name: String,
    exists: bool,
}

impl Down {
    /// The log line about it, one of several interfaces of a device.
    fn line(&self, others_up: bool) -> String {
        let what = match self.exists {
            true => device_info::down(&self.name),
            false => format!("interface {0} is gone: create {0} again and restart the program", self.name),
        };
        let others = if others_up { ". The other interfaces of the device carry all packets meanwhile" } else { "" };
        format!("{what}{others}")
    }
}

impl Watch {
    /// Watches the interface of `device`, with `netlink` for queries. Error: EMFILE, ENFILE.
    pub fn new(device: &DeviceInfo, netlink: Netlink) -> Result<Watch, Errno> {
        let socket = match subscribe() {
            Ok(socket) => Some(socket),
            Err(error) if error.is_out_of_descriptors() => return Err(error),
            Err(_) => None,
        };
        let watch = Watch::over(device, netlink, socket);
        // The interface may have changed before the subscription.
        let now = watch.state();
        if !now.up && now.down.is_empty() {
            tracing::warn!("{}: {}", watch.name, device_info::down(&watch.ifname));
        }
        now.down.iter().for_each(|down| tracing::warn!("{}: {}", watch.name, down.line(now.up)));
        watch.replace_seen(now);
        Ok(watch)
    }

    /// As `new`, with the subscribed socket, if there is one; the state of the interface is that of `device`.
    pub fn over(device: &DeviceInfo, netlink: Netlink, socket: Option<OwnedFd>) -> Watch {
        Watch {
            name: device.name.clone(),
            ifname: device.ifname.clone(),
            members: device.members(),
            socket,
            query: RankedMutex::new(Query { netlink, last: Some(device.clone()) }),
            seen: LeafMutex::new(Arc::new(Seen {
                exists: true,
                up: device.up,
                gids: device.gids.clone(),
                down: Vec::new(),
            })),
            speed: AtomicU32::new(device.speed_mbps().unwrap_or(0)),
            listeners: LeafMutex::default(),
        }
    }

    /// The current state of the device; its last known state if the query fails. `None` if no interface with its name
    /// has an address.
    pub fn device(&self) -> Option<DeviceInfo> {
        let mut query = self.query.lock();
        match interfaces::device(&mut query.netlink, &self.name) {
            Ok(now) => query.last = now,
            Err(error) => {
                tracing::warn!("{}: cannot query interface {} now: errno {}", self.name, self.ifname, error.0);
            }
        }
        query.last.clone()
    }

    /// Speed of the device that [`Watch::device`] returned, Mbit/s; the last known speed if there is no free
    /// descriptor.
    pub fn speed_mbps(&self, device: &DeviceInfo) -> u32 {
        if let Ok(speed) = device.speed_mbps() {
            self.speed.store(speed, Ordering::Relaxed);
        }
        self.speed.load(Ordering::Relaxed)
    }

    /// All descriptors of the watch.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let query = self.query.lock().netlink.descriptor();
        self.descriptor().into_iter().chain([query]).collect()
    }

    /// The descriptor that is readable when the kernel has reported a change.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Adds a queue of events, for as long as `events` lives. ENOMEM without memory.
    pub fn add_listener(&self, events: &Arc<Notify<AsyncEvent>>) -> Result<(), Errno> {
        let mut listener = Arc::downgrade(events);
        let mut listeners = with_room(1, || self.listeners.lock(), |listeners| listeners)?;
        match listeners.iter_mut().find(|listener| listener.strong_count() == 0) {
            Some(ended) => std::mem::swap(ended, &mut listener),
            None => {
                listeners.push(listener);
                return Ok(());
            }
        }
        drop(listeners);
        // The replaced entry is freed after the lock is released.
        drop(listener);
        Ok(())
    }

    /// Returns whether the last known state of the interface has this address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.seen.lock().gids.contains(&Some(address))
    }

    /// Reads the kernel's notifications, logs losses and raises the events of the changes.
    pub fn process_notifications(&self) {
        if !self.concerns_interface() {
            return;
        }
        let now = self.state();
        let before = self.replace_seen(now.clone());
        for line in losses(&self.ifname, &before, &now) {
            tracing::warn!("{}: {line}", self.name);
        }
        for event in changes(&before, &now) {
            self.raise_in_all_contexts(event);
        }
    }

    /// Raises an event in all contexts.
    pub fn raise_in_all_contexts(&self, event: AsyncEvent) {
        // Events are pushed, and references dropped, without the lock.
        let listener = |at: usize| self.listeners.lock().get(at).map(Weak::upgrade);
        (0..).map_while(listener).flatten().for_each(|listener| listener.push(event));
    }

    /// Replaces the last known state and returns it. No state is freed under the lock, which the engine takes.
    fn replace_seen(&self, now: Seen) -> Arc<Seen> {
        let now = Arc::new(now);
        std::mem::replace(&mut *self.seen.lock(), now)
    }

    fn last_seen(&self) -> Seen {
        let seen = self.seen.lock().clone();
        Seen::clone(&seen)
    }

    /// The current state; the last known state if the kernel does not respond.
    fn state(&self) -> Seen {
        let links = self.query.lock().netlink.links();
        let Ok(links) = links else { return self.last_seen() };
        // Another interface may have the same name now.
        let is = |link: &Link| self.members.iter().any(|(name, index)| link.name == *name && link.index == *index);
        let exists = links.iter().any(is);
        match self.device().filter(|_| exists) {
            Some(device) => Seen { exists, up: device.up, gids: device.gids, down: self.members_down(&links) },
            // Without an address no packet can be sent.
            None => Seen { exists, up: false, gids: Vec::new(), down: Vec::new() },
        }
    }

    /// The interfaces that pass no packets, if there are several.
    fn members_down(&self, links: &[Link]) -> Vec<Down> {
        if self.members.len() == 1 {
            return Vec::new();
        }
        let state = |(name, index): &(String, u32)| {
            let link = links.iter().find(|link| link.name == *name && link.index == *index);
            let passes = link.is_some_and(interfaces::is_up);
            (!passes).then(|| Down { name: name.clone(), exists: link.is_some() })
        };
        self.members.iter().filter_map(state).collect()
    }

    /// Reads all pending notifications. Returns whether any is about the watched interface, or if some were lost
    /// (ENOBUFS).
    fn concerns_interface(&self) -> bool {
        let Some(socket) = self.descriptor() else { return false };
        let is_ours = |index| self.members.iter().any(|(_, own)| *own == index);
        let mut ours = false;
        let mut bytes = [0u8; 8192];
        loop {
            // SAFETY: receives into an array on the stack.
            let count = unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match usize::try_from(count) {
                Ok(0) => return ours,
                Ok(count) => ours |= indices(&bytes[..count]).any(is_ours),
                Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::ENOBUFS) => ours = true,
                    Some(libc::EINTR) => {}
                    _ => return ours,
                },
            }
        }
    }
}

fn subscribe() -> Result<OwnedFd, Errno> {
    const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
    // SAFETY: creates a descriptor, which `OwnedFd` owns; zero is a valid address, and its length is given.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        if socket < 0 {
            return Err(Errno::last());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut address: libc::sockaddr_nl = std::mem::zeroed();
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = GROUPS as u32;
        let length = size_of_val(&address) as libc::socklen_t;
        let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length);
        if bound == 0 { Ok(socket) } else { Err(Errno::last()) }
    }
}

/// The interfaces that netlink messages are about: `ifinfomsg` and `ifaddrmsg` have the index at the same offset.
fn indices(mut messages: &[u8]) -> impl Iterator<Item = u32> {
    const HEADER: usize = size_of::<libc::nlmsghdr>();
    const INDEX: std::ops::Range<usize> = HEADER + 4..HEADER + 8;
    let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).ok();
    std::iter::from_fn(move || {
        let length = word(messages.get(..4)?)? as usize;
        let index = word(messages.get(INDEX)?)?;
        messages = messages.get(length.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
        Some(index)
    })
}

/// Log lines: what an interface has lost, and what to do.
fn losses(ifname: &str, before: &Seen, now: &Seen) -> Vec<String> {
    if !now.exists {
        let gone =
            format!("interface {ifname} is gone, and so is its device: create {ifname} again and restart the program");
        return if before.exists { vec![gone] } else { vec![] };
    }
    // Without an address an interface counts as down. An interface that is down loses its IPv6 addresses as a
    // consequence.
    if before.up && !now.up && !now.gids.is_empty() && now.down.is_empty() {
        return vec![device_info::down(ifname)];
    }
    let down = now.down.iter().filter(|down| !before.down.contains(down)).map(|down| down.line(now.up));
    // Of several interfaces, one that is down has lost its IPv6 addresses.
    let lost = before.gids.iter().flatten().filter(|address| !now.gids.contains(&Some(**address)));
    let lost = lost.filter(|address| now.down == before.down || address.is_ipv4());
    let lost = lost
        .map(|address| format!("address {address} is gone: `ip addr add {address}/PREFIX dev {ifname}` restores it"));
    down.chain(lost).collect()
}

fn changes(before: &Seen, now: &Seen) -> Vec<AsyncEvent> {
    let happened = [
        (before.up && !now.up, AsyncEvent::Port(PortEvent::Error)),
        (before.exists && !now.exists, AsyncEvent::DeviceFatal),
        (now.exists && before.gids != now.gids, AsyncEvent::Port(PortEvent::GidChange)),
        (!before.up && now.up, AsyncEvent::Port(PortEvent::Active)),
    ];
    happened.into_iter().filter_map(|(happened, event)| happened.then_some(event)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    #[ignore = "needs root"]
    fn events_follow_the_interface() {
        // A network namespace of this thread only; it ends with the thread.
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            ip("link set lo up");
            let mut netlink = Netlink::open().unwrap();
            let device = interfaces::device(&mut netlink, "weir_lo").unwrap().expect("it is up");
            let watch = Watch::new(&device, netlink).unwrap();
            let events = Arc::new(Notify::new().unwrap());
            watch.add_listener(&events).unwrap();
            let events_after = |command: &str| {
                ip(command);
                watch.process_notifications();
                std::iter::from_fn(|| waits(&events).then(|| events.take().unwrap())).collect::<Vec<_>>()
            };
            let port = AsyncEvent::Port;
            assert_eq!(events_after("addr add 10.9.8.7/32 dev lo"), [port(PortEvent::GidChange)]);
            assert_eq!(events_after("link set lo mtu 9000"), []);
            let down = events_after("link set lo down");
            assert_eq!(down[0], port(PortEvent::Error), "{down:?}");
            assert_eq!(events_after("link set lo up").last(), Some(&port(PortEvent::Active)));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_interface_that_is_gone_is_a_fatal_event_of_the_device() {
        let up = Seen { exists: true, up: true, gids: vec![None], down: Vec::new() };
        let gone = Seen { exists: false, up: false, gids: Vec::new(), down: Vec::new() };
        assert_eq!(changes(&up, &gone), [AsyncEvent::Port(PortEvent::Error), AsyncEvent::DeviceFatal]);
        assert_eq!(changes(&gone, &gone), []);
    }

    #[test]
    fn losses_are_logged_with_a_remedy() {
        let seen = |exists, up, gids: &[&str]| Seen {
            exists,
            up,
            gids: gids.iter().map(|gid| Some(gid.parse().unwrap())).collect(),
            down: Vec::new(),
        };
        let up = seen(true, true, &["10.0.0.1", "10.0.0.2"]);
        let losses_at = |now: &Seen| losses("eth7", &up, now);
        assert_eq!(losses_at(&up), Vec::<String>::new());
        let down = losses_at(&seen(true, false, &["10.0.0.1", "10.0.0.2"]));
        assert!(down.len() == 1 && down[0].contains("`ip link set eth7 up`"), "{down:?}");
        let address = losses_at(&seen(true, true, &["10.0.0.2"]));
        assert!(address.len() == 1 && address[0].contains("`ip addr add 10.0.0.1/PREFIX dev eth7`"), "{address:?}");
        assert_eq!(losses_at(&seen(true, false, &[])).len(), 2, "both addresses");
        let gone = seen(false, false, &[]);
        assert!(losses_at(&gone).len() == 1 && losses_at(&gone)[0].contains("eth7 is gone"), "{:?}", losses_at(&gone));
        assert_eq!(losses("eth7", &gone, &gone).len(), 0, "once");
        let eth8 = |exists| vec![Down { name: "eth8".into(), exists }];
        let of_several = Seen { down: eth8(true), ..up.clone() };
        let lines = losses_at(&of_several);
        assert!(lines.len() == 1 && lines[0].contains("`ip link set eth8 up`"), "{lines:?}");
        let lines = losses_at(&Seen { down: eth8(false), ..seen(true, true, &["10.0.0.2"]) });
        assert!(lines.len() == 2 && lines[0].contains("eth8 is gone") && lines[1].contains("10.0.0.1"), "{lines:?}");
        assert_eq!(losses("eth7", &of_several, &of_several).len(), 0, "once");
        let all = [eth8(true), vec![Down { name: "eth7".into(), exists: true }]].concat();
        let all = Seen { down: all, ..seen(true, false, &["10.0.0.1", "10.0.0.2"]) };
        let lines = losses_at(&all);
        assert!(lines.len() == 2 && lines.iter().all(|line| !line.contains("other interfaces")), "{lines:?}");
    }

    #[test]
    fn damaged_messages_end_the_list() {
        let mut message = [0u8; 24];
        (message[0], message[20]) = (24, 7);
        assert_eq!(indices(&message).next(), Some(7));
        assert_eq!(indices(&message[..23]).next(), None);
        assert_eq!(indices(&[]).count(), 0);
        // A length of zero does not stop the iteration from advancing.
        assert!(indices(&[0; 100]).count() <= 100 / 16);
    }

    fn ip(command: &str) {
        let status = Command::new("ip").args(command.split(' ')).status().expect("iproute2 is installed");
        assert!(status.success(), "ip {command}");
    }

    fn waits(events: &Notify<AsyncEvent>) -> bool {
        let mut poll = libc::pollfd { fd: events.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }
}
