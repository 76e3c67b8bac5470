//! The kernel's Soft-RoCE in a guest: `tests/interop/run.py` with few programs. `make test-interop` runs all.

use crate::bed::{WEIR, library};
use anyhow::Result;
use libtest_mimic::{Failed, Trial};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use weir_stage::Child;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/interop");
/// The guest's start, and all programs with their own limits.
const WITHIN: Duration = Duration::from_secs(400);

pub fn trials() -> Vec<Trial> {
    let run = || short().map_err(|error| Failed::from(format!("{error:#}")));
    // Elsewhere no guest is known.
    if !cfg!(target_arch = "x86_64") {
        return vec![];
    }
    let trial = Trial::test("guest/programs run between Weir and the kernel's Soft-RoCE", run);
    vec![match missing() {
        None => trial,
        Some(need) => trial.with_kind(format!("needs {need}")).with_ignored_flag(true),
    }]
}

/// What this machine lacks.
fn missing() -> Option<&'static str> {
    let kernel = Path::new(FOLDER).join("../../target/interop/kernel/complete");
    if !nix::unistd::geteuid().is_root() {
        Some("root")
    } else if weir_stage::locate("qemu-system-x86_64").is_err() {
        Some("qemu")
    } else if !kernel.exists() {
        Some("a kernel of Debian: tests/interop/kernel.sh")
    } else {
        None
    }
}

fn short() -> Result<()> {
    let mut command = Command::new("setpriv");
    // Everything ends with it, in whatever way it ends.
    command.args(["--pdeathsig", "KILL", "--"]).arg(Path::new(FOLDER).join("run.py")).process_group(0);
    command.args(["--short", "--weir", WEIR, "--tools"]).arg(library()).env("WEIR_LIB_DIR", library());
    Child::spawn(&mut command, "tests/interop/run.py --short")?.wait(WITHIN)?.success()?;
    Ok(())
}
