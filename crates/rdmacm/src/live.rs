//! The connection manager in a process: devices, routes and MADs of the system.

use crate::address::is_link_local;
use crate::host::{Device, Host, is_full};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;
use weir_cm::Address;
use weir_device::{AsyncEvent, Context, DeviceInfo, Errno, MadSocket, epoll};
use weir_transport::{Instant, Mtu};
use weir_wire::mad::Mad;

/// The number of a device in `ibv_get_device_index`; null until it is known.
static NUMBER_OF: AtomicPtr<fn(&DeviceInfo) -> u32> = AtomicPtr::new(std::ptr::null_mut());

/// Says how devices are numbered.
pub fn set_device_number(number_of: &'static fn(&DeviceInfo) -> u32) {
    NUMBER_OF.store((&raw const *number_of).cast_mut(), Ordering::Release);
}

/// The MADs that this process has sent.
static SENT: AtomicU64 = AtomicU64::new(0);

/// The number of MADs that this process has sent.
pub fn sent() -> u64 {
    SENT.load(Ordering::Relaxed)
}

/// For how long a list of devices is used again. An address that is not in it makes a new one.
const VALID_FOR: Duration = Duration::from_millis(100);
/// Ports that the system chooses from, where it does not say.
const PORTS: RangeInclusive<u16> = 32768..=60999;
/// The first port that any user may bind, where the system does not say.
const FIRST_UNPRIVILEGED: u16 = 1024;
const CAP_NET_BIND_SERVICE: u32 = 10;

/// What an epoll event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A thread wants the agent to look.
    Kick,
    /// A device has an event.
    Device,
    /// A MAD for a connection.
    Process,
    /// A request to a service.
    Service(u64),
    /// A file, by its number, is closed.
    File(u64),
}

impl Token {
    pub fn number(self) -> u64 {
        match self {
            Token::Kick => 0,
            Token::Device => 4,
            Token::Process => 1,
            Token::Service(service) => service << 2 | 2,
            Token::File(file) => file << 2 | 3,
        }
    }

    pub fn of(number: u64) -> Token {
        match number & 3 {
            0 if number == 0 => Token::Kick,
            0 => Token::Device,
            1 => Token::Process,
            2 => Token::Service(number >> 2),
            _ => Token::File(number >> 2),
        }
    }
}

/// The system.
pub struct LiveHost {
    epoll: Arc<OwnedFd>,
    own: MadSocket,
    services: HashMap<u64, MadSocket>,
    contexts: HashMap<String, Arc<Context>>,
    /// Devices that failed when they had to send. Their contexts are closed, and report nothing any more.
    failed: Vec<String>,
    devices: Vec<DeviceInfo>,
    listed: Option<Instant>,
    /// How long all devices of this process take for an ACK.
    ack_delay: u8,
    ports: RangeInclusive<u16>,
    first_unprivileged: u16,
}

impl LiveHost {
    /// With the socket of this process's number.
    pub fn new(epoll: Arc<OwnedFd>, own: MadSocket) -> LiveHost {
        LiveHost {
            epoll,
            own,
            services: HashMap::new(),
            contexts: HashMap::new(),
            failed: Vec::new(),
            devices: Vec::new(),
            listed: None,
            ack_delay: weir_device::device_attributes().local_ca_ack_delay,
            ports: port_range().unwrap_or(PORTS),
            first_unprivileged: setting("ip_unprivileged_port_start")
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(FIRST_UNPRIVILEGED),
        }
    }

    fn find(&self, fits: &dyn Fn(&DeviceInfo) -> bool) -> Option<DeviceInfo> {
        self.devices.iter().find(|device| fits(device)).cloned()
    }

