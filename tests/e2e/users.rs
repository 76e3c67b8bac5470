//! Two users on one machine: processes of different owners share an address and talk to each other.

use crate::bed::{Bed, Place, WEIR, library};
use crate::{needing_root, trial};
use anyhow::{Context, Result};
use libtest_mimic::Trial;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use weir_cli::programs::pair;
use weir_cli::stage::Side;

/// `nobody` and `nogroup`, and another pair that owns nothing.
pub const NOBODY: u32 = 65534;
const STRANGER: u32 = 64321;
const ROOT: u32 = 0;

pub fn trials() -> Vec<Trial> {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("tests of two users are ignored: needs root");
    }
    let mut trials = vec![];
    for place in Place::ALL {
        for (server, client) in [(ROOT, NOBODY), (NOBODY, ROOT), (NOBODY, STRANGER)] {
            let name = format!("ib_write_bw with a server of user {server} and a client of user {client}");
            trials.push(needing_root(trial(place, &name, move |bed| users(bed, server, client)), root));
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
        // A change of user clears the signal that ends a child with us.
        command.args(["--pdeathsig", "KILL"]).arg(copy.path().join("weir")).args(["run", "--"]);
        let line = format!("ib_write_bw -F -d {} -p {port} -n 1000", bed.stage.device(side));
        command.args(line.split_whitespace());
        command
    };
    let mut client = command(Side::B, client);
    client.arg(bed.stage.address(Side::A).to_string());
    pair::run(&mut command(Side::A, server), &mut client, port, Duration::from_secs(30))?.success()?;
    Ok(())
}

/// The command and the library where everybody can read them: the source tree may be in a home.
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
