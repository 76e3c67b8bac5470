//! The properties of a device and its port.

use crate::rdma::errno::Errno;
use crate::rdma::libraries::Libraries;
use crate::rdma::tables::{query_device, query_port};
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weir_abi::*;

/// Properties of a device and of one of its ports.
#[derive(Clone, Debug)]
pub struct Attributes {
    pub device: String,
    /// The kernel's driver; empty for a device without one.
    pub driver: String,
    pub firmware: String,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    /// In bytes.
    pub max_mr_size: u64,
    pub max_mr: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_cqe: u32,
    /// READs and atomics at a time that a QP may have sent.
    pub max_initiator_depth: u8,
    /// READs and atomics at a time that a QP responds to.
    pub max_responder_resources: u8,
    /// Whether there are atomics.
    pub atomics: bool,
    pub odp: OdpCapabilities,
    pub port_num: u8,
    pub active: bool,
    pub ethernet: bool,
    pub lid: u16,
    pub gid_table_length: u32,
    /// In bytes.
    pub max_message_size: u32,
    /// In bytes.
    pub mtu: u32,
    /// As `enum ibv_mtu`.
    pub(crate) mtu_code: c_int,
    /// In bits per second.
    pub speed: u64,
}

/// On-demand paging of RC QPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OdpCapabilities {
    /// Whether there is on-demand paging.
    pub explicit: bool,
    /// Whether a region can be the whole address space.
    pub implicit: bool,
    pub send: bool,
    pub recv: bool,
    pub write: bool,
    pub read: bool,
    pub atomic: bool,
}

impl Attributes {
    /// # Safety
    /// An open device.
    pub(crate) unsafe fn query(
        libraries: &Libraries,
        context: *mut ibv_context,
        port_num: u8,
    ) -> Result<Attributes, Errno> {
        // SAFETY: the caller's open device, and its strings.
        unsafe {
            let extended = query_device(libraries, context)?;
            let port = query_port(libraries, context, port_num)?;
            let device = &extended.orig_attr;
            let positive = |value: c_int| value.max(0) as u32;
            let byte = |value: c_int| value.clamp(0, u8::MAX.into()) as u8;
            Ok(Attributes {
                device: libraries.device_name(context),
                driver: driver(&(*(*context).device).ibdev_path),
                firmware: String::from_utf8_lossy(bytes(&device.fw_ver)).into_owned(),
                vendor_id: device.vendor_id,
                vendor_part_id: device.vendor_part_id,
                hw_ver: device.hw_ver,
                max_mr_size: device.max_mr_size,
                max_mr: positive(device.max_mr),
                max_qp: positive(device.max_qp),
                max_qp_wr: positive(device.max_qp_wr),
                max_sge: positive(device.max_sge),
                max_sge_rd: positive(device.max_sge_rd),
                max_cqe: positive(device.max_cqe),
                max_initiator_depth: byte(device.max_qp_init_rd_atom),
                max_responder_resources: byte(device.max_qp_rd_atom),
                atomics: device.atomic_cap != 0,
                odp: OdpCapabilities::from_device(&extended.odp_caps),
                port_num,
                active: port.state == IBV_PORT_ACTIVE,
                ethernet: port.link_layer == IBV_LINK_LAYER_ETHERNET,
                lid: port.lid,
                gid_table_length: positive(port.gid_tbl_len),
                max_message_size: port.max_msg_sz,
                mtu: mtu_bytes(port.active_mtu),
                mtu_code: port.active_mtu,
                speed: lanes(port.active_width) * lane_speed(port.active_speed),
            })
        }
    }
}

impl OdpCapabilities {
    fn from_device(caps: &ibv_odp_caps) -> OdpCapabilities {
        let rc = caps.per_transport_caps.rc_odp_caps;
        OdpCapabilities {
            explicit: caps.general_caps & IBV_ODP_SUPPORT != 0,
            implicit: caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT != 0,
            send: rc & IBV_ODP_SUPPORT_SEND != 0,
            recv: rc & IBV_ODP_SUPPORT_RECV != 0,
            write: rc & IBV_ODP_SUPPORT_WRITE != 0,
            read: rc & IBV_ODP_SUPPORT_READ != 0,
            atomic: rc & IBV_ODP_SUPPORT_ATOMIC != 0,
        }
    }
}

/// The kernel's driver of the device with this folder in sysfs.
fn driver(ibdev_path: &[c_char]) -> String {
    let link = Path::new(OsStr::from_bytes(bytes(ibdev_path))).join("device/driver");
    let target = std::fs::read_link(link).unwrap_or_default();
    target.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The bytes of a string in an array, which ends with NUL or with the array.
fn bytes(string: &[c_char]) -> &[u8] {
    // SAFETY: `c_char` has the layout of a byte.
    let bytes = unsafe { std::slice::from_raw_parts(string.as_ptr().cast::<u8>(), string.len()) };
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Bytes of an `enum ibv_mtu`: 1 is 256, 5 is 4096.
fn mtu_bytes(code: c_int) -> u32 {
    128 << code.clamp(1, 5)
}

/// Lanes of a port's `active_width` (IBTA 14.2.5.6).
fn lanes(width: u8) -> u64 {
    match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    }
}

/// Bits per second of a lane, by a port's `active_speed` (IBTA 14.2.5.6).
fn lane_speed(speed: u8) -> u64 {
    const MEGABIT: u64 = 1_000_000;
    MEGABIT
        * match speed {
            2 => 5_000,
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            _ => 2_500,
        }
}