    /// A device of the list, which is made again if it is old; if it has no such device, only with `again`. Errors:
    /// EMFILE, ENFILE.
    fn device(&mut self, fits: &dyn Fn(&DeviceInfo) -> bool, again: bool) -> Result<Option<DeviceInfo>, Errno> {
        let now = weir_device::now();
        let fresh = self.listed.is_some_and(|listed| now - listed < VALID_FOR);
        let known = self.find(fits);
        if fresh && (known.is_some() || !again) {
            return Ok(known);
        }
        match weir_device::devices() {
            Ok(devices) => (self.devices, self.listed) = (devices, Some(now)),
            Err(error) => {
                tracing::warn!("the devices cannot be listed: errno {}", error.0);
                if known.is_none() && is_full(error) {
                    return Err(error);
                }
            }
        }
        Ok(self.find(fits))
    }

    fn lookup(&mut self, address: IpAddr, scope: u32, again: bool) -> Result<Option<(Device, u8)>, Errno> {
        let at = |device: &DeviceInfo| gid_index(&device.gids, address);
        let is_of = |device: &DeviceInfo| device.members().iter().any(|(_, index)| *index == scope);
        let fits = |device: &DeviceInfo| (scope == 0 || is_of(device)) && at(device).is_some();
        let Some(device) = self.device(&fits, again)? else { return Ok(None) };
        let Some(gid_index) = at(&device) else { return Ok(None) };
        // SAFETY: null, or a reference that is valid for ever.
        let number_of = unsafe { NUMBER_OF.load(Ordering::Acquire).as_ref() };
        let index = number_of.map_or(0, |number_of| number_of(&device));
        let mtu = match device.mtu() {
            Mtu::M256 => 1,
            Mtu::M512 => 2,
            Mtu::M1024 => 3,
            Mtu::M2048 => 4,
            Mtu::M4096 => 5,
        };
        let ack_delay = self.ack_delay;
        let found = Device { guid: device.guid, index, ifindex: device.ifindex, mtu, ack_delay, name: device.name };
        Ok(Some((found, gid_index as u8)))
    }

    fn context(&mut self, name: &str) -> Result<Arc<Context>, Errno> {
        if let Some(context) = self.contexts.get(name) {
            return Ok(context.clone());
        }
        let context = Context::open(name)?;
        context.expect_mads();
        let events = context.async_fd();
        // SAFETY: a flag of a descriptor of this process, which no other part of it reads.
        unsafe { libc::fcntl(events, libc::F_SETFL, libc::O_NONBLOCK) };
        epoll::add(&self.epoll, events, libc::EPOLLIN, Token::Device.number())?;
        self.contexts.insert(name.into(), context.clone());
        Ok(context)
    }

    fn drop_context(&mut self, name: &str) {
        if let Some(context) = self.contexts.remove(name) {
            epoll::remove(&self.epoll, context.async_fd());
        }
    }
}

impl Host for LiveHost {
    fn device_of(&mut self, address: IpAddr, scope: u32) -> Result<Option<(Device, u8)>, Errno> {
        self.lookup(address, scope, true)
    }

    fn own_address(&mut self, ipv4: bool) -> Result<Option<IpAddr>, Errno> {
        let usable = |device: &DeviceInfo| {
            let gids = device.gids.iter().flatten().copied();
            gids.into_iter().find(|gid| gid.is_ipv4() == ipv4 && !crate::address::is_link_local(*gid))
        };
        let device = self.device(&|device| usable(device).is_some(), true)?;
        Ok(device.and_then(|device| usable(&device)))
    }

