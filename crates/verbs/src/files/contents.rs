//! The contents of the files: what a kernel with an RDMA driver shows of each device, as far as Weir has it.

use super::tree::{Entries, Entry};
use crate::device;
use crate::rate::link_speed;
use std::ffi::OsStr;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use weir_device::DeviceInfo;
use weir_device::stat::read;

/// A device, and its number in the name `uverbs<number>`.
pub struct Numbered {
    info: DeviceInfo,
    number: usize,
}

/// The version of the kernel's interface for verbs (IB_USER_VERBS_ABI_VERSION).
const VERBS_ABI: u32 = 6;
/// The version of the kernel's interface for connection management (RDMA_USER_CM_ABI_VERSION).
const CM_ABI: u32 = 4;
/// The place of the file for connection management.
pub const CM_PLACE: &str = "dev/infiniband/rdma_cm";

impl Numbered {
    /// The number is that of the `ibv_device`, in this process.
    pub fn of(info: &DeviceInfo) -> Numbered {
        Numbered { info: info.clone(), number: device::number_of(info) }
    }

    fn folder(&self) -> PathBuf {
        Path::new("class/infiniband").join(&self.info.name)
    }
}

/// All entries but the counters.
pub fn of_devices(devices: &[Numbered]) -> Entries {
    let mut entries = Entries::new();
    for folder in ["class/infiniband", "class/infiniband_verbs", "class/infiniband_mad", "dev/infiniband"] {
        entries.insert(folder.into(), Entry::Folder);
    }
    text(&mut entries, Path::new("class/infiniband_verbs"), "abi_version", VERBS_ABI);
    text(&mut entries, Path::new("class/misc/rdma_cm"), "abi_version", CM_ABI);
    // The interposed functions open another file in its place.
    entries.insert(CM_PLACE.into(), Entry::Link("/dev/null"));
    for device in devices {
        describe(&mut entries, device);
    }
    entries
}

/// Whether a component of a path is a folder of counters.
pub fn has_counters(component: &OsStr) -> bool {
    component == "counters" || component == "hw_counters"
}

/// Adds the counters that are known from before.
pub fn keep_counters(entries: &mut Entries, before: &Entries) {
    let counters = before.iter().filter(|(path, _)| {
        // Of a device that still exists.
        let device = path.components().take(3).collect::<PathBuf>();
        path.components().any(|part| has_counters(part.as_os_str())) && entries.contains_key(&device.join("node_guid"))
    });
    let counters: Vec<_> = counters.map(|(path, entry)| (path.clone(), entry.clone())).collect();
    entries.extend(counters);
}

/// Adds the counters of each device: the sums over all live processes of this network namespace. They are counted
/// while a process runs, so they are less after its end.
pub fn add_counters(entries: &mut Entries, devices: &[Numbered]) {
    let namespace =
        std::fs::metadata("/proc/self/ns/net").map_or(0, |found| std::os::unix::fs::MetadataExt::ino(&found));
    let processes = read::processes(&read::folders());
    for device in devices {
        let same = processes.iter().filter(|process| process.namespace == namespace);
        let all: Vec<&read::Device> =
            same.flat_map(|process| &process.devices).filter(|open| open.name == device.info.name).collect();
        let sum = |of: fn(&read::Device) -> u64| all.iter().map(|open| of(open)).sum::<u64>();
        let port = device.folder().join("ports/1");
        // In units of four bytes (IBTA 16.1.3.5).
        text(entries, &port, "counters/port_xmit_data", sum(|d| d.bytes_sent) / 4);
        text(entries, &port, "counters/port_rcv_data", sum(|d| d.bytes_received) / 4);
        text(entries, &port, "counters/port_xmit_packets", sum(|d| d.packets_sent));
        text(entries, &port, "counters/port_rcv_packets", sum(|d| d.packets_received));
        text(entries, &port, "hw_counters/local_ack_timeout_err", sum(|d| d.ack_timeouts));
        text(entries, &port, "hw_counters/packet_seq_err", sum(|d| d.sequence_naks));
        text(entries, &port, "hw_counters/implied_nak_seq_err", sum(|d| d.implied_naks));
        text(entries, &port, "hw_counters/rnr_nak_retry_err", sum(|d| d.rnr_naks));
    }
}

