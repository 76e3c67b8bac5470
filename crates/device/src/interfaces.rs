//! Devices are the interfaces of this network namespace: names, addresses, MTU.

use crate::config::Config;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};
use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use weir_transport::Mtu;

/// A device that could be opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `weir_<interface>`.
    pub name: String,
    /// The interface.
    pub ifname: String,
    /// Its index.
    pub ifindex: u32,
    /// EUI-64 made of its MAC address, or of its index where it has none.
    pub guid: u64,
    /// Its MAC address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// MTU of the interface, bytes.
    pub if_mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// GID table: index → address; `None` is an empty slot.
    pub gids: Vec<Option<IpAddr>>,
    /// What is not available here, and why, for people.
    pub notes: Vec<String>,
}

impl DeviceInfo {
    /// The largest path MTU that fits the interface: headers take up to 40 + 8 + 12 + 28 + 4 bytes (IPv6, UDP, BTH,
    /// AtomicETH, ICRC), of which 84 come with a payload.
    pub fn mtu(&self) -> Mtu {
        [Mtu::M4096, Mtu::M2048, Mtu::M1024, Mtu::M512]
            .into_iter()
            .find(|mtu| mtu.bytes() as u32 + 84 <= self.if_mtu)
            .unwrap_or(Mtu::M256)
    }

    /// Mbit/s; 0 where the interface does not tell.
    pub fn speed_mbps(&self) -> u32 {
        let path = format!("/sys/class/net/{}/speed", self.ifname);
        std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

/// The devices of this network namespace, `weir_lo` last: programs take the first. `WEIR_INTERFACE` narrows it to one.
pub fn devices() -> Vec<DeviceInfo> {
    let wanted = Config::from_env().ok().and_then(|config| config.interface);
    let mut devices = all();
    devices.retain(|device| wanted.as_ref().is_none_or(|name| *name == device.ifname || *name == device.name));
    devices
}

/// The device of an interface as it is now.
pub fn device(name: &str) -> Option<DeviceInfo> {
    all().into_iter().find(|device| device.name == name)
}

fn all() -> Vec<DeviceInfo> {
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    for address in getifaddrs().into_iter().flatten() {
        let entry = found.entry(address.interface_name.clone()).or_insert_with(Found::new);
        entry.flags |= address.flags;
        let Some(storage) = address.address else { continue };
        if let Some(v4) = storage.as_sockaddr_in() {
            entry.addresses.push(v4.ip().into());
        } else if let Some(v6) = storage.as_sockaddr_in6() {
            entry.addresses.push(v6.ip().into());
        } else if let Some(mac) = storage.as_link_addr().and_then(|link| link.addr()) {
            entry.mac = mac;
        }
    }
    let shared = shared_notes();
    let mut devices: Vec<DeviceInfo> = found
        .into_iter()
        .filter(|(_, found)| !found.addresses.is_empty())
        .map(|(ifname, found)| found.into_device(ifname, &shared))
        .collect();
    devices.sort_by_key(|device| (device.loopback, !device.up, device.ifindex));
    devices
}

struct Found {
    flags: InterfaceFlags,
    addresses: Vec<IpAddr>,
    mac: [u8; 6],
}

impl Found {
    fn new() -> Self {
        Found { flags: InterfaceFlags::empty(), addresses: Vec::new(), mac: [0; 6] }
    }

    fn into_device(self, ifname: String, shared: &[String]) -> DeviceInfo {
        let ifindex = if_nametoindex(ifname.as_str()).unwrap_or(0);
        let loopback = self.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let if_mtu = interface_mtu(&ifname).unwrap_or(1500);
        let mut notes = shared.to_vec();
        if if_mtu < 4096 + 84 {
            notes.push(format!("path MTU 4096 needs an interface MTU of 4180 or more; {ifname} has {if_mtu}"));
        }
        DeviceInfo {
            name: format!("weir_{ifname}"),
            guid: guid(self.mac, ifindex),
            mac: (self.mac != [0; 6]).then_some(self.mac),
            ifindex,
            if_mtu,
            up: self.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING),
            loopback,
            gids: gid_table(&self.addresses),
            notes,
            ifname,
        }
    }
}

/// As adapters lay it out: the link-local IPv6 address first (on loopback, `::1`), then IPv4, then other IPv6. One
/// slot stays empty at the end, and slot 0 where there is no such address, so that IPv4 is always at 1.
fn gid_table(addresses: &[IpAddr]) -> Vec<Option<IpAddr>> {
    let local = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_loopback());
    let first = addresses.iter().find(|address| local(address)).copied();
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).copied();
    let v6 = addresses.iter().filter(|address| address.is_ipv6() && Some(**address) != first).copied();
    let mut table = vec![first];
    table.extend(v4.chain(v6).map(Some));
    table.push(None);
    table
}

/// EUI-64 as IPv6 forms it of a MAC address; of the interface's index where there is no MAC.
fn guid(mac: [u8; 6], ifindex: u32) -> u64 {
    if mac == [0; 6] {
        return 0x0200_0000_0000_0000 | u64::from(ifindex);
    }
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn interface_mtu(name: &str) -> Option<u32> {
    // Any socket will do; /sys may show another network namespace than the one we are in.
    let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0")).ok()?;
    // SAFETY: zero is a valid ifreq, the name is cut to leave its terminating zero, and the ioctl fills one int.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let result = libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request);
        (result == 0).then_some(request.ifr_ifru.ifru_mtu as u32)
    }
}

/// What holds for every device of this machine and user.
fn shared_notes() -> Vec<String> {
    let mut notes = vec![];
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    if let Some(max) = number("/proc/sys/net/core/rmem_max")
        && max < 1 << 20
        && !nix::unistd::geteuid().is_root()
    {
        notes.push(format!(
            "receive buffers are limited to {} KiB, which costs throughput: net.core.rmem_max could be 4194304",
            max / 1024
        ));
    }
    if let Ok((soft, _)) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK)
        && soft != libc::RLIM_INFINITY
    {
        notes.push(format!("registered memory beyond {} KiB is not locked (ulimit -l)", soft / 1024));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_at_index_one() {
        let [a, b, c]: [IpAddr; 3] = ["10.0.0.1", "fe80::1", "2001:db8::1"].map(|text| text.parse().unwrap());
        assert_eq!(gid_table(&[c, a, b]), [Some(b), Some(a), Some(c), None]);
        assert_eq!(gid_table(&[a]), [None, Some(a), None]);
        assert_eq!(gid_table(&[c]), [None, Some(c), None]);
    }

    #[test]
    fn loopback_comes_last_and_is_up() {
        let devices = all();
        let last = devices.last().expect("there is a loopback interface");
        assert_eq!((last.name.as_str(), last.up, last.mtu()), ("weir_lo", true, Mtu::M4096));
        assert_eq!(guid([2, 0, 0, 0, 0, 1], 3), 0x0000_00ff_fe00_0001);
        assert_ne!(guid([0; 6], 1), guid([0; 6], 2));
    }
}
