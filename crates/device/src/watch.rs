//! Watches the interface behind a device: port and GID events come from what the kernel tells of it.

use crate::interfaces::{self, DeviceInfo};
use crate::notify::Notify;
use crate::{AsyncEvent, PortEvent};
use nix::net::if_::if_nametoindex;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

/// A device's interface as it was last seen, and who wants to hear of it.
pub struct Watch {
    name: String,
    ifname: String,
    ifindex: u32,
    /// None where a sandbox forbids it: the port's state is right when asked for, but there are no events.
    socket: Option<OwnedFd>,
    seen: Mutex<Seen>,
    listeners: Mutex<Vec<Weak<Notify<AsyncEvent>>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    exists: bool,
    up: bool,
    gids: Vec<Option<IpAddr>>,
}

impl Watch {
    /// Watches the interface of `device` from now on.
    pub fn new(device: &DeviceInfo) -> Watch {
        let watch = Watch {
            name: device.name.clone(),
            ifname: device.ifname.clone(),
            ifindex: device.ifindex,
            socket: subscribe(),
            seen: Mutex::new(Seen { exists: true, up: device.up, gids: device.gids.clone() }),
            listeners: Mutex::default(),
        };
        // It may have changed before the kernel knew that we listen.
        let now = watch.state();
        *watch.seen.lock().expect("no panic under this lock") = now;
        watch
    }

    /// Readable when something has changed.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Events go to `events` too, as long as it lives.
    pub fn tell(&self, events: &Arc<Notify<AsyncEvent>>) {
        let mut listeners = self.listeners.lock().expect("no panic under this lock");
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(events));
    }

    /// Whether the interface has an address, as far as is known.
    pub fn has(&self, address: IpAddr) -> bool {
        self.seen.lock().expect("no panic under this lock").gids.contains(&Some(address))
    }

    /// Takes what the kernel said, and tells what has become of it.
    pub fn look(&self) {
        if !self.concerns_us() {
            return;
        }
        let now = self.state();
        let before = std::mem::replace(&mut *self.seen.lock().expect("no panic under this lock"), now.clone());
        let listeners = self.listeners.lock().expect("no panic under this lock");
        for event in changes(&before, &now) {
            listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.push(event));
        }
    }

    fn state(&self) -> Seen {
        // Another interface may have got the name.
        let exists = if_nametoindex(self.ifname.as_str()).is_ok_and(|index| index == self.ifindex);
        match interfaces::device(&self.name).filter(|_| exists) {
            Some(device) => Seen { exists, up: device.up, gids: device.gids },
            // Without an address there is nothing to send from.
            None => Seen { exists, up: false, gids: Vec::new() },
        }
    }

    /// Reads all that waits. Whether some of it was of our interface, or was lost.
    fn concerns_us(&self) -> bool {
        let Some(socket) = self.descriptor() else { return false };
        let mut ours = false;
        let mut bytes = [0u8; 8192];
        loop {
            // SAFETY: fills an array on the stack.
            let count = unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match usize::try_from(count) {
                Ok(0) => return ours,
                Ok(count) => ours |= indices(&bytes[..count]).any(|index| index == self.ifindex),
                Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                    Some(libc::ENOBUFS) => ours = true,
                    Some(libc::EINTR) => {}
                    _ => return ours,
                },
            }
        }
    }
}

fn subscribe() -> Option<OwnedFd> {
    const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
    // SAFETY: a new descriptor, owned from here on; zero is a valid address, of which its length is given.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        if socket < 0 {
            return None;
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let mut address: libc::sockaddr_nl = std::mem::zeroed();
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = GROUPS as u32;
        let length = size_of_val(&address) as libc::socklen_t;
        let bound = libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length);
        (bound == 0).then_some(socket)
    }
}

/// The interfaces that netlink messages are about: `ifinfomsg` and `ifaddrmsg` have the index at the same place.
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
    fn events_follow_the_interface() {
        // A network namespace of this thread alone, which ends with it.
        std::thread::spawn(|| {
            if nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_err() {
                eprintln!("skipped: a network namespace needs root");
                return;
            }
            ip("link set lo up");
            let device = interfaces::device("weir_lo").expect("it is up");
            let watch = Watch::new(&device);
            let events = Arc::new(Notify::new().unwrap());
            watch.tell(&events);
            let told = |command: &str| {
                ip(command);
                watch.look();
                std::iter::from_fn(|| waits(&events).then(|| events.take().unwrap())).collect::<Vec<_>>()
            };
            let port = AsyncEvent::Port;
            assert_eq!(told("addr add 10.9.8.7/32 dev lo"), [port(PortEvent::GidChange)]);
            assert_eq!(told("link set lo mtu 9000"), []);
            let down = told("link set lo down");
            assert_eq!(down[0], port(PortEvent::Error), "{down:?}");
            assert_eq!(told("link set lo up").last(), Some(&port(PortEvent::Active)));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_interface_that_is_gone_takes_the_device_along() {
        let up = Seen { exists: true, up: true, gids: vec![None] };
        let gone = Seen { exists: false, up: false, gids: Vec::new() };
        assert_eq!(changes(&up, &gone), [AsyncEvent::Port(PortEvent::Error), AsyncEvent::DeviceFatal]);
        assert_eq!(changes(&gone, &gone), []);
    }

    #[test]
    fn damaged_messages_end_the_list() {
        let mut message = [0u8; 24];
        (message[0], message[20]) = (24, 7);
        assert_eq!(indices(&message).next(), Some(7));
        assert_eq!(indices(&message[..23]).next(), None);
        assert_eq!(indices(&[]).count(), 0);
        // A length of zero does not keep it in place.
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
