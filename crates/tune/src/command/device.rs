//! The device that is measured: one of the system, or Weir.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weir_lab::stream::session::Program;

/// Stands for Weir, whichever of its devices.
pub const WEIR: &str = "weir";

/// Stands for the first device of the system.
pub const SYSTEM: &str = "system";

/// A device.
#[derive(Debug, PartialEq)]
pub struct Device {
    pub name: String,
    /// Weir provides it, so that programs run under `weir run`.
    pub weir: bool,
}

/// A device of Weir, as `weir devices --json` prints it.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    #[serde(default)]
    gids: Vec<Gid>,
}

#[derive(Debug, Deserialize)]
struct Gid {
    address: Option<IpAddr>,
}

impl Device {
    /// The device that the user names. Otherwise the first of the system, and if it has none, Weir's: the one with
    /// the address `local`, if that is given.
    pub fn choose(name: Option<&str>, local: Option<IpAddr>) -> Result<Device> {
        let system = system(Path::new("/sys/class/infiniband"));
        match name {
            Some(SYSTEM) => {
                let first =
                    system.into_iter().next().context("the system has no RDMA device (/sys/class/infiniband)")?;
                Ok(Device { name: first, weir: false })
            }
            Some(name) if system.iter().any(|each| each == name) => Ok(Device { name: name.into(), weir: false }),
            Some(name) if name == WEIR || name.starts_with("weir_") => of_weir(&listed()?, name, local),
            Some(name) => {
                let known = if system.is_empty() { "none".into() } else { system.join(", ") };
                bail!("--device {name}: there is no such device; the system has {known}; `weir devices` lists Weir's")
            }
            None => match first_of_system() {
                Some(name) => Ok(Device { name, weir: false }),
                None => of_weir(&listed()?, WEIR, local),
            },
        }
    }

    /// How a program gets at it. `library` is the folder of Weir's files.
    pub fn program(&self, library: &Path) -> Result<Program> {
        let weir = if self.weir { Some(this_command()?) } else { None };
        Ok(Program { weir, library: library.into(), device: Some(self.name.clone()), options: vec![] })
    }
}

/// The device of the system that is chosen if the user names none.
pub fn first_of_system() -> Option<String> {
    system(Path::new("/sys/class/infiniband")).into_iter().next()
}

/// The path of this command.
pub fn this_command() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of the weir command")
}

/// The names of the system's devices, sorted.
fn system(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn listed() -> Result<Vec<Listed>> {
    let output = Command::new(this_command()?).args(["devices", "--json"]).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "weir devices: {}", String::from_utf8_lossy(&output.stderr).trim());
    serde_json::from_slice(&output.stdout).context("the output of weir devices --json")
}

fn of_weir(all: &[Listed], name: &str, local: Option<IpAddr>) -> Result<Device> {
    let named = all.iter().find(|device| device.name == name);
    let at = |address: IpAddr| all.iter().find(|device| device.gids.iter().any(|gid| gid.address == Some(address)));
    let first = || all.iter().find(|device| device.name != "weir_lo").or(all.first());
    let chosen = if name == WEIR { local.and_then(at).or_else(first) } else { named };
    let why = || format!("Weir has no device {name} here; `weir devices` lists its devices");
    Ok(Device { name: chosen.with_context(why)?.name.clone(), weir: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Listed> {
        let text = r#"[{"name":"weir_lo","gids":[{"index":0,"gid":"::1","address":"127.0.0.1"}]},
            {"name":"weir_eth0","gids":[{"index":0,"gid":"x","address":null}]},
            {"name":"weir_eth1","gids":[{"index":0,"gid":"x","address":"10.0.0.7"}],"mtu":1500}]"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn weirs_device_is_the_named_one_or_that_on_the_way_to_the_peer_or_the_first_besides_loopback() {
        let all = devices();
        let name = |name: &str, local: Option<&str>| {
            of_weir(&all, name, local.map(|text| text.parse().unwrap())).map(|device| device.name)
        };
        assert_eq!(name("weir_lo", None).unwrap(), "weir_lo");
        assert_eq!(name(WEIR, None).unwrap(), "weir_eth0");
        assert_eq!(name(WEIR, Some("10.0.0.7")).unwrap(), "weir_eth1");
        assert_eq!(name(WEIR, Some("10.0.0.8")).unwrap(), "weir_eth0");
        assert!(name("weir_eth9", None).unwrap_err().to_string().contains("weir devices"));
        assert_eq!(of_weir(&all[..1], WEIR, None).unwrap().name, "weir_lo");
    }

    #[test]
    fn devices_of_the_system_are_those_of_sysfs() {
        let folder = tempfile::tempdir().unwrap();
        assert!(system(&folder.path().join("none")).is_empty());
        ["mlx5_1", "mlx5_0"].iter().for_each(|name| std::fs::create_dir(folder.path().join(name)).unwrap());
        assert_eq!(system(folder.path()), ["mlx5_0", "mlx5_1"]);
        let error = Device::choose(Some("no_such_device"), None).unwrap_err().to_string();
        assert!(error.contains("no such device"), "{error}");
    }
}
