//! The addresses of this machine that lead to an RDMA device.

use crate::rdma::address::local_addresses;
use crate::rdma::channel::EventChannel;
use crate::rdma::errno::Errno;
use crate::rdma::id::Id;
use crate::rdma::libraries::Libraries;
use std::net::{IpAddr, SocketAddr};

/// An address with an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub address: IpAddr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
    /// The network interface.
    pub name: String,
    /// The RDMA device.
    pub device: String,
    pub port_num: u8,
}

/// All addresses with an RDMA device, those of loopback last. librdmacm opens each device once per process and keeps it;
/// nothing else remains open.
pub fn interfaces() -> Result<Vec<Interface>, String> {
    let libraries = Libraries::load()?;
    let channel = match EventChannel::new() {
        Ok(channel) => channel,
        Err(Errno(libc::ENODEV | libc::ENOENT)) => return Ok(vec![]),
        Err(error) => return Err(format!("librdmacm cannot open an event channel: {error}")),
    };
    let addresses = local_addresses().map_err(|error| format!("cannot list the network interfaces: {error}"))?;
    let mut found = vec![];
    for local in addresses {
        let id = Id::create(&channel, 0).map_err(|error| format!("librdmacm cannot create an id: {error}"))?;
        // An address without a device cannot be bound.
        if id.bind(SocketAddr::new(local.address, 0)).is_err() || id.context().is_null() {
            continue;
        }
        found.push(Interface {
            address: local.address,
            prefix: local.prefix,
            name: local.interface,
            // SAFETY: the device is open as long as the id.
            device: unsafe { libraries.device_name(id.context()) },
            port_num: id.port_num(),
        });
    }
    Ok(found)
}
