//! The usual applications.

use super::kernel::Kernel;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::Path;
use weir_stage::locate;

/// A program of MPI with its input.
#[derive(Debug)]
pub struct Application {
    pub name: &'static str,
    pub what: &'static str,
    pub ranks: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// LAMMPS with this input.
    Lammps(&'static str),
    Hpcc,
    NetPipe,
    Kernel(Kernel),
}

/// What to start, and where its time is found.
pub struct Prepared {
    /// Program and arguments of each rank.
    pub command: Vec<OsString>,
    /// The number behind this text is the time, seconds; `None`: the whole command's.
    pub after: Option<&'static str>,
    /// What it prints when all is right.
    pub proof: Proof,
}

/// How a run shows that its results are right.
pub enum Proof {
    /// Status 0, because the program checks its results.
    Status,
    /// A file in the folder of the run has this line.
    Line { file: &'static str, line: &'static str },
}

/// The potential of copper, which Debian's package brings.
const POTENTIAL: &str = "/usr/share/lammps/potentials/Cu_u3.eam";

impl Application {
    /// In the order of the report.
    pub const ALL: [Application; 10] = [
        lammps("lammps-lj-4", "LAMMPS, 32,000 atoms, Lennard-Jones, 4 ranks", 4, include_str!("in.lj")),
        lammps("lammps-lj-8", "LAMMPS, 32,000 atoms, Lennard-Jones, 8 ranks", 8, include_str!("in.lj")),
        lammps("lammps-eam-4", "LAMMPS, 32,000 atoms of copper, embedded atoms, 4 ranks", 4, include_str!("in.eam")),
        lammps("lammps-eam-8", "LAMMPS, 32,000 atoms of copper, embedded atoms, 8 ranks", 8, include_str!("in.eam")),
        Application { name: "hpcc", what: "HPCC, all its tests, 4 ranks", ranks: 4, kind: Kind::Hpcc },
        Application { name: "netpipe", what: "NetPIPE, up to 4 MiB, 2 ranks", ranks: 2, kind: Kind::NetPipe },
        kernel("gradient", "a kernel like NAS CG: planes to neighbours, sums, 4 ranks", Kernel::Gradient),
        kernel("sort", "a kernel like NAS IS: MPI_Alltoallv into new memory, 4 ranks", Kernel::Sort),
        kernel("transpose", "a kernel like NAS FT: MPI_Alltoall of 1 MiB blocks, 4 ranks", Kernel::Transpose),
        kernel("arrays", "a kernel like Global Arrays: locks, MPI_Get, MPI_Accumulate, 4 ranks", Kernel::Arrays),
    ];

    /// What must be installed.
    pub fn programs(&self) -> Vec<&'static str> {
        let own: &[&str] = match self.kind {
            Kind::Lammps(_) => &["lmp"],
            Kind::Hpcc => &["hpcc"],
            Kind::NetPipe => &["NPopenmpi"],
            Kind::Kernel(_) => &["mpicc.openmpi", "cc"],
        };
        ["mpirun.openmpi"].iter().chain(own).copied().collect()
    }

    /// Writes its input to this folder, in which it will run.
    pub fn prepare(&self, folder: &Path, quick: bool) -> Result<Prepared> {
        let write =
            |name: &str, text: &str| std::fs::write(folder.join(name), text).with_context(|| format!("writing {name}"));
        let command = |program: &str, arguments: &str| -> Result<Vec<OsString>> {
            let words = arguments.split_whitespace().map(OsString::from);
            Ok([locate(program)?.into_os_string()].into_iter().chain(words).collect())
        };
        Ok(match &self.kind {
            Kind::Lammps(input) => {
                ensure!(Path::new(POTENTIAL).exists(), "{POTENTIAL} is missing: apt install lammps-data");
                write("in", input)?;
                let steps = if quick { 20 } else { 100 };
                let arguments = format!("-in in -log none -var steps {steps} -var potential {POTENTIAL}");
                let command = command("lmp", &arguments)?;
                Prepared { command, after: Some("Loop time of"), proof: Proof::Status }
            }
            Kind::Hpcc => {
                write("hpccinf.txt", include_str!("hpccinf.txt"))?;
                let proof = Proof::Line { file: "hpccoutf.txt", line: "Success=1" };
                Prepared { command: command("hpcc", "")?, after: None, proof }
            }
            Kind::NetPipe => {
                let repeats = if quick { 20 } else { 200 };
                let command = command("NPopenmpi", &format!("-u 4194304 -n {repeats} -o netpipe.out"))?;
                Prepared { command, after: None, proof: Proof::Status }
            }
            Kind::Kernel(kernel) => {
                let program = kernel.build(folder)?;
                let command = vec![program.into(), kernel.steps(quick).to_string().into()];
                Prepared { command, after: Some("time"), proof: Proof::Status }
            }
        })
    }
}

const fn lammps(name: &'static str, what: &'static str, ranks: u32, input: &'static str) -> Application {
    Application { name, what, ranks, kind: Kind::Lammps(input) }
}

const fn kernel(name: &'static str, what: &'static str, kernel: Kernel) -> Application {
    Application { name, what, ranks: 4, kind: Kind::Kernel(kernel) }
}
