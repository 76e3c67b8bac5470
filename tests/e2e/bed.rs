//! The topologies in which trials run, and the commands that start programs on Weir.

use anyhow::{Context, Result};
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt;
use std::fs::Permissions;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;
use weir_stage::pair::{self, Outcome};
use weir_stage::{Child, Side, Stage};

/// Faults that every transport test must tolerate.
pub const FAULTS: &str = "loss=0.01,reorder=0.01,corrupt=0.001";

/// Path of the `weir` command under test.
pub const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Where the two programs of a test run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Two processes on 127.0.0.1.
    Loopback,
    /// Two network namespaces joined by a veth.
    Veth,
    /// Two network namespaces joined by three veths, which are used as one.
    Links,
    /// Two network namespaces joined by a bridge in a third one.
    Bridged,
}

/// A topology that is set up.
pub struct Bed {
    pub stage: Stage,
}

impl Topology {
    /// Those with one link.
    pub const ALL: [Topology; 2] = [Topology::Loopback, Topology::Veth];

    /// Why this machine cannot provide this topology; `None` if it can.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Topology::Loopback => None,
            Topology::Veth | Topology::Links | Topology::Bridged => {
                self.bed().map_or_else(|why| Some(why.as_str()), |bed| bed.stage.loopback_reason())
            }
        }
    }

    /// The stage of this topology, set up once for all tests.
    pub fn bed(self) -> Result<&'static Bed, &'static String> {
        static BEDS: [OnceLock<Result<Bed, String>>; 4] = [const { OnceLock::new() }; 4];
        let bed = &BEDS[self as usize];
        bed.get_or_init(|| Bed::new(self).map_err(|error| format!("{error:#}"))).as_ref()
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topology::Loopback => "loopback",
            Topology::Veth => "veth",
            Topology::Links => "links",
            Topology::Bridged => "bridged",
        })
    }
}

impl Bed {
    pub fn new(topology: Topology) -> Result<Bed> {
        let stage = match topology {
            Topology::Loopback => Stage::loopback()?,
            Topology::Veth => Stage::new(9000)?,
            Topology::Links => Stage::with_links(3, 9000)?,
            Topology::Bridged => Stage::bridged(9000)?,
        };
        Ok(Bed { stage })
    }

    /// `weir run OPTIONS -- WORDS…` on a side. Each option has a value.
    pub fn weir<S: AsRef<OsStr>>(&self, side: Side, options: &[&str], words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.bare(side, WEIR);
        // For debugging: more options for every `weir run`.
        let more = std::env::var("E2E_WEIR_OPTIONS").unwrap_or_default();
        let more: Vec<&str> = more.split_whitespace().collect();
        let options = options.chunks(2).filter(|option| !more.contains(&option[0])).flatten();
        command.arg("run").args(options).args(&more).arg("--").args(words);
        command
    }

    /// Any command on a side, with WEIR_LIB_DIR set and no other WEIR_* variable.
    pub fn bare(&self, side: Side, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.stage.command(side, program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"WEIR_")) {
            command.env_remove(name);
        }
        if let Some(names) = self.stage.link_names() {
            command.env("WEIR_LINKS", names);
        }
        command.env("WEIR_LIB_DIR", library());
        command
    }

    /// Runs a command line on both sides under `weir run OPTIONS`: a server on A, then a client on B with the server's
    /// address as last argument. Replaces `{dev}` and `{port}`. Both must exit with status 0.
    pub fn pair(&self, options: &[&str], line: &str, timeout: Duration) -> Result<Outcome> {
        self.pair_with([options; 2], line, timeout)
    }

    /// As [`Bed::pair`], with injected faults.
    pub fn faulty_pair(&self, options: &[&str], faults: &str, line: &str, timeout: Duration) -> Result<Outcome> {
        let faulty = [options, &["--faults", faults]].concat();
        // The server of ib_write_lat exits as soon as the last message has arrived, without notifying the client. If
        // the ACK of that message is lost, the client retransmits to a destroyed QP and fails, on any adapter.
        // So the server injects no faults.
        let server = if line.starts_with("ib_write_lat") { options } else { &faulty };
        self.pair_with([server, &faulty], line, timeout)
    }

    /// As [`Bed::pair`], with separate options for the server and the client.
    fn pair_with(&self, options: [&[&str]; 2], line: &str, timeout: Duration) -> Result<Outcome> {
        let port = self.stage.free_port(Side::A)?;
        let line = line.replace("{dev}", &self.stage.device()).replace("{port}", &port.to_string());
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut client = self.weir(Side::B, options[1], &words);
        client.arg(self.stage.address(Side::A).to_string());
        pair::run(&mut self.weir(Side::A, options[0], &words), &mut client, port, timeout)?.success()
    }

    /// The GID index of one address of a side.
    pub fn gid_index(&self, side: Side, address: IpAddr) -> Result<u64> {
        let name = self.stage.device();
        let devices = self.devices(side)?;
        let device = devices.as_array().into_iter().flatten().find(|device| device["name"] == name.as_str());
        let gids = device.with_context(|| format!("no {name} in {devices}"))?["gids"].as_array();
        let address = address.to_string();
        let gid = gids.into_iter().flatten().find(|gid| gid["address"] == address.as_str());
        gid.and_then(|gid| gid["index"].as_u64()).with_context(|| format!("no GID for {address} in {devices}"))
    }

    /// `weir devices --json` on a side.
    pub fn devices(&self, side: Side) -> Result<Value> {
        let mut command = self.bare(side, WEIR);
        let child = Child::spawn(command.args(["devices", "--json"]), "weir devices --json")?;
        let ended = child.wait(Duration::from_secs(60))?.success()?;
        serde_json::from_str(&ended.stdout).context("weir devices --json did not print JSON")
    }
}

/// A folder for WEIR_RUN_DIR. Only its owner can read it: processes use no other.
pub fn run_folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir()?)
}

/// The folder with the library under test.
pub fn library() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/weir/lib/weir");
    std::env::var_os("WEIR_LIB_DIR").map_or(built, PathBuf::from)
}

/// Fails, with what to do, if the library is not built.
pub fn built() -> Result<(), String> {
    let exists = library().join("libibverbs.so.1").is_file();
    match exists {
        true => Ok(()),
        false => Err(format!("no libibverbs.so.1 in {}: run `make build`, or `make test`", library().display())),
    }
}
