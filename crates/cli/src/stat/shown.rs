//! A process as `weir stat --json` prints it.

use nix::unistd::{Uid, User};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;
use weir_device::stat::read;

/// A process.
#[derive(Serialize, Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub program: String,
    pub user: String,
    /// Seconds since the process opened its first device.
    pub seconds: f64,
    /// Inode of its network namespace, as `ls -l /proc/PID/ns/net` shows it.
    pub network_namespace: u64,
    /// The process's folder, with the counter files under the vendor's names.
    pub folder: PathBuf,
    /// Sums over all devices.
    pub paging: Paging,
    pub devices: Vec<Device>,
    /// On-demand regions; if there are many, only the first.
    pub regions: Vec<Region>,
    /// Number of on-demand regions.
    pub region_count: u64,
}

/// A device.
#[derive(Serialize, Clone, Debug)]
pub struct Device {
    pub name: String,
    pub open: bool,
    /// Name of the device's folder in `class/infiniband_verbs`, such as `uverbs0`.
    pub uverbs: String,
    #[serde(flatten)]
    pub traffic: Traffic,
    pub paging: Paging,
}

/// Counters of a device's traffic.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub qps: u64,
    pub packets_sent: u64,
    /// Bytes of RoCE packets, without UDP and IP headers.
    pub bytes_sent: u64,
    pub packets_received: u64,
    pub bytes_received: u64,
    /// How often requests were retransmitted, by cause.
    pub ack_timeouts: u64,
    pub sequence_naks: u64,
    pub implied_naks: u64,
    pub rnr_naks: u64,
    /// Packets that the adapter itself lost, because of a flaw of its profile.
    pub packets_lost: u64,
    /// Messages of UC through shared memory that were dropped because no receive was posted in time.
    pub without_receive: u64,
    /// Packets that were lost because the shared memory to their peer was full.
    pub ring_full: u64,
}

/// An on-demand region.
#[derive(Serialize, Clone, Debug)]
pub struct Region {
    pub device: String,
    pub lkey: u32,
    pub addr: u64,
    /// Bytes; null for an implicit region (the whole address space).
    pub length: Option<u64>,
    pub paging: Paging,
}

/// Counters by name; times in microseconds.
#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[serde(transparent)]
pub struct Paging(Map<String, Value>);

impl Paging {
    /// The counter `name`; 0 if it does not exist.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Counters by name. Names of times end in `_ns`: these are nanoseconds.
    pub(super) fn of(counters: &[(String, u64)]) -> Paging {
        let named = counters.iter().map(|(name, value)| match name.strip_suffix("_ns") {
            Some(name) => (format!("{name}_us"), (value / 1000).into()),
            None => (name.clone(), (*value).into()),
        });
        Paging(named.collect())
    }

    fn add(&mut self, other: &Paging) {
        for (name, value) in &other.0 {
            let sum = self.get(name) + value.as_u64().unwrap_or(0);
            self.0.insert(name.clone(), sum.into());
        }
    }
}

impl From<&read::Process> for Process {
    fn from(process: &read::Process) -> Self {
        let devices: Vec<Device> = process.devices.iter().map(Device::from).collect();
        let mut paging = Paging::default();
        devices.iter().for_each(|device| paging.add(&device.paging));
        // The system clock may have been set back since.
        let started = process.started.max(UNIX_EPOCH).elapsed().unwrap_or_default();
        Process {
            pid: process.pid,
            program: process.program.clone(),
            user: user(process.uid),
            seconds: started.as_secs_f64(),
            network_namespace: process.namespace,
            folder: process.folder.clone(),
            paging,
            devices,
            regions: process.regions.iter().map(Region::from).collect(),
            region_count: process.region_count,
        }
    }
}

impl From<&read::Device> for Device {
    fn from(device: &read::Device) -> Self {
        Device {
            name: device.name.clone(),
            open: device.open,
            uverbs: format!("uverbs{}", device.index),
            traffic: Traffic {
                qps: device.qps,
                packets_sent: device.packets_sent,
                bytes_sent: device.bytes_sent,
                packets_received: device.packets_received,
                bytes_received: device.bytes_received,
                ack_timeouts: device.ack_timeouts,
                sequence_naks: device.sequence_naks,
                implied_naks: device.implied_naks,
                rnr_naks: device.rnr_naks,
                packets_lost: device.packets_lost,
                without_receive: device.without_receive,
                ring_full: device.ring_full,
            },
            paging: Paging::of(&device.paging),
        }
    }
}

impl From<&read::OnDemand> for Region {
    fn from(region: &read::OnDemand) -> Self {
        Region {
            device: region.device.clone(),
            lkey: region.lkey,
            addr: region.addr,
            length: (region.len != u64::MAX).then_some(region.len),
            paging: Paging::of(&region.paging),
        }
    }
}

/// A user's name, or its number if it has no name.
pub fn user(uid: u32) -> String {
    let found = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    found.map_or_else(|| format!("user {uid}"), |user| user.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_and_devices_add_up() {
        let counters = |faults: u64, ns: u64| vec![("page_faults".to_owned(), faults), ("page_fault_ns".into(), ns)];
        let mut sum = Paging::of(&counters(2, 5000));
        sum.add(&Paging::of(&counters(1, 1999)));
        assert_eq!(serde_json::to_value(&sum).unwrap(), serde_json::json!({"page_faults": 3, "page_fault_us": 6}));
    }
}
