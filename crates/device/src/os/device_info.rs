//! What is known of a device: names, addresses, MTU.

use crate::Errno;
use crate::os::gid_table::GidTable;
use std::net::IpAddr;
use weir_links::{Interface, Interfaces};
use weir_transport::Mtu;
use weir_wire::{ICRC_LEN, frame};

/// A device that can be opened.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `weir_<interface>`.
    pub name: String,
    /// Name of the interface.
    pub ifname: String,
    /// Index of the interface.
    pub ifindex: u32,
    /// EUI-64 of its MAC address, or of its interface index if it has no MAC.
    pub guid: u64,
    /// Its MAC address, if there is one.
    pub mac: Option<[u8; 6]>,
    /// MTU of the interface, bytes.
    pub if_mtu: u32,
    /// Whether the interface is up.
    pub up: bool,
    /// Whether this is the loopback interface.
    pub loopback: bool,
    /// Whether the speed that the kernel gives means anything.
    pub has_speed: bool,
    /// GID table: index → address; `None` is an empty entry.
    pub gids: GidTable,
    /// Text for users: what is not available on this device, and why.
    pub notes: Vec<String>,
    /// The interfaces that the device joins, of which `ifname` is the first; empty for a device of one interface.
    pub links: Interfaces,
}

impl DeviceInfo {
    /// The largest path MTU that fits the interface.
    pub fn mtu(&self) -> Mtu {
        path_mtu(self.if_mtu)
    }

    /// Speed in Mbit/s; 0 if it is not known. Error: there is no free descriptor for the query.
    pub fn speed_mbps(&self) -> Result<u32, Errno> {
        if !self.has_speed {
            return Ok(0);
        }
        match &self.links.all[..] {
            [] => speed_mbps(&self.ifname),
            members => members.iter().map(|member| speed_mbps(&member.name)).sum(),
        }
    }

    /// Whether the device has several interfaces.
    pub fn is_joined(&self) -> bool {
        !self.links.all.is_empty()
    }

    /// Names and indices of its interfaces.
    pub fn members(&self) -> Vec<(String, u32)> {
        match &self.links.all[..] {
            [] => vec![(self.ifname.clone(), self.ifindex)],
            members => members.iter().map(|member| (member.name.clone(), member.index)).collect(),
        }
    }

    /// The name of the interface that has an address.
    pub fn interface_of(&self, address: IpAddr) -> &str {
        let has = |member: &&Interface| member.addresses.iter().any(|(own, _)| *own == address);
        self.links.all.iter().find(has).map_or(&self.ifname, |member| &member.name)
    }
}

/// Bytes that a packet adds to its payload after the UDP header, at most: the header of a frame, which is longer than
/// the headers of a RoCE packet with payload, and the ICRC.
pub(crate) const RDMA_HEADERS: usize = frame::HEADER_LEN + ICRC_LEN;
/// Bytes of headers around a payload, at most: IPv6, UDP, and what the packet adds.
pub(crate) const HEADERS: usize = 40 + 8 + RDMA_HEADERS;

/// Speed of an interface in Mbit/s; 0 if it is not known. Error: there is no free descriptor for the query.
fn speed_mbps(ifname: &str) -> Result<u32, Errno> {
    match std::fs::read_to_string(format!("/sys/class/net/{ifname}/speed")).map_err(Errno::from) {
        Ok(text) => Ok(text.trim().parse().unwrap_or(0)),
        Err(error) if error.is_out_of_descriptors() => Err(error),
        Err(_) => Ok(0),
    }
}

fn path_mtu(if_mtu: u32) -> Mtu {
    [Mtu::M4096, Mtu::M2048, Mtu::M1024, Mtu::M512]
        .into_iter()
        .find(|mtu| mtu.bytes() + HEADERS <= if_mtu as usize)
        .unwrap_or(Mtu::M256)
}

/// Describes the state of an interface that is down, and the remedy.
pub fn down(ifname: &str) -> String {
    let cable = if ifname == "lo" { "" } else { ", or check its cable" };
    format!("interface {ifname} is down and passes no packets: `ip link set {ifname} up`{cable}")
}
