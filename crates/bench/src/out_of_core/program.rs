//! The two programs that need much memory: `weir-odp`, by verbs, and `core.c`, by MPI over `weir-odp`.

use super::limit::Limit;
use crate::mpi::{self, Build};
use crate::odp::program::{self, Memory};
use anyhow::Result;
use tempfile::TempDir;
use weir_stage::{Child, Side, Stage};

const MIB: u64 = 1 << 20;
const PASSES: u32 = 24;
/// Work for about eight seconds on an idle machine: long enough that swapping the buffer out once does not matter.
const WORK: u32 = 15;

/// How the program exchanges its buffer.
pub enum Way {
    /// READs of `weir-odp`.
    Verbs,
    /// Messages of `core.c` in this folder, by Open MPI.
    Mpi(TempDir),
}

/// Bytes that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// For the exchange.
    pub exchanged: u64,
    /// For the computation.
    pub computed: u64,
}

/// A program that runs in limited memory. Dropping it ends it.
pub struct Running {
    /// What prints the times.
    pub child: Child,
    /// The other side, if it is no child of `child`.
    pub peer: Option<Child>,
}

impl Way {
    /// By MPI; compiles the program.
    pub fn mpi() -> Result<Way> {
        let folder = tempfile::tempdir()?;
        let files =
            [("core.c", include_str!("core.c")), ("odp_work.h", include_str!("../../../../tests/c/odp_work.h"))];
        mpi::compile(Build::OpenMpi, folder.path(), "core", &files, &[])?;
        Ok(Way::Mpi(folder))
    }

    /// Memory that the process needs beside its buffers, bytes.
    pub fn overhead(&self) -> u64 {
        match self {
            Way::Verbs => 24 * MIB,
            Way::Mpi(_) => 40 * MIB,
        }
    }

    /// Its name in the report.
    pub fn name(&self) -> &'static str {
        match self {
            Way::Verbs => "verbs",
            Way::Mpi(_) => "mpi",
        }
    }

    /// Starts both sides, of which B is limited.
    pub fn start(&self, stage: &Stage, limit: &Limit, need: Need, memory: Memory) -> Result<Running> {
        let how = if memory == Memory::Odp { "odp" } else { "pinned" };
        let Need { exchanged, computed } = need;
        match self {
            Way::Verbs => {
                // The bench ends the run, so the program's own time limit (-t) is longer.
                let arguments = format!("-t 60 -m {how} -x {exchanged} -w {computed} -n {PASSES} -k {WORK} core");
                let (server, child) = program::start(stage, &arguments, |side, command| {
                    if side == Side::B {
                        limit.join(command);
                    }
                })?;
                Ok(Running { child, peer: Some(server) })
            }
            Way::Mpi(folder) => {
                let mut command = mpi::launch(stage, Build::OpenMpi, true, folder.path())?;
                mpi::prepare_open_mpi(&mut command, stage);
                let script = mpi::script(stage, &format!("echo 0 > {}", limit.members().display()));
                command.args(["sh", "-c", &script]).arg(folder.path().join("core")).arg(how);
                command.args([exchanged, computed, PASSES.into(), WORK.into()].map(|number: u64| number.to_string()));
                let scheme = if memory == Memory::Odp { "odp-optimal" } else { "pin-down" };
                command.env("WEIR_ODP_SCHEME", scheme);
                Ok(Running { child: Child::spawn(&mut command, "mpirun")?, peer: None })
            }
        }
    }
}