fn describe(entries: &mut Entries, device: &Numbered) {
    let Numbered { info, number } = device;
    let folder = device.folder();
    let guid = quads(info.guid.to_be_bytes());
    text(entries, &folder, "node_type", "1: CA");
    text(entries, &folder, "node_guid", &guid);
    text(entries, &folder, "sys_image_guid", &guid);
    text(entries, &folder, "node_desc", &info.name);
    text(entries, &folder, "fw_ver", env!("CARGO_PKG_VERSION"));
    text(entries, &folder, "uevent", format!("NAME={}", info.name));

    // The parent device: what UCX and NCCL ask about the machine's topology, and rdma-core's tests about interfaces.
    let parent = folder.join("device");
    for (interface, _) in info.members() {
        entries.insert(parent.join("net").join(interface), Entry::Folder);
    }
    text(entries, &parent, "numa_node", of_interface(info, "numa_node").unwrap_or("-1".into()));
    for name in ["local_cpus", "local_cpulist"] {
        if let Some(cpus) = of_interface(info, name).or_else(|| cpus(name)) {
            text(entries, &parent, name, cpus);
        }
    }

    let port = folder.join("ports/1");
    entries.insert(port.join("counters"), Entry::Folder);
    entries.insert(port.join("hw_counters"), Entry::Folder);
    text(entries, &port, "state", if info.up { "4: ACTIVE" } else { "1: DOWN" });
    text(entries, &port, "phys_state", if info.up { "5: LinkUp" } else { "3: Disabled" });
    text(entries, &port, "link_layer", "Ethernet");
    text(entries, &port, "rate", rate(info.speed_mbps().unwrap_or(0)));
    text(entries, &port, "lid", "0x0");
    text(entries, &port, "lid_mask_count", 0);
    text(entries, &port, "sm_lid", "0x0");
    text(entries, &port, "sm_sl", 0);
    text(entries, &port, "cap_mask", format!("0x{:08x}", crate::query::PORT_CAPABILITIES));
    text(entries, &port, "pkeys/0", "0xffff");
    text(entries, &port.join("gid_attrs"), "roce_type", "RoCE v2");
    for (index, gid) in info.gids.iter().enumerate() {
        let raw = crate::query::from_address(gid.unwrap_or(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED))).raw;
        text(entries, &port, &format!("gids/{index}"), quads(raw));
        if let Some(address) = gid {
            let ndev = info.interface_of(*address);
            text(entries, &port, &format!("gid_attrs/types/{index}"), "RoCE v2");
            text(entries, &port, &format!("gid_attrs/ndevs/{index}"), ndev);
        }
    }

    let verbs = PathBuf::from(format!("class/infiniband_verbs/uverbs{number}"));
    text(entries, &verbs, "ibdev", &info.name);
    text(entries, &verbs, "abi_version", 1);
    // Programs ask whether it is a character device that they may read and write. They do not open it: that is what
    // libibverbs does, and this libibverbs has no use for it.
    entries.insert(format!("dev/infiniband/uverbs{number}").into(), Entry::Link("/dev/null"));
}

fn text(entries: &mut Entries, folder: &Path, name: &str, value: impl Display) {
    entries.insert(folder.join(name), Entry::Text(value.to_string()));
}

/// A file of the interface's own device.
fn of_interface(info: &DeviceInfo, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{}/device/{name}", info.ifname)).ok()?;
    Some(text.trim().to_owned())
}

