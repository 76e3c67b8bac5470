//! Devices are the interfaces of this network namespace: names, addresses, MTU.

use crate::Errno;
use crate::config::{self, Config};
pub use crate::os::device_info::DeviceInfo;
use crate::os::device_info::{HEADERS, down};
use crate::os::gid_table::{self, Owner};
use crate::os::joined;
use crate::os::netlink::{Link, Netlink};
use std::net::IpAddr;
use weir_link::DisabledFeatures;
use weir_links::Interfaces;

/// The value of `WEIR_INTERFACE` that shows all devices.
pub const ALL_INTERFACES: &str = "all";

/// The devices that programs see: those of this network namespace, the first one first that most programs take.
/// With `WEIR_LINKS` it is the one that joins several interfaces.
/// `weir_lo` is there only if no other device is up: UCX and others connect every device of a host with those of
/// another host, and the loopback interfaces of two hosts are not connected. `WEIR_INTERFACE` selects a single
/// device, or all. Error: the interfaces cannot be queried, for example EMFILE.
pub fn devices() -> Result<Vec<DeviceInfo>, Errno> {
    let (wanted, joins) = Config::shown_from_env();
    let mut devices = shown(all(&mut Netlink::open()?)?, wanted.as_deref(), joins);
    let shared = shared_notes();
    for device in &mut devices {
        device.notes.splice(..0, shared.iter().cloned());
    }
    Ok(devices)
}

/// `joins`: interfaces are used as one.
fn shown(mut devices: Vec<DeviceInfo>, wanted: Option<&str>, joins: bool) -> Vec<DeviceInfo> {
    match wanted {
        Some(ALL_INTERFACES) => {}
        Some(name) => {
            devices.retain(|device| name == device.ifname && !device.is_joined() || name == device.name);
        }
        None if joins => devices.retain(DeviceInfo::is_joined),
        None => {
            let other_is_up = devices.iter().any(|device| device.up && !device.loopback);
            devices.retain(|device| !(other_is_up && device.loopback));
        }
    }
    devices
}

/// The devices of this network namespace that programs do not see, because `WEIR_INTERFACE` does not name them.
/// Error: as [`devices`].
pub fn hidden_devices() -> Result<Vec<DeviceInfo>, Errno> {
    let seen = devices()?;
    let mut others = all(&mut Netlink::open()?)?;
    others.retain(|device| !seen.iter().any(|known| known.name == device.name));
    Ok(others)
}

/// Why interfaces of this network namespace are not devices, and what to do: for `lo`, and if there is no device at
/// all, for all interfaces with a MAC address. Error: as [`devices`].
pub fn unusable_interfaces() -> Result<Vec<String>, Errno> {
    let mut links = Netlink::open()?.links()?;
    let any = links.iter().any(|link| !link.addresses.is_empty());
    links.retain(|link| link.addresses.is_empty() && (is(link, libc::IFF_LOOPBACK) || (!any && link.mac != [0; 6])));
    Ok(links.iter().map(without_address).collect())
}

fn without_address(link: &Link) -> String {
    let name = &link.name;
    if is(link, libc::IFF_UP) {
        format!("interface {name} has no address: run `ip addr add ADDRESS/PREFIX dev {name}`")
    } else {
        format!("interface {name} is down and has no address: `ip link set {name} up`")
    }
}

/// The device of this name in its current state, queried over an open descriptor. Error: the interfaces cannot be
/// queried; the device may still exist.
pub fn device(netlink: &mut Netlink, name: &str) -> Result<Option<DeviceInfo>, Errno> {
    Ok(all(netlink)?.into_iter().find(|device| device.name == name))
}

/// Kinds of interfaces that are memory, and for which the kernel's driver gives a constant as their speed: 10 Gbit/s of
/// veth, 10 Mbit/s of tun and tap.
const INVENTED_SPEED: [&str; 2] = ["veth", "tun"];

/// Whether an address is of this host. No, if the interfaces cannot be queried.
pub fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || own_addresses().contains(&address)
}

/// The addresses of this host; none if the interfaces cannot be queried.
pub fn own_addresses() -> Vec<IpAddr> {
    let links = || Netlink::open()?.links();
    links().into_iter().flatten().flat_map(|link| link.addresses).collect()
}

/// All interfaces that have an address.
pub fn all(netlink: &mut Netlink) -> Result<Vec<DeviceInfo>, Errno> {
    // Ignores an invalid name in `WEIR_WITHOUT`: opening a device reports it.
    let disabled = config::disabled_features().unwrap_or_default();
    let mut links = netlink.links()?;
    for link in &mut links {
        link.addresses.retain(|address| address.is_ipv4() || !disabled.contains(DisabledFeatures::IPV6));
    }
    links.retain(|link| !link.addresses.is_empty());
    let namespace = netlink.namespace();
    let mut devices: Vec<DeviceInfo> = links.into_iter().map(|link| DeviceInfo::of(namespace, link)).collect();
    devices.sort_by_key(|device| (device.loopback, !device.up, device.ifindex));
    // Opening a device reports a list that is wrong.
    if let Ok(Some(spec)) = config::links() {
        let joined = joined::join(&spec, &devices, namespace);
        devices.splice(..0, joined);
    }
    Ok(devices)
}

fn is(link: &Link, flag: libc::c_int) -> bool {
    link.flags & flag as u32 != 0
}

