//! ArgoDSM over MPI over UCX: built from a checkout, run by two processes.

use super::counters::Watch;
use super::place::TRANSPORTS;
use super::{Counters, Observe, Place, Setting, Ucx};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, locate};

/// What the build needs besides the checkout.
pub const NEEDS: [&str; 6] = ["cmake", "make", "mpicxx.mpich", "mpirun.mpich", "nsenter", "unshare"];

/// The program of T fig. 6.1.
const INIT: &str = include_str!("init.cpp");
/// The tutorial's example in a checkout.
const EXAMPLE: &str = "docs/_includes/argo_example.cpp";
/// What T fig. 6.3 changes in it.
const CHANGES: [(&str, &str); 2] =
    [("int data_length = 160000;", "int data_length = 1600000;"), ("1*1024*1024*1024UL", "10*1000*1000UL")];
/// The folder of the build, in the checkout.
const BUILD: &str = "build/weir";
/// The limit of a run, if the caller sets none.
const LIMIT: Duration = Duration::from_secs(60);
/// The limit of a command of the build.
const BUILDING: Duration = Duration::from_secs(600);

/// Programs that are linked to ArgoDSM.
pub struct Argo {
    init: PathBuf,
    example: PathBuf,
    pub ucx: Ucx,
    /// The limit of a run.
    limit: Duration,
}

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Begins and ends.
    Init,
    /// The tutorial's.
    Example,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Run {
    /// From the start of the launcher to its end.
    pub time: Duration,
    pub counters: Counters,
    /// If they were observed.
    pub captures: Vec<PathBuf>,
    /// The libraries that registered memory on demand, if they were observed.
    pub registrars: Vec<String>,
    /// The run's folder with its captures, which the end of this value removes.
    _folder: Arc<tempfile::TempDir>,
}

impl Argo {
    /// Builds the programs. `checkout`: ArgoDSM's.
    pub fn build(checkout: &Path, ucx: Ucx) -> Result<Argo> {
        let checkout = checkout.canonicalize().with_context(|| format!("--argodsm {}", checkout.display()))?;
        let source = checkout.join("src/argo.hpp");
        ensure!(
            source.is_file(),
            "--argodsm: {} is no checkout of ArgoDSM: it has no src/argo.hpp",
            checkout.display()
        );
        ensure!(
            checkout.join("submodules/qd/qd.hpp").is_file(),
            "--argodsm: the checkout lacks its submodule qd: git -C {} submodule update --init submodules/qd",
            checkout.display()
        );
        let build = checkout.join(BUILD);
        std::fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
        let mut configure = Command::new(locate("cmake")?);
        // Its tests and its backend for one process need more submodules, and are not used.
        configure.arg("-S").arg(&checkout).arg("-B").arg(&build).args([
            "-DGIT_SUBMODULE=OFF",
            "-DARGO_TESTS=OFF",
            "-DARGO_BACKEND_MPI=ON",
            "-DARGO_BACKEND_SINGLENODE=OFF",
            "-DARGO_USE_LIBNUMA=OFF",
            "-DCMAKE_C_COMPILER=mpicc.mpich",
            "-DCMAKE_CXX_COMPILER=mpicxx.mpich",
        ]);
        built(configure, "cmake")?;
        let mut make = Command::new(locate("cmake")?);
        make.arg("--build").arg(&build).args(["--parallel", "2"]);
        built(make, "the build of ArgoDSM")?;
        std::fs::write(build.join("init.cpp"), INIT)?;
        std::fs::write(build.join("example.cpp"), example(&checkout)?)?;
        let compile = |name: &str| -> Result<PathBuf> {
            let program = build.join(name);
            let mut compile = Command::new(locate("mpicxx.mpich")?);
            compile.args(["-std=c++17", "-O2", "-o"]).arg(&program).arg(build.join(format!("{name}.cpp")));
            let include = |folder: PathBuf| format!("-I{}", folder.display());
            compile.args([include(checkout.join("src")), include(build.join("config"))]);
            compile.args([include(checkout.join("submodules/qd")), format!("-L{}", build.join("lib").display())]);
            compile.args(["-largo", "-largobackend-mpi", "-pthread"]);
            compile.arg(format!("-Wl,-rpath,{}", build.join("lib").display()));
            built(compile, name)?;
            Ok(program)
        };
        Ok(Argo { init: compile("init")?, example: compile("example")?, ucx, limit: LIMIT })
    }

    /// The same with another limit of a run.
    pub fn with_limit(self, limit: Duration) -> Argo {
        Argo { limit, ..self }
    }

    /// Whether this release of UCX can run the tutorial's example: ArgoDSM makes memory read-only, and writes from it. Later
    /// releases register such memory for writing first, which fails (Bad address), on every adapter.
    pub fn runs_example(&self) -> bool {
        self.ucx.writes_from_read_only()
    }

    /// Runs a program to its end, on both sides of the place.
    pub fn run(&self, place: &Place, program: Program, setting: &Setting, observe: Observe) -> Result<Run> {
        let scene = place.scene(setting, observe)?;
        let path = match program {
            Program::Init => &self.init,
            Program::Example => &self.example,
        };
        let mut command = scene.launcher(Side::A, "mpirun.mpich");
        command.args(["-np", "2"]);
        match place.stage.namespace_path(Side::B) {
            Some(other) => {
                let script = format!(r#"[ "$PMI_RANK" = 0 ] && exec "$0"; exec nsenter --net={other} "$0""#);
                command.args(["sh", "-c", &script]).arg(path);
            }
            None => _ = command.arg(path),
        }
        command.env("UCX_TLS", TRANSPORTS).envs(self.ucx.variables(setting.memory));
        // Both ranks run on one machine, and are to find each other as two hosts do.
        command.env("MPIR_CVAR_NOLOCAL", "1");
        let watch = Watch::begin(&scene.counters());
        let began = Instant::now();
        let ended = Child::spawn(&mut command, "mpirun.mpich")?.wait(self.limit);
        let time = began.elapsed();
        let counters = watch.end();
        let ended = ended.with_context(|| format!("{program:?} on {}", setting.name()))?.success()?;
        if program == Program::Example {
            ensure!(ended.stdout.contains("Max found to be"), "the example found nothing: {}", ended.printed());
        }
        ensure!(counters.processes == 2, "{} processes used Weir instead of 2", counters.processes);
        let (captures, registrars) = (scene.captured()?, scene.registrars()?);
        Ok(Run { time, counters, captures, registrars, _folder: Arc::new(scene.folder) })
    }
}

/// The tutorial's example with the changes of T fig. 6.3.
fn example(checkout: &Path) -> Result<String> {
    let path = checkout.join(EXAMPLE);
    let mut text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for (from, to) in CHANGES {
        ensure!(text.contains(from), "{} has no `{from}`, which T fig. 6.3 changes", path.display());
        text = text.replace(from, to);
    }
    Ok(text)
}

/// Runs a command of a build to its end.
pub fn built(mut command: Command, name: &str) -> Result<()> {
    weir_stage::ends_with_this_thread(&mut command);
    Child::spawn(&mut command, name)?.wait(BUILDING)?.success()?;
    Ok(())
}