/// The machine's processors, for an interface without a device of its own.
fn cpus(name: &str) -> Option<String> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    let list = list.trim();
    if name == "local_cpulist" {
        return Some(list.to_owned());
    }
    let last: usize = list.rsplit(['-', ',']).next()?.parse().ok()?;
    let words = (0..=last / 32).rev().map(|word| match (last + 1 - word * 32).min(32) {
        32 => "ffffffff".to_owned(),
        bits => format!("{:08x}", (1u32 << bits) - 1),
    });
    Some(words.collect::<Vec<_>>().join(","))
}

/// As the kernel prints it: `100 Gb/sec (4X EDR)`.
fn rate(mbps: u32) -> String {
    let (width, speed) = link_speed(mbps);
    let lanes = if width == 2 { 4.0 } else { 1.0 };
    let (name, lane) = match speed {
        1 => ("", 2.5),
        2 => (" DDR", 5.0),
        4 => (" QDR", 10.0),
        32 => (" EDR", 25.0),
        64 => (" HDR", 50.0),
        _ => (" NDR", 100.0),
    };
    format!("{} Gb/sec ({lanes}X{name})", lanes * lane)
}

/// Hexadecimal groups of two bytes.
fn quads<const N: usize>(bytes: [u8; N]) -> String {
    bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered() -> Numbered {
        let info = DeviceInfo {
            name: "weir_t0".into(),
            ifname: "t0".into(),
            ifindex: 7,
            guid: 0x0200_00ff_fe00_0001,
            mac: None,
            if_mtu: 1500,
            up: true,
            loopback: false,
            has_speed: true,
            gids: vec![Some("10.0.0.1".parse().unwrap()), None],
            notes: vec![],
            links: Default::default(),
        };
        Numbered { info, number: 3 }
    }

    fn value<'a>(entries: &'a Entries, path: &str) -> &'a str {
        match entries.get(Path::new(path)) {
            Some(Entry::Text(text)) => text,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn a_device_has_the_kernels_files() {
        let entries = of_devices(&[numbered()]);
        let port = "class/infiniband/weir_t0/ports/1";
        assert_eq!(value(&entries, "class/infiniband/weir_t0/node_guid"), "0200:00ff:fe00:0001");
        assert_eq!(value(&entries, &format!("{port}/gids/0")), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(value(&entries, &format!("{port}/gids/1")), "0000:0000:0000:0000:0000:0000:0000:0000");
        assert_eq!(value(&entries, &format!("{port}/gid_attrs/types/0")), "RoCE v2");
        assert_eq!(value(&entries, &format!("{port}/gid_attrs/ndevs/0")), "t0");
        assert!(!entries.contains_key(Path::new(&format!("{port}/gid_attrs/types/1"))), "an empty entry has no type");
        assert_eq!(value(&entries, "class/infiniband_verbs/uverbs3/ibdev"), "weir_t0");
        assert_eq!(entries[Path::new("dev/infiniband/uverbs3")], Entry::Link("/dev/null"));
        assert_eq!(entries[Path::new("class/infiniband/weir_t0/device/net/t0")], Entry::Folder);
    }

    #[test]
    fn counters_stay_as_long_as_their_device() {
        let mut before = of_devices(&[numbered()]);
        add_counters(&mut before, &[numbered()]);
        let path = "class/infiniband/weir_t0/ports/1/counters/port_xmit_data";
        assert_eq!(value(&before, path), "0");
        let mut now = of_devices(&[numbered()]);
        keep_counters(&mut now, &before);
        assert_eq!(now, before);
        let mut none = of_devices(&[]);
        keep_counters(&mut none, &before);
        assert_eq!(none, of_devices(&[]));
    }

    #[test]
    fn rates_are_printed_as_the_kernel_does() {
        assert_eq!(rate(100_000), "100 Gb/sec (4X EDR)");
        assert_eq!(rate(1_000), "2.5 Gb/sec (1X)");
        assert_eq!(rate(0), "200 Gb/sec (4X HDR)");
    }
}
