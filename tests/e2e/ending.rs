//! The ends of processes: `ending.c`, a receiver that ends as soon as it has received a message; `late_close.c`, a device
//! that is closed in an exit handler.

use crate::bed::{Bed, Topology};
use crate::{fork, trial};
use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use std::time::Duration;
use weir_stage::{Child, Side};

pub fn trials() -> Vec<Trial> {
    let name = "a receiver that ends as soon as it has a message does not fail the send of its peer";
    let mut trials: Vec<Trial> = Topology::ALL.map(|topology| trial(topology, name, ends)).into();
    trials.push(trial(Topology::Loopback, "a device that an exit handler closes may be logged about", closes_late));
    trials
}

/// The log needs variables of its thread, which are destroyed by then.
fn closes_late(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("e2e/late_close.c", folder.path())?;
    let child = Child::spawn(&mut bed.weir(Side::A, &["--log", "debug"], [program]), "late_close.c")?;
    let ended = child.wait(Duration::from_secs(30))?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

fn ends(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = fork::compile("e2e/ending.c", folder.path())?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    let words = [program.into_os_string(), bed.stage.device().into(), gid.to_string().into()];
    let child = Child::spawn(&mut bed.weir(Side::A, &[], words), "ending.c")?;
    let ended = child.wait(Duration::from_secs(300))?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}
