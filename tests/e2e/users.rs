//! Two users on one machine: processes of different users share an address and connect to each other.

use crate::bed::{Bed, Topology, WEIR, library};
use crate::{needing_root, trial};
use anyhow::{Context, Result};
use libtest_mimic::Trial;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use weir_stage::{Side, pair};

/// An unprivileged user and group ID that exist on every machine, and another pair that owns no file.
pub const UNPRIVILEGED_USER: u32 = 65534;
const OTHER_USER: u32 = 64321;
const ROOT: u32 = 0;

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("trials with two users are ignored: they need root");
    }
    let mut trials = vec![];
    for topology in Topology::ALL {
        for (server, client) in [(ROOT, UNPRIVILEGED_USER), (UNPRIVILEGED_USER, ROOT), (UNPRIVILEGED_USER, OTHER_USER)]
        {
            let name = format!("ib_write_bw with a server of user {server} and a client of user {client}");
            trials.push(needing_root(trial(topology, &name, move |bed| users(bed, server, client)), root));
        }
    }
    trials
}

fn users(bed: &Bed, server: u32, client: u32) -> Result<()> {
    let copy = readable_copy()?;
    let port = bed.stage.free_port(Side::A)?;
    let command = |side: Side, user: u32| {
        let mut command = bed.bare(side, "setpriv");
        command.env("WEIR_LIB_DIR", copy.path()).current_dir("/");
        command.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]);
        // A change of user clears the parent-death signal that the stage has set.
        command.args(["--pdeathsig", "KILL"]).arg(copy.path().join("weir")).args(["run", "--"]);
        let line = format!("ib_write_bw -F -d {} -p {port} -n 1000", bed.stage.device());
        command.args(line.split_whitespace());
        command
    };
    let mut client = command(Side::B, client);
    client.arg(bed.stage.address(Side::A).to_string());
    pair::run(&mut command(Side::A, server), &mut client, port, Duration::from_secs(30))?.success()?;
    Ok(())
}

/// A copy of the command and the library that every user can read: the source tree may be in a private home directory.
pub fn readable_copy() -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("weir-e2e-").permissions(Permissions::from_mode(0o755)).tempdir()?;
    let copy = |from: &Path, to: &str| -> Result<()> {
        let to = folder.path().join(to);
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(fs::set_permissions(&to, Permissions::from_mode(0o755))?)
    };
    copy(Path::new(WEIR), "weir")?;
    copy(&library().join("libibverbs.so.1"), "libibverbs.so.1")?;
    Ok(folder)
}
