//! Routes of QPs' packets: from a GID index and a GID to addresses.

use crate::Errno;
use crate::os::interfaces::DeviceInfo;
use crate::os::refused::refused;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use weir_transport::AddressVector;

/// A pair of addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// This side's address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Index of the outgoing interface; 0 where routing decides.
    pub ifindex: u32,
    /// Hop limit of packets to a multicast group; 0: the system's.
    pub hops: u8,
}

impl Route {
    /// EINVAL if the vector has no GRH, its index has no GID, or the GIDs are of different families. `now` is the
    /// current state of the device, if it still exists.
    pub fn resolve(device: &DeviceInfo, now: Option<&DeviceInfo>, av: &AddressVector) -> Result<Route, Errno> {
        let refuse = |why: &str| Err(refused(libc::EINVAL, format_args!("{}: address handle: {why}", device.name)));
        if !av.is_global {
            return refuse(
                "RoCE needs is_global and a destination GID (a GID index, e.g. `-g 1`, is missing), unless the peer is \
                 a QP of this host",
            );
        }
        let gids = now.map_or(&device.gids, |now| &now.gids);
        let Some(local) = gids.get(usize::from(av.sgid_index)).copied().flatten() else {
            return refuse("there is no GID at this index: `weir devices` lists them");
        };
        let remote = Ipv6Addr::from(av.dgid).to_canonical();
        // Canonical form only unmaps IPv4-mapped addresses; `::1` stays as it is.
        if local.is_ipv4() != remote.is_ipv4() || remote.is_unspecified() {
            return refuse(
                "source and destination GID are of different kinds: take a GID index of the kind of the peer's GID",
            );
        }
        let bound = remote.is_multicast() || needs_scope(remote);
        // A datagram to a group leaves the link only if its address handle has a hop limit above 1.
        let hops = if remote.is_multicast() { av.hop_limit.max(1) } else { 0 };
        Ok(Route { local, remote, ifindex: if bound { device.ifindex } else { 0 }, hops })
    }

    /// The route to this host itself; `None` if the device has no address.
    pub fn to_itself(device: &DeviceInfo, now: Option<&DeviceInfo>) -> Option<Route> {
        let gids = now.map_or(&device.gids, |now| &now.gids);
        let usable = gids.iter().flatten().copied();
        // An address that needs no scope, if there is one.
        let local = usable.min_by_key(|address| needs_scope(*address))?;
        let ifindex = if needs_scope(local) { device.ifindex } else { 0 };
        Some(Route { local, remote: local, ifindex, hops: 0 })
    }

    /// The peer's socket address at a port.
    pub fn to(&self, port: u16) -> SocketAddr {
        match self.remote {
            IpAddr::V4(v4) => SocketAddr::new(v4.into(), port),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, self.ifindex).into(),
        }
    }
}

/// Returns whether an address is valid on one interface only.
pub fn needs_scope(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
