//! The device that joins several interfaces (`WEIR_LINKS`).

use crate::os::device_info::{self, DeviceInfo, HEADERS};
use crate::os::gid_table::{self, Owner};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use weir_links::{Interfaces, LinksSpec, is_link_local};
use weir_wire::edge;

/// The name of the device.
const NAME: &str = "weir_links0";
/// No interface has this index: the device has a GID table of its own.
const NO_INTERFACE: u32 = u32::MAX;

/// The device that joins the interfaces of a list; `None`, and a line in the log, if it names one that is missing.
/// `devices`: those of each interface.
pub fn join(spec: &LinksSpec, devices: &[DeviceInfo], namespace: u64) -> Option<DeviceInfo> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let found = Interfaces::find(spec).inspect_err(|error| {
        if !TOLD.swap(true, Ordering::Relaxed) {
            tracing::error!("WEIR_LINKS={spec}: {error}");
        }
    });
    of(found.ok()?, devices, namespace)
}

fn of(links: Interfaces, devices: &[DeviceInfo], namespace: u64) -> Option<DeviceInfo> {
    let member = |name: &str| devices.iter().find(|device| device.ifname == name);
    let members: Vec<&DeviceInfo> = links.all.iter().filter_map(|interface| member(&interface.name)).collect();
    let first = *members.first()?;
    // Addresses of one interface only are those of the first.
    let of_first = |address: &IpAddr| first.gids.contains(&Some(*address));
    let all: Vec<IpAddr> = members.iter().flat_map(|member| member.gids.iter().flatten().copied()).collect();
    let mut addresses: Vec<IpAddr> = vec![];
    for address in all {
        if !addresses.contains(&address) && (!is_link_local(address) || of_first(&address)) {
            addresses.push(address);
        }
    }
    let mtu = members.iter().map(|member| member.if_mtu).min().unwrap_or(0);
    let needed = 4096 + (HEADERS + edge::MAX_HEADER_LEN) as u32;
    let mut notes = vec![];
    if mtu < needed {
        notes.push(format!("path MTU 4096 needs interface MTUs of {needed} or more; the smallest is {mtu}"));
    }
    let down = members.iter().filter(|member| !member.up);
    notes.extend(down.map(|member| device_info::down(&member.ifname)));
    Some(DeviceInfo {
        name: NAME.into(),
        ifname: first.ifname.clone(),
        ifindex: first.ifindex,
        guid: first.guid ^ 1 << 58,
        mac: first.mac,
        if_mtu: mtu.saturating_sub(edge::MAX_HEADER_LEN as u32),
        up: members.iter().any(|member| member.up),
        loopback: members.iter().all(|member| member.loopback),
        has_speed: members.iter().all(|member| member.has_speed),
        gids: gid_table::update(
            Owner { namespace, ifindex: NO_INTERFACE, mac: first.mac.unwrap_or_default() },
            &addresses,
        ),
        notes,
        links,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_links::Interface;

    fn device(n: u8, mtu: u32, up: bool) -> (Interface, DeviceInfo) {
        let address = IpAddr::from([10, 77, n, 1]);
        let name = format!("eth{n}");
        let interface = Interface {
            name: name.clone(),
            index: u32::from(n),
            mac: None,
            is_up: up,
            mtu,
            speed: 0,
            addresses: vec![(address, 24)],
        };
        let link_local = format!("fe80::{n}").parse().unwrap();
        let info = DeviceInfo {
            name: format!("weir_{name}"),
            ifname: name,
            ifindex: u32::from(n),
            guid: u64::from(n),
            mac: Some([2, 0, 0, 0, 0, n]),
            if_mtu: mtu,
            up,
            loopback: false,
            has_speed: false,
            gids: vec![Some(link_local), Some(address), None],
            notes: vec![],
            links: Interfaces::default(),
        };
        (interface, info)
    }

    #[test]
    fn a_joined_device_has_the_addresses_of_all_its_interfaces() {
        let (interfaces, devices): (Vec<_>, Vec<_>) =
            [device(7, 9000, false), device(8, 1500, true)].into_iter().unzip();
        let joined = of(Interfaces { all: interfaces, lists_all: false }, &devices, 1).unwrap();
        assert_eq!((joined.name.as_str(), joined.ifname.as_str(), joined.up), ("weir_links0", "eth7", true));
        assert_eq!((joined.if_mtu, joined.mtu().bytes()), (1469, 1024));
        let gids: Vec<String> = joined.gids.iter().flatten().map(IpAddr::to_string).collect();
        assert_eq!(gids, ["fe80::7", "10.77.7.1", "10.77.8.1"]);
        assert!(joined.notes[0].contains("smallest is 1500") && joined.notes[1].contains("`ip link set eth7 up`"));
    }
}