    fn source_for(&mut self, destination: SocketAddr, from: Option<SocketAddr>) -> Result<SocketAddr, Errno> {
        use socket2::{Domain, Socket, Type};
        if !weir_device::permits(destination.ip()) {
            return Err(Errno(libc::EACCES));
        }
        // The port does not matter: nothing is sent.
        const ANY_PORT: u16 = 9;
        let socket = Socket::new(Domain::for_address(destination), Type::DGRAM, None)?;
        if let Some(mut from) = from {
            from.set_port(0);
            socket.bind(&from.into())?;
        }
        let mut to = destination;
        to.set_port(ANY_PORT);
        // A route to a broadcast address is none here.
        socket.connect(&to.into())?;
        let source = socket.local_addr()?.as_socket().ok_or(Errno(libc::ENETUNREACH))?;
        Ok(match (source, destination) {
            (SocketAddr::V6(mut source), SocketAddr::V6(to)) if source.ip().is_unicast_link_local() => {
                if source.scope_id() == 0 {
                    source.set_scope_id(to.scope_id());
                }
                source.into()
            }
            (source, _) => source,
        })
    }

    fn use_device(&mut self, name: Option<&str>) -> Result<(), Errno> {
        let name = match name {
            Some(name) => name.to_owned(),
            // Any adapter receives for all devices, and one that is open already is preferred.
            None if !self.contexts.is_empty() => return Ok(()),
            None => self.device(&|_| true, true)?.ok_or(Errno(libc::ENODEV))?.name,
        };
        self.context(&name).map(drop)
    }

    fn send(&mut self, to: &Address, mad: &Mad) {
        SENT.fetch_add(1, Ordering::Relaxed);
        let scope = if crate::address::is_link_local(to.local) { to.device } else { 0 };
        // Many may be sent by a device that is gone: no new list for each.
        let Ok(Some((device, _))) = self.lookup(to.local, scope, false) else { return };
        for _ in 0..2 {
            let Ok(context) = self.context(&device.name) else { return };
            let psn = self.random() & 0xff_ffff;
            match context.send_mad(to.local, to.remote, psn, mad) {
                // The adapter has failed, and all QPs with it: the device may open anew.
                Err(Errno(libc::EIO)) => {
                    self.drop_context(&device.name);
                    self.failed.push(device.name.clone());
                }
                _ => return,
            };
        }
    }

    fn take_packets(&mut self, device: &str) {
        if let Some(context) = self.contexts.get(device) {
            context.take_packets();
        }
    }

    fn take(&mut self, service: Option<u64>) -> Vec<(Address, Mad)> {
        let mut taken = Vec::new();
        let socket = match service {
            None => Some(&mut self.own),
            Some(service) => self.services.get_mut(&service),
        };
        if let Some(socket) = socket {
            socket.take(|mad| taken.push((mad.from, mad.to, mad.ifindex, *mad.bytes)));
        }
        let mut addressed = Vec::with_capacity(taken.len());
        for (remote, local, ifindex, mad) in taken {
            // Packets to an own address come by the loopback interface.
            let scope = if crate::address::is_link_local(local) { ifindex } else { 0 };
            if let Ok(Some((device, _))) = self.device_of(local, scope) {
                addressed.push((Address { local, remote, device: device.ifindex }, mad));
            }
        }
        addressed
    }

    fn resume(&mut self, now: Instant) -> Option<Instant> {
        let mut next = None;
        for socket in self.services.values_mut().chain([&mut self.own]).filter(|socket| socket.resumes().is_some()) {
            socket.resume(now);
            next = next.into_iter().chain(socket.resumes()).min();
        }
        next
    }

    fn claim(&mut self, service: u64) -> Result<(), Errno> {
        let socket = MadSocket::of_service(service, &self.epoll, Token::Service(service).number())?;
        self.services.insert(service, socket);
        Ok(())
    }

    fn open(&mut self, service: u64) -> Result<(), Errno> {
        self.services.get_mut(&service).ok_or(Errno(libc::EINVAL))?.open()
    }

    fn release(&mut self, service: u64) {
        self.services.remove(&service);
    }

    fn settle(&mut self) {
        self.contexts.values().for_each(|context| context.settle());
    }

