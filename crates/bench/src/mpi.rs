//! Open MPI: `mpi_speed.c`, between two ranks.
//!
//! Over Weir the messages go by UCX (`pml ucx`), over TCP and shared memory by Open MPI itself (`pml ob1` with the
//! `btl` of each): what a user of Open MPI has with and without an RDMA adapter.

use super::peers::Over;
use super::under_weir;
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use weir_stage::{Child, Side, Stage, locate};

/// What it needs.
pub const PROGRAMS: [&str; 6] = ["mpirun.openmpi", "mpicc.openmpi", "cc", "taskset", "nsenter", "unshare"];

/// Time limit of a run, beside the time that it measures.
const BOUND: Duration = Duration::from_secs(60);

const SOURCE: &str = include_str!("mpi_speed.c");

/// The compiled program.
pub struct Program {
    folder: TempDir,
}

/// The two tests of the program.
#[derive(Clone, Copy)]
pub enum Test {
    /// Half round trips.
    Latency,
    /// Windows of messages in one direction.
    Bandwidth,
}

impl Program {
    /// Compiles it.
    pub fn build() -> Result<Program> {
        let program = Program { folder: tempfile::tempdir()? };
        let source = program.folder.path().join("mpi_speed.c");
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new(locate("mpicc.openmpi")?);
        let output = compiler.args(["-O2", "-o", &program.path()?]).arg(&source).output().context("mpicc.openmpi")?;
        ensure!(output.status.success(), "mpicc.openmpi: {}", String::from_utf8_lossy(&output.stderr));
        Ok(program)
    }

    fn path(&self) -> Result<String> {
        Ok(self.folder.path().join("mpi_speed").to_str().context("a path that is not UTF-8")?.to_owned())
    }

    /// Runs a test for `seconds`. Returns the median of half round trips in seconds, or messages per second.
    pub fn run(&self, stage: &Stage, over: Over, test: Test, size: usize, seconds: f64) -> Result<f64> {
        let launcher = locate("mpirun.openmpi")?;
        // All ranks end with the launcher: they have process groups of their own.
        let alone = nix::unistd::geteuid().is_root().then(|| locate("unshare")).transpose()?;
        let first = alone.as_ref().unwrap_or(&launcher);
        let mut command = match over {
            Over::Weir => under_weir::command(stage, Side::A, first)?,
            Over::Tcp | Over::SharedMemory => stage.command(Side::A, first),
        };
        if alone.is_some() {
            command.args(["--pid", "--fork", "--kill-child"]).arg(&launcher);
        }
        // Files there have names of process IDs, which other namespaces have too.
        command.env("TMPDIR", self.folder.path()).env("WEIR_RUN_DIR", self.folder.path());
        // A rank needs its core: neither an affinity of the launcher's nor offers of the core.
        let words = "--allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 0 -np 2";
        command.args(words.split(' '));
        for (name, value) in components(over, stage) {
            command.args(["--mca", name, value]);
        }
        if over == Over::Weir {
            command.envs(over.variables(stage)).env("UCX_LOG_LEVEL", "error");
        }
        if !stage.is_one_host() && stage.loopback_reason().is_none() {
            // The rank of the other namespace must reach the launcher.
            command.env("PMIX_MCA_ptl_base_remote_connections", "1");
            command.env("PMIX_MCA_ptl_base_if_include", stage.interface());
        }
        command.args(["sh", "-c", &script(stage), &self.path()?]);
        command.args([test.word(), &size.to_string(), &seconds.to_string()]);
        let bound = BOUND + Duration::from_secs_f64(2.0 * seconds);
        let ended = Child::spawn(&mut command, "mpirun")?.wait(bound)?.success()?;
        test.parse(&ended.stdout)
    }
}

impl Test {
    fn word(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Bandwidth => "bandwidth",
        }
    }

    fn parse(self, output: &str) -> Result<f64> {
        let value = output.lines().find_map(|line| line.strip_prefix(self.word())?.trim().parse::<f64>().ok());
        value.filter(|figure| *figure > 0.0).with_context(|| format!("mpi_speed printed no figure: {output}"))
    }
}

/// The components of Open MPI, so that nothing else carries the messages.
fn components(over: Over, stage: &Stage) -> Vec<(&'static str, &'static str)> {
    match over {
        Over::Weir => vec![("pml", "ucx"), ("osc", "ucx"), ("btl", "self")],
        Over::Tcp => vec![("pml", "ob1"), ("btl", "tcp,self"), ("btl_tcp_if_include", stage.interface())],
        Over::SharedMemory => vec![("pml", "ob1"), ("btl", "vader,self")],
    }
}

/// Each rank runs on the core and in the namespace of its side; the launcher is on side A.
fn script(stage: &Stage) -> String {
    let core = stage.core(Side::B);
    let enter = match stage.namespace_path(Side::B) {
        Some(namespace) if !stage.is_one_host() => format!("nsenter --net={namespace} "),
        _ => String::new(),
    };
    format!(r#"[ "$OMPI_COMM_WORLD_RANK" = 0 ] && exec "$0" "$@"; exec {enter}taskset -c {core} "$0" "$@""#)
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
