//! MPI: `speed.c`, between two ranks, over what a [`Carrier`] names.

mod carrier;

pub use carrier::{Build, Carrier, Library};

use super::under_weir;
use anyhow::{Context, Error, Result, ensure};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use weir_stage::{Child, Side, Stage, locate};

/// Time limit of a run, beside the time that it measures.
const BOUND: Duration = Duration::from_secs(60);

const SOURCE: &str = include_str!("speed.c");

/// A test of the program: library, carrier, and what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Speed {
    pub library: Library,
    pub over: Carrier,
    pub test: Test,
    /// Bytes of a message.
    pub size: usize,
}

/// The tests of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// Half round trips.
    Latency,
    /// Windows of messages in one direction.
    Bandwidth,
    /// MPI_Put between MPI_Win_lock and MPI_Win_unlock.
    Put,
    /// MPI_Get between them.
    Get,
}

/// The compiled programs, one for each build.
#[derive(Default)]
pub struct Programs {
    built: HashMap<Build, TempDir>,
}

impl Speed {
    /// The programs that it needs, of those that Debian has.
    pub fn programs(&self) -> Vec<&'static str> {
        let build = match self.library.build(self.over) {
            Build::OpenMpi => ["mpirun.openmpi", "mpicc.openmpi"].as_slice(),
            Build::MpichUcx => ["mpirun.mpich", "mpicc.mpich"].as_slice(),
            Build::MpichFabric => &[],
        };
        build.iter().copied().chain(["cc", "taskset", "nsenter", "unshare"]).collect()
    }

    /// Why it cannot run here, although these programs are installed.
    pub fn refusal(&self) -> Option<String> {
        let build = self.library.build(self.over);
        build.launcher().and(build.compiler()).err()
    }
}

impl Programs {
    /// Runs a test for `seconds`. Returns a median time in seconds, or messages per second.
    pub fn run(&mut self, stage: &Stage, speed: &Speed, seconds: f64) -> Result<f64> {
        let Speed { library, over, test, size } = *speed;
        let build = library.build(over);
        let folder = self.build(build)?.path();
        let mut command = launch(stage, build, over.is_weir(), folder)?;
        if build == Build::OpenMpi {
            prepare_open_mpi(&mut command, stage);
            for (name, value) in over.components(stage) {
                command.args(["--mca", name, value]);
            }
        } else {
            command.args(["-n", "2"]);
        }
        command.envs(over.variables(stage));
        command.args(["sh", "-c", &script(stage, "")]).arg(folder.join("speed"));
        command.args([test.word(), &size.to_string(), &seconds.to_string()]);
        let bound = BOUND + Duration::from_secs_f64(2.0 * seconds);
        let ended = Child::spawn(&mut command, "mpirun")?.wait(bound)?.success()?;
        test.parse(&ended.stdout)
    }

    /// The folder of the build's program, which is compiled at its first use.
    fn build(&mut self, build: Build) -> Result<&TempDir> {
        match self.built.entry(build) {
            Entry::Occupied(built) => Ok(built.into_mut()),
            Entry::Vacant(place) => {
                let folder = tempfile::tempdir()?;
                compile(build, folder.path(), "speed", &[("speed.c", SOURCE)], &[])?;
                Ok(place.insert(folder))
            }
        }
    }
}

impl Test {
    fn word(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Bandwidth => "bandwidth",
            Test::Put => "put",
            Test::Get => "get",
        }
    }

    fn parse(self, output: &str) -> Result<f64> {
        let value = output.lines().find_map(|line| line.strip_prefix(self.word())?.trim().parse::<f64>().ok());
        value.filter(|figure| *figure > 0.0).with_context(|| format!("speed printed no figure: {output}"))
    }
}

/// The launcher of a build on side A, over Weir or not. As root, all ranks end with it, although they have process groups of
/// their own. Files go to `folder`: they have names of process IDs, which other namespaces have too.
pub fn launch(stage: &Stage, build: Build, over_weir: bool, folder: &Path) -> Result<Command> {
    let launcher = build.launcher().map_err(Error::msg)?;
    let alone = nix::unistd::geteuid().is_root().then(|| locate("unshare")).transpose()?;
    let first = alone.as_ref().unwrap_or(&launcher);
    let mut command =
        if over_weir { under_weir::command(stage, Side::A, first)? } else { stage.command(Side::A, first) };
    if alone.is_some() {
        command.args(["--pid", "--fork", "--kill-child"]).arg(&launcher);
    }
    command.env("TMPDIR", folder).env("WEIR_RUN_DIR", folder);
    Ok(command)
}

/// What Open MPI's launcher needs for two ranks on a stage.
pub fn prepare_open_mpi(command: &mut Command, stage: &Stage) {
    // A rank needs its core: neither an affinity of the launcher's nor offers of the core.
    let words = "--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 0 -np 2";
    command.args(words.split(' '));
    if !stage.is_one_host() && stage.loopback_reason().is_none() {
        // The rank of the other namespace must reach the launcher.
        command.env("PMIX_MCA_ptl_base_remote_connections", "1");
        command.env("PMIX_MCA_ptl_base_if_include", stage.interface());
    }
}

/// Writes files with their texts to a folder, and compiles the first one, with further options. Returns the program.
pub fn compile(build: Build, folder: &Path, name: &str, files: &[(&str, &str)], options: &[&str]) -> Result<PathBuf> {
    for (file, text) in files {
        std::fs::write(folder.join(file), text).with_context(|| format!("writing {file}"))?;
    }
    let program = folder.join(name);
    let mut compiler = Command::new(build.compiler().map_err(Error::msg)?);
    compiler.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(&program).arg(folder.join(files[0].0)).args(options);
    let output = compiler.output().with_context(|| format!("{build:?}: mpicc"))?;
    ensure!(output.status.success(), "{build:?}: mpicc: {}", String::from_utf8_lossy(&output.stderr));
    Ok(program)
}

/// A script that takes the program as its arguments: each rank runs on the core and in the namespace of its side, rank 1 after
/// `before`. The launcher is on side A.
pub fn script(stage: &Stage, before: &str) -> String {
    let core = stage.core(Side::B);
    let enter = match stage.namespace_path(Side::B) {
        Some(namespace) if !stage.is_one_host() => format!("nsenter --net={namespace} "),
        _ => String::new(),
    };
    let before = if before.is_empty() { String::new() } else { format!("{before} || exit; ") };
    format!(
        r#"[ "${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}" = 0 ] && exec "$0" "$@"; {before}exec {enter}taskset -c {core} "$0" "$@""#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_among_other_lines() {
        assert_eq!(Test::Latency.parse("a warning\nlatency 1.5e-06\n").unwrap(), 1.5e-6);
        assert_eq!(Test::Bandwidth.parse("bandwidth 12000.5\n").unwrap(), 12000.5);
        assert!(Test::Latency.parse("bandwidth 12000.5\n").is_err() && Test::Latency.parse("latency 0\n").is_err());
    }
}