    fn removed(&mut self) -> Vec<String> {
        let is_gone = |context: &Context| {
            // All of them are taken, so that the descriptor is not readable any more.
            std::iter::from_fn(|| context.get_async_event().ok())
                .filter(|event| *event == AsyncEvent::DeviceFatal)
                .count()
                > 0
        };
        let gone: Vec<String> =
            self.contexts.iter().filter(|(_, context)| is_gone(context)).map(|(name, _)| name.clone()).collect();
        gone.iter().for_each(|name| self.drop_context(name));
        std::mem::take(&mut self.failed).into_iter().chain(gone).collect()
    }

    fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    fn lives(&mut self, route: &Address, process: u32) -> Option<bool> {
        let other = route.remote != route.local;
        // Many links have the same link-local addresses.
        if other && (is_link_local(route.remote) || !matches!(self.lookup(route.remote, 0, false), Ok(Some(_)))) {
            return None;
        }
        Some(MadSocket::is_of_process(process))
    }

    fn rest(&mut self) {
        let names: Vec<String> = self.contexts.keys().cloned().collect();
        names.iter().for_each(|name| self.drop_context(name));
    }

    fn ports(&self) -> RangeInclusive<u16> {
        self.ports.clone()
    }

    fn may_bind(&self, port: u16) -> bool {
        port >= self.first_unprivileged || may_bind_any()
    }

    fn log(&mut self, why: fmt::Arguments<'_>) {
        weir_device::refused(0, why);
    }

    fn random(&mut self) -> u32 {
        getrandom::u32().unwrap_or_else(|_| weir_device::now().0 as u32)
    }
}

fn setting(name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()
}

fn port_range() -> Option<RangeInclusive<u16>> {
    let text = setting("ip_local_port_range")?;
    let mut numbers = text.split_whitespace().map(|number| number.parse::<u16>());
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (first <= last).then_some(first..=last)
}

/// Returns whether the thread has the capability to bind any port.
fn may_bind_any() -> bool {
    let effective = || -> io::Result<Option<u64>> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Ok(line.and_then(|number| u64::from_str_radix(number.trim(), 16).ok()))
    };
    effective().ok().flatten().is_some_and(|bits| bits & 1 << CAP_NET_BIND_SERVICE != 0)
}

/// The index of an address in a GID table: the last one. As long as an interface has no link-local address, which takes
/// a second or two after it is up, index 0 stands for the address at index 1.
fn gid_index(gids: &[Option<IpAddr>], address: IpAddr) -> Option<usize> {
    gids.iter().rposition(|gid| *gid == Some(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_an_address_stays_when_the_interface_gets_its_link_local_address() {
        let [address, local]: [IpAddr; 2] = ["10.0.0.1", "fe80::1"].map(|address| address.parse().unwrap());
        for first in [address, local] {
            assert_eq!(gid_index(&[Some(first), Some(address), None], address), Some(1));
        }
        assert_eq!(gid_index(&[Some(local), None], local), Some(0));
        assert_eq!(gid_index(&[Some(local), None], address), None);
    }

    #[test]
    fn tokens_survive_epoll() {
        for token in [Token::Kick, Token::Device, Token::Process, Token::Service(0x0106_1d2f), Token::File(77)] {
            assert_eq!(Token::of(token.number()), token);
        }
    }

    /// A process that ends may have thousands of them.
    #[test]
    fn mads_of_a_device_that_is_gone_make_no_new_list() {
        let epoll = Arc::new(epoll::create().unwrap());
        let (_, own) = MadSocket::of_process(&epoll, Token::Process.number()).unwrap();
        let mut host = LiveHost::new(epoll, own);
        let (gone, fresh) = (IpAddr::from([192, 0, 2, 1]), Some(Instant(u64::MAX)));
        host.listed = fresh;
        host.send(&Address { local: gone, remote: gone, device: 0 }, &[0; 256]);
        assert_eq!(host.listed, fresh);
        assert_eq!(host.device_of(gone, 0), Ok(None));
        assert_ne!(host.listed, fresh, "a command finds an address that is new");
    }
}
