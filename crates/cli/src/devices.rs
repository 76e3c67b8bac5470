//! `weir devices`: what programs see, and what is not available here.

use crate::invalidation::{self, Invalidation};
use anyhow::Result;
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

/// One device, as `--json` prints it.
#[derive(Serialize, Debug)]
struct Shown {
    name: String,
    interface: String,
    ifindex: u32,
    /// `up` or `down`.
    state: &'static str,
    /// Of the interface, bytes.
    mtu: u32,
    gids: Vec<Gid>,
    /// How changes of on-demand memory are seen.
    invalidation: Invalidation,
    /// What is not available here, and why.
    notes: Vec<String>,
}

/// One used slot of the GID table.
#[derive(Serialize, Debug)]
struct Gid {
    index: usize,
    gid: String,
    address: IpAddr,
}

/// Lists the devices of this network namespace.
pub fn run(args: &DevicesArgs) -> Result<ExitCode> {
    let devices: Vec<Shown> = weir_device::devices().into_iter().map(Shown::from).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&devices)?);
    } else if devices.is_empty() {
        println!("no devices: no interface here has an address");
    } else {
        let texts: Vec<String> = devices.iter().map(text).collect();
        print!("{}", texts.join("\n"));
    }
    Ok(ExitCode::SUCCESS)
}

impl From<DeviceInfo> for Shown {
    fn from(device: DeviceInfo) -> Self {
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
            invalidation: invalidation::here(),
            notes: device.notes,
        }
    }
}

/// A GID in full, as sysfs writes it; IPv4 addresses are mapped (IBTA annex A17.4.1.1, RFC 4291 2.5.5.2).
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
    for note in &device.notes {
        let _ = writeln!(text, "  not here: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Shown {
        Shown::from(DeviceInfo {
            name: "weir_eth0".into(),
            ifname: "eth0".into(),
            ifindex: 2,
            guid: 1,
            if_mtu: 9000,
            loopback: false,
            mac: Some([2, 0, 0, 0, 0, 1]),
            up: true,
            gids: vec![Some("fe80::1".parse().unwrap()), None, Some("10.0.0.1".parse().unwrap())],
            notes: vec!["locked memory: limit 8 MiB".into()],
        })
    }

    #[test]
    fn json_names_each_used_slot_by_its_index() {
        let mut json = serde_json::to_value([device()]).unwrap();
        let invalidation = json[0].as_object_mut().unwrap().remove("invalidation").unwrap();
        assert!(invalidation["interposed"].as_array().unwrap().contains(&"munmap".into()), "{invalidation}");
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
    fn text_says_it_all() {
        let text = text(&device());
        for part in [
            "weir_eth0  on eth0 (index 2), up, MTU 9000",
            "GID 2 ",
            "10.0.0.1",
            "on-demand memory:",
            "not here: locked memory",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