/// Whether an interface passes packets: it is up and has a carrier, like the kernel's Soft-RoCE. Not IFF_RUNNING: the kernel
/// sets that one up to a second later, and a program that starts in between would take another device.
pub fn is_up(link: &Link) -> bool {
    is(link, libc::IFF_UP) && is(link, libc::IFF_LOWER_UP)
}

impl DeviceInfo {
    fn of(namespace: u64, link: Link) -> DeviceInfo {
        let (up, loopback) = (is_up(&link), is(&link, libc::IFF_LOOPBACK));
        let Link { index, name: ifname, mtu, mac, kind, addresses, .. } = link;
        let mut notes = vec![];
        if !up {
            notes.push(down(&ifname));
        }
        let needed = 4096 + HEADERS as u32;
        if mtu < needed {
            notes.push(format!("path MTU 4096 needs an interface MTU of {needed} or more; {ifname} has {mtu}"));
        }
        DeviceInfo {
            name: format!("weir_{ifname}"),
            guid: guid(mac, index),
            mac: (mac != [0; 6]).then_some(mac),
            ifindex: index,
            if_mtu: mtu,
            up,
            loopback,
            has_speed: !INVENTED_SPEED.contains(&kind.as_str()),
            gids: gid_table::update(Owner { namespace, ifindex: index, mac }, &addresses),
            notes,
            ifname,
            links: Interfaces::default(),
        }
    }
}

/// EUI-64 of a MAC address as in IPv6; of the interface index if there is no MAC.
fn guid(mac: [u8; 6], ifindex: u32) -> u64 {
    if mac == [0; 6] {
        return 0x0200_0000_0000_0000 | u64::from(ifindex);
    }
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// MTU of an interface of this network namespace, bytes. `None` if it cannot be queried or does not exist.
pub(crate) fn interface_mtu(name: &str) -> Option<u32> {
    let links = Netlink::open().ok()?.links().ok()?;
    links.into_iter().find(|link| link.name == name).map(|link| link.mtu)
}

/// Notes that apply to every device of this machine and user.
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
    use weir_transport::Mtu;

    #[test]
    fn loopback_comes_last_and_is_up() {
        let devices = all(&mut Netlink::open().unwrap()).unwrap();
        let last = devices.last().expect("there is a loopback interface");
        assert_eq!((last.name.as_str(), last.up, last.mtu()), ("weir_lo", true, Mtu::M4096));
        assert_eq!(guid([2, 0, 0, 0, 0, 1], 3), 0x0000_00ff_fe00_0001);
        assert_ne!(guid([0; 6], 1), guid([0; 6], 2));
    }

    #[test]
    fn loopback_is_shown_alone_or_on_request() {
        let lo = all(&mut Netlink::open().unwrap()).unwrap().pop().expect("there is a loopback interface");
        let other = |up| DeviceInfo { name: "weir_t0".into(), ifname: "t0".into(), loopback: false, up, ..lo.clone() };
        let names = |devices: Vec<DeviceInfo>, wanted| {
            shown(devices, wanted, false).into_iter().map(|device| device.name).collect::<Vec<_>>()
        };
        assert_eq!(names(vec![lo.clone()], None), ["weir_lo"]);
        assert_eq!(names(vec![other(true), lo.clone()], None), ["weir_t0"]);
        assert_eq!(names(vec![other(false), lo.clone()], None), ["weir_t0", "weir_lo"]);
        assert_eq!(names(vec![other(true), lo.clone()], Some("lo")), ["weir_lo"]);
        assert_eq!(names(vec![other(true), lo.clone()], Some("weir_t0")), ["weir_t0"]);
        assert_eq!(names(vec![other(true), lo.clone()], Some(ALL_INTERFACES)), ["weir_t0", "weir_lo"]);
    }

    #[test]
    #[ignore = "needs root"]
    fn an_interface_keeps_its_mtu_and_gids_and_is_reported_when_it_is_down() {
        // A network namespace of this thread only; it ends with the thread.
        std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("the right to make a network namespace");
            assert_eq!(devices().unwrap().len(), 0);
            assert_eq!(
                unusable_interfaces().unwrap(),
                ["interface lo is down and has no address: `ip link set lo up`"]
            );
            let ip = |command: &str| {
                let status = std::process::Command::new("ip").args(command.split(' ')).status();
                assert!(status.expect("iproute2 is installed").success(), "{command}");
            };
            let now = |name| device(&mut Netlink::open().unwrap(), name).unwrap().expect("it has an address");
            let lo_after = |command: &str| {
                ip(command);
                now("weir_lo")
            };
            let up = lo_after("link set lo up");
            assert_eq!((up.up, unusable_interfaces().unwrap().len()), (true, 0));
            let down = lo_after("link set lo down");
            assert_eq!((down.up, down.if_mtu, down.mtu()), (false, up.if_mtu, Mtu::M4096));
            assert!(down.notes[0].contains("ip link set lo up"), "{:?}", down.notes);
            // A link-local address that comes late moves no other.
            for command in ["link add near type veth peer name far", "link set near addrgenmode none up"] {
                ip(command);
            }
            ip("addr add 10.9.8.4/24 dev near");
            let early = now("weir_near").gids;
            ip("addr add fe80::4/64 dev near nodad");
            assert_eq!(now("weir_near").gids[..2], early[..2]);
            assert_eq!(now("weir_near").gids[2], Some("fe80::4".parse().unwrap()));
        })
        .join()
        .unwrap();
    }
}
