//! A process as `weir stat --json` prints it.

use nix::unistd::{Uid, User};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;
use weir_device::MemoryTotals;
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
    pub memory: Memory,
    /// Counters that other libraries of the process publish.
    pub published: Vec<Published>,
}

/// What memory regions of the process pin.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Bytes that pinned regions cover now: whole pages, each once.
    pub pinned_bytes: u64,
    /// The most that they were.
    pub pinned_peak: u64,
    /// Registrations of memory so far.
    pub registrations: u64,
    /// Of these, on-demand.
    pub registrations_on_demand: u64,
}

/// A group of counters of a library.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Published {
    /// The name that the library gives it, such as `weir-odp odp-optimal`: the library, and how it works.
    pub group: String,
    /// By name, as they were published.
    #[serde(serialize_with = "by_name")]
    pub counters: Vec<(String, u64)>,
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
    /// Its interfaces if it joins several (`--links`), otherwise empty.
    pub links: Vec<Link>,
}

/// An interface of a device that joins several.
#[derive(Serialize, Clone, Debug)]
pub struct Link {
    pub interface: String,
    pub state: LinkState,
    /// Peers that packets can go to over it.
    pub peers: u64,
    /// Those of them to which it is used.
    pub peers_up: u64,
    /// Bytes on the wire, with packets that went again, without acknowledgements.
    pub bytes_sent: u64,
    /// Its part of these bytes of all interfaces of the device, 0 to 1.
    pub share: f64,
    /// The largest rate to a peer: measured, or guessed until it is measured.
    pub bytes_per_second: u64,
    /// Part of the packets that were lost lately, 0 to 1: the largest to a peer.
    pub loss: f64,
    /// The mean round trip of all peers; null if it is not known.
    pub round_trip_us: Option<f64>,
}

/// Whether an interface is used to its peers.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// To all.
    Up,
    /// To some.
    Partly,
    /// To none.
    Down,
    /// There is no peer that it leads to.
    Unused,
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
    /// Packets that were dropped because of a wrong ICRC.
    pub wrong_icrc: u64,
    /// Packets for a connected QP that were dropped because they came from another address than its peer's.
    pub wrong_sender: u64,
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
            memory: Memory::from(&process.memory),
            published: process
                .published
                .iter()
                .cloned()
                .map(|(group, counters)| Published { group, counters })
                .collect(),
        }
    }
}

impl From<&MemoryTotals> for Memory {
    fn from(totals: &MemoryTotals) -> Self {
        Memory {
            pinned_bytes: totals.pinned_bytes,
            pinned_peak: totals.pinned_peak,
            registrations: totals.registrations,
            registrations_on_demand: totals.registrations_on_demand,
        }
    }
}

/// Counters as an object.
fn by_name<S: Serializer>(counters: &[(String, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counters.iter().map(|(name, value)| (name, value)))
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
                wrong_icrc: device.wrong_icrc,
                wrong_sender: device.wrong_sender,
            },
            paging: Paging::of(&device.paging),
            links: device.links.iter().map(|link| Link::of(link, &device.links)).collect(),
        }
    }
}

impl Link {
    pub(super) fn of(link: &read::Link, all: &[read::Link]) -> Link {
        let sent: u64 = all.iter().map(|link| link.bytes_sent).sum();
        Link {
            interface: link.interface.clone(),
            state: match (link.peers, link.peers_up) {
                (0, _) => LinkState::Unused,
                (_, 0) => LinkState::Down,
                (peers, up) if up < peers => LinkState::Partly,
                _ => LinkState::Up,
            },
            peers: link.peers,
            peers_up: link.peers_up,
            bytes_sent: link.bytes_sent,
            share: link.bytes_sent as f64 / sent.max(1) as f64,
            bytes_per_second: link.rate,
            loss: link.loss,
            round_trip_us: link.round_trip.map(|time| time.as_nanos() as f64 / 1e3),
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
    use std::time::Duration;

    #[test]
    fn an_interface_has_a_state_and_its_share_of_the_bytes() {
        let link = |interface: &str, peers, peers_up, bytes_sent| read::Link {
            interface: interface.into(),
            peers,
            peers_up,
            bytes_sent,
            rate: 125_000_000,
            loss: 0.0025,
            round_trip: (peers_up > 0).then_some(Duration::from_nanos(17_500)),
        };
        let all = [link("eth1", 3, 3, 300), link("eth2", 3, 1, 100), link("eth3", 3, 0, 0), link("eth4", 0, 0, 0)];
        let shown: Vec<Link> = all.iter().map(|link| Link::of(link, &all)).collect();
        let states: Vec<LinkState> = shown.iter().map(|link| link.state).collect();
        assert_eq!(states, [LinkState::Up, LinkState::Partly, LinkState::Down, LinkState::Unused]);
        assert_eq!(
            serde_json::to_value(&shown[1]).unwrap(),
            serde_json::json!({
                "interface": "eth2", "state": "partly", "peers": 3, "peers_up": 1, "bytes_sent": 100, "share": 0.25,
                "bytes_per_second": 125_000_000, "loss": 0.0025, "round_trip_us": 17.5
            })
        );
        let last = serde_json::to_value(&shown[3]).unwrap();
        assert_eq!((&last["round_trip_us"], &last["share"]), (&Value::Null, &0.0.into()));
        assert_eq!(Link::of(&all[3], &all[3..]).share, 0.0, "nothing was sent");
    }

    #[test]
    fn published_counters_are_shown_as_they_are() {
        let counters = vec![("eager".into(), 3), ("wait_ns".into(), 1999)];
        let published = Published { group: "weir-odp copy".into(), counters };
        assert_eq!(
            serde_json::to_value(&published).unwrap(),
            serde_json::json!({"group": "weir-odp copy", "counters": {"eager": 3, "wait_ns": 1999}})
        );
    }

    #[test]
    fn times_are_microseconds_and_devices_add_up() {
        let counters = |faults: u64, ns: u64| vec![("page_faults".to_owned(), faults), ("page_fault_ns".into(), ns)];
        let mut sum = Paging::of(&counters(2, 5000));
        sum.add(&Paging::of(&counters(1, 1999)));
        assert_eq!(serde_json::to_value(&sum).unwrap(), serde_json::json!({"page_faults": 3, "page_fault_us": 6}));
    }
}
