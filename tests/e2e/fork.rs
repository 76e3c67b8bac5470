//! A process that forks while it uses RDMA.

use crate::bed::{Bed, Topology};
use crate::trial;
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_stage::{Child, Side};

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<_> =
        Topology::ALL.map(|topology| trial(topology, "a forked child does not disturb its parent", forks)).into();
    trials.push(trial(
        Topology::Loopback,
        "a child forked while other threads use verbs does not hang",
        forks_while_busy,
    ));
    let name = "workers of Python's multiprocessing use the device beside their parent";
    trials.push(trial(Topology::Loopback, name, workers));
    trials
}

fn forks(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile("e2e/fork.c", folder.path())?;
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?;
    let words = [program.into_os_string(), bed.stage.device().into(), gid.to_string().into()];
    let ended = Child::spawn(&mut bed.weir(Side::A, &[], words), "fork.c")?.wait(Duration::from_secs(60))?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

fn forks_while_busy(bed: &Bed) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = compile("e2e/fork_busy.c", folder.path())?;
    let words = [program.into_os_string(), bed.stage.device().into(), "200".into()];
    let mut command = bed.weir(Side::A, &[], words);
    // Each child creates its own folder there.
    command.env("WEIR_RUN_DIR", folder.path().join("run"));
    let ended = Child::spawn(&mut command, "fork_busy.c")?.wait(Duration::from_secs(120))?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

fn workers(bed: &Bed) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/worker_processes.py");
    let gid = bed.gid_index(Side::A, bed.stage.address(Side::A))?.to_string();
    // pyverbs is built for the interpreter of the distribution.
    let words = ["/usr/bin/python3", script, &bed.stage.device(), &gid].map(str::to_owned);
    let mut command = bed.weir(Side::A, &[], words);
    let ended = Child::spawn(&mut command, "worker_processes.py")?.wait(Duration::from_secs(120))?.success()?;
    ensure!(ended.stdout == "ok\n", "{}", ended.printed());
    Ok(())
}

/// Compiles `tests/SOURCE` with the installed headers and returns the path of the program in `folder`.
pub fn compile(source: &str, folder: &Path) -> Result<PathBuf> {
    compile_with(source, folder, &[])
}

/// As [`compile`], with other libraries too.
pub fn compile_with(source: &str, folder: &Path, libraries: &[&str]) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(source);
    let program = folder.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .args(libraries)
        .args(["-libverbs", "-lpthread"]);
    let output = cc.output().context("cannot run cc (package gcc)")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}
