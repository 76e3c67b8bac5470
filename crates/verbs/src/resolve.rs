//! `ibv_resolve_eth_l2_from_gid`: the MAC address and VLAN of a GID.

use crate::abi::*;
use crate::context;
use crate::ffi::{EINVAL, ENODATA, number};
use std::ffi::c_int;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::thread;
use std::time::Duration;
use weir_device::Errno;

type Mac = [u8; 6];
/// The VLAN ID that means no VLAN.
const NO_VLAN: u16 = 0xffff;

/// Returns 0, or -1 with errno: ENODATA if the address cannot be resolved.
///
/// # Safety
/// `context` is open, `attr` readable, `eth_mac` has 6 writable bytes, `vid` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    number(|| {
        // SAFETY: guaranteed by the caller.
        let (own, attr) = unsafe { (context::own(context), &*attr) };
        let gids = own.device.gids();
        if attr.port_num != 1 || gids.get(usize::from(attr.grh.sgid_index)).copied().flatten().is_none() {
            return Err(EINVAL);
        }
        let to = Ipv6Addr::from(attr.grh.dgid.raw).to_canonical();
        let is_ours = gids.contains(&Some(to));
        let mac = if is_ours || to.is_loopback() { own.info.mac } else { resolve(to, &own.info.ifname)? };
        // SAFETY: guaranteed by the caller.
        unsafe {
            eth_mac.cast::<Mac>().write(mac);
            if !vid.is_null() {
                *vid = vlan_of(&own.info.ifname);
            }
        }
        Ok(0)
    })
}

fn resolve(to: IpAddr, ifname: &str) -> Result<Mac, Errno> {
    if let Some(mac) = multicast(to) {
        return Ok(mac);
    }
    match to {
        IpAddr::V4(v4) => neighbour(v4, ifname),
        IpAddr::V6(v6) => link_local(v6).ok_or(ENODATA),
    }
}

/// RFC 1112 and RFC 2464.
fn multicast(to: IpAddr) -> Option<Mac> {
    to.is_multicast().then(|| match to {
        IpAddr::V4(v4) => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(v6) => {
            let o = v6.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    })
}

/// RFC 4291 appendix A: a link-local address that was derived from its MAC address.
fn link_local(v6: Ipv6Addr) -> Option<Mac> {
    let o = v6.octets();
    let made = v6.is_unicast_link_local() && o[11..13] == [0xff, 0xfe];
    made.then_some([o[8] ^ 2, o[9], o[10], o[13], o[14], o[15]])
}

/// Looks in the kernel's neighbour table, after an empty datagram to the discard port has made the kernel fill it.
fn neighbour(v4: Ipv4Addr, ifname: &str) -> Result<Mac, Errno> {
    for wait_ms in [0, 1, 5, 20, 100, 400, 1000] {
        thread::sleep(Duration::from_millis(wait_ms));
        let table = fs::read_to_string("/proc/net/arp").unwrap_or_default();
        if let Some(mac) = arp_entry(&table, v4, ifname) {
            return Ok(mac);
        }
        if wait_ms == 0 {
            let prod = UdpSocket::bind("0.0.0.0:0").and_then(|s| s.send_to(&[], (v4, 9)));
            if prod.is_err() {
                return Err(ENODATA);
            }
        }
    }
    Err(ENODATA)
}

/// Lines of `/proc/net/arp`: address, type, flags (2 = complete), MAC, mask, interface.
fn arp_entry(table: &str, v4: Ipv4Addr, ifname: &str) -> Option<Mac> {
    let wanted = v4.to_string();
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [address, _, flags, mac, _, interface] = fields[..] else { return None };
        let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
        (address == wanted && interface == ifname && flags & 2 != 0).then(|| parse_mac(mac))?
    })
}

fn parse_mac(text: &str) -> Option<Mac> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    Some(mac)
}

/// Parses the line `eth0.5 VID: 5 …` of the VLAN's file.
fn vlan_of(ifname: &str) -> u16 {
    fs::read_to_string(format!("/proc/net/vlan/{ifname}"))
        .ok()
        .and_then(|text| text.split("VID:").nth(1)?.split_whitespace().next()?.parse().ok())
        .unwrap_or(NO_VLAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_and_link_local_addresses_resolve_without_the_neighbour_table() {
        let mac = |text: &str| resolve(text.parse().unwrap(), "none0");
        assert_eq!(mac("224.129.2.3"), Ok([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(mac("ff02::1:ff00:1234"), Ok([0x33, 0x33, 0xff, 0, 0x12, 0x34]));
        assert_eq!(mac("fe80::5054:ff:fe12:3456"), Ok([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        assert_eq!(mac("fe80::1"), Err(ENODATA));
    }

    #[test]
    fn the_neighbour_table_is_searched_by_interface() {
        let table = "IP address HW type Flags HW address Mask Device\n\
            10.0.0.2 0x1 0x2 02:00:00:00:00:01 * eth1\n\
            10.0.0.2 0x1 0x2 02:00:00:00:00:02 * eth0\n\
            10.0.0.3 0x1 0x0 00:00:00:00:00:00 * eth0\n";
        let entry = |last, ifname| arp_entry(table, Ipv4Addr::new(10, 0, 0, last), ifname);
        assert_eq!(entry(2, "eth0"), Some([2, 0, 0, 0, 0, 2]));
        assert_eq!(entry(3, "eth0"), None);
        assert_eq!(entry(2, "eth2"), None);
    }
}
