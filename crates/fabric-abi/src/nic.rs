//! The network adapter behind an `fi_info`.

use super::fid;
use std::ffi::{c_char, c_uint, c_void};

/// Kind of bus.
pub type fi_bus_type = c_uint;
/// Unknown.
pub const FI_BUS_UNSPEC: fi_bus_type = 0;
/// Unknown, another name.
pub const FI_BUS_UNKNOWN: fi_bus_type = FI_BUS_UNSPEC;
/// PCI.
pub const FI_BUS_PCI: fi_bus_type = 1;

/// State of a link.
pub type fi_link_state = c_uint;
/// Unknown.
pub const FI_LINK_UNKNOWN: fi_link_state = 0;
/// Down.
pub const FI_LINK_DOWN: fi_link_state = 1;
/// Up.
pub const FI_LINK_UP: fi_link_state = 2;

/// Texts about the device; each may be null.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_device_attr {
    pub name: *mut c_char,
    pub device_id: *mut c_char,
    pub device_version: *mut c_char,
    pub vendor_id: *mut c_char,
    pub driver: *mut c_char,
    pub firmware: *mut c_char,
}

/// An address on the PCI bus.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_pci_attr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// An address on a bus; in the header an unnamed union with one member.
#[derive(Clone, Copy)]
#[repr(C)]
pub union fi_bus_attr_union {
    pub pci: fi_pci_attr,
}

/// Where the device is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct fi_bus_attr {
    pub bus_type: fi_bus_type,
    pub attr: fi_bus_attr_union,
}

/// The device's link.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fi_link_attr {
    pub address: *mut c_char,
    /// Bytes.
    pub mtu: usize,
    /// Bits per second.
    pub speed: usize,
    pub state: fi_link_state,
    /// For example `Ethernet`.
    pub network_type: *mut c_char,
}

/// A network adapter. `fi_freeinfo` calls its `close`, `fi_dupinfo` its `control` with `FI_DUP`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct fid_nic {
    pub fid: fid,
    pub device_attr: *mut fi_device_attr,
    pub bus_attr: *mut fi_bus_attr,
    pub link_attr: *mut fi_link_attr,
    /// Of the provider's own type.
    pub prov_attr: *mut c_void,
}
