//! `weir devices`: the devices that programs see, and the features that are not available on this machine.

use crate::invalidation::{self, Invalidation};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::process::ExitCode;
use weir_device::DeviceInfo;

/// Arguments of `weir devices`.
#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Print a JSON array instead of text
    #[arg(long)]
    json: bool,
}

/// A device, as `--json` prints it.
#[derive(Serialize, Debug)]
struct Shown {
    name: String,
    interface: String,
    ifindex: u32,
    /// `up` or `down`.
    state: &'static str,
    /// The interface's MTU, bytes.
    mtu: u32,
    gids: Vec<Gid>,
    /// How the adapter is notified of changes of ODP memory.
    invalidation: Invalidation,
    /// Kernel features that have a fallback.
    features: Vec<Feature>,
    /// What is not available on this machine, and why.
    notes: Vec<String>,
}

/// A kernel feature, by the name that `--without` takes.
#[derive(Serialize, Debug)]
struct Feature {
    name: &'static str,
    used: bool,
    /// Why it is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// What happens without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<&'static str>,
}

/// A used entry of the GID table.
#[derive(Serialize, Debug)]
struct Gid {
    index: usize,
    gid: String,
    address: IpAddr,
}

/// Lists the devices of this network namespace.
pub fn run(args: &DevicesArgs) -> Result<ExitCode> {
    let features = weir_device::features().map_err(anyhow::Error::msg)?;
    let error = |weir_device::Errno(errno)| std::io::Error::from_raw_os_error(errno);
    let devices = weir_device::devices().map_err(error).context("cannot list the network interfaces")?;
    let devices: Vec<Shown> = devices.into_iter().map(|device| Shown::new(device, &features)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&devices)?);
    } else if devices.is_empty() {
        println!(
            "no devices: no interface in this network namespace has an address; run `ip link set lo up` as root, or \
             add an address to an interface"
        );
    } else {
        let texts: Vec<String> = devices.iter().map(text).collect();
        print!("{}", texts.join("\n"));
    }
    for device in weir_device::hidden_devices().map_err(error)? {
        eprintln!("programs do not see {}, except with --interface {} or --interface all", device.name, device.ifname);
    }
    for why in weir_device::unusable_interfaces().map_err(error)? {
        eprintln!("{why}");
    }
    Ok(ExitCode::SUCCESS)
}

impl Shown {
    fn new(device: DeviceInfo, features: &[weir_device::Feature]) -> Self {
        let gids = device.gids.iter().enumerate().filter_map(|(index, slot)| {
            let address = (*slot)?;
            Some(Gid { index, gid: gid(address), address })
        });
        Shown {
            gids: gids.collect(),
            name: device.name,
            interface: device.ifname,
            ifindex: device.ifindex,
            state: if device.up { "up" } else { "down" },
            mtu: device.if_mtu,
            invalidation: invalidation::on_this_machine(features),
            features: features.iter().map(Feature::from).collect(),
            notes: device.notes,
        }
    }
}

impl From<&weir_device::Feature> for Feature {
    fn from(feature: &weir_device::Feature) -> Self {
        let used = feature.unused.is_none();
        Feature { name: feature.name, used, why: feature.unused.clone(), fallback: (!used).then_some(feature.fallback) }
    }
}

/// A GID in full, in the format of sysfs; IPv4 addresses are mapped (IBTA annex A17.4.1.1, RFC 4291 2.5.5.2).
fn gid(address: IpAddr) -> String {
    let mapped: Ipv6Addr = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    mapped.segments().map(|segment| format!("{segment:04x}")).join(":")
}

fn text(device: &Shown) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{}  on {} (index {}), {}, MTU {}",
        device.name, device.interface, device.ifindex, device.state, device.mtu
    );
    for gid in &device.gids {
        let _ = writeln!(text, "  GID {:<2}  {}  {}", gid.index, gid.gid, gid.address);
    }
    if device.gids.is_empty() {
        let _ = writeln!(text, "  no GID: the interface has no address");
    }
    text.push_str(&device.invalidation.text());
    let used: Vec<&str> = device.features.iter().filter(|feature| feature.used).map(|feature| feature.name).collect();
    let used = if used.is_empty() { "none".to_owned() } else { used.join(", ") };
    let _ = writeln!(text, "  features of the kernel in use: {used}");
    for feature in device.features.iter().filter(|feature| !feature.used) {
        let (why, fallback) = (feature.why.as_deref().unwrap_or_default(), feature.fallback.unwrap_or_default());
        let _ = writeln!(text, "    not {} ({why}): {fallback}", feature.name);
    }
    for note in &device.notes {
        let _ = writeln!(text, "  not here: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Shown {
        let device = DeviceInfo {
            name: "weir_eth0".into(),
            ifname: "eth0".into(),
            ifindex: 2,
            guid: 1,
            if_mtu: 9000,
            loopback: false,
            has_speed: true,
            mac: Some([2, 0, 0, 0, 0, 1]),
            up: true,
            gids: vec![Some("fe80::1".parse().unwrap()), None, Some("10.0.0.1".parse().unwrap())],
            notes: vec!["locked memory: limit 8 MiB".into()],
            links: Default::default(),
        };
        Shown::new(device, &weir_device::features().unwrap())
    }

    #[test]
    fn json_names_each_used_gid_entry_by_its_index() {
        let mut json = serde_json::to_value([device()]).unwrap();
        let invalidation = json[0].as_object_mut().unwrap().remove("invalidation").unwrap();
        assert!(invalidation["interposed"].as_array().unwrap().contains(&"munmap".into()), "{invalidation}");
        let features = json[0].as_object_mut().unwrap().remove("features").unwrap();
        let names: Vec<_> = features.as_array().unwrap().iter().map(|feature| feature["name"].clone()).collect();
        assert_eq!(names, weir_link::DisabledFeatures::names().collect::<Vec<_>>());
        let expected = serde_json::json!([{
            "name": "weir_eth0", "interface": "eth0", "ifindex": 2, "state": "up", "mtu": 9000,
            "gids": [
                {"index": 0, "gid": "fe80:0000:0000:0000:0000:0000:0000:0001", "address": "fe80::1"},
                {"index": 2, "gid": "0000:0000:0000:0000:0000:ffff:0a00:0001", "address": "10.0.0.1"},
            ],
            "notes": ["locked memory: limit 8 MiB"],
        }]);
        assert_eq!(json, expected);
    }

    #[test]
    fn text_shows_gids_features_and_notes() {
        let mut device = device();
        let feature = |name, unused: Option<&str>| {
            let unused = unused.map(str::to_owned);
            Feature::from(&weir_device::Feature { name, unused, fallback: "each packet comes alone" })
        };
        device.features = vec![feature("ipv6", None), feature("udp-gro", Some("WEIR_WITHOUT"))];
        let text = text(&device);
        for part in [
            "weir_eth0  on eth0 (index 2), up, MTU 9000",
            "GID 2 ",
            "10.0.0.1",
            "ODP memory:",
            "features of the kernel in use: ipv6\n",
            "not udp-gro (WEIR_WITHOUT): each packet comes alone",
            "not here: locked memory",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
