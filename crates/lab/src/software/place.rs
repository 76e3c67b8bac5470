//! Where the applications run: two namespaces as two hosts, or loopback; each process under `weir run`.

use super::registrars::registrars;
use super::{Observe, Setting};
use crate::environment::clean;
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_stage::{Side, Stage};

/// Bytes of a packet on the stage: the papers' MTU of 4096 needs jumbo frames.
const STAGE_MTU: u32 = 9000;
/// The folder of captures, in a run's own.
const CAPTURES: &str = "captures";
/// UCX's transports: RC, UD for connections, and TCP for listening to a socket address, where a program asks for that.
pub const TRANSPORTS: &str = "rc,ud,self";

/// Two hosts, and the command and library of Weir.
pub struct Place {
    pub stage: Stage,
    weir: PathBuf,
    library: PathBuf,
}

/// A run: its own folder, and how its processes get at the adapter.
pub struct Scene<'a> {
    pub place: &'a Place,
    pub setting: &'a Setting,
    pub folder: tempfile::TempDir,
    /// What `weir run --profile` gets.
    profile: String,
    observe: Observe,
}

impl Place {
    /// Makes the stage. The command is this process's program.
    pub fn new() -> Result<Place> {
        let weir = std::env::current_exe().context("cannot find the path of the weir command")?;
        let library = weir_stage::library_folder()?;
        let main = library.join("libibverbs.so.1");
        ensure!(main.is_file(), "{} is not built: run `make build`", main.display());
        // Several processes share two cores: none has a core of its own.
        Ok(Place { stage: Stage::new(STAGE_MTU)?.unpinned(), weir, library })
    }

    /// A run with a folder of its own.
    pub fn scene<'a>(&'a self, setting: &'a Setting, observe: Observe) -> Result<Scene<'a>> {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("counters"))?;
        let profile = setting.adapter.profile(None, folder.path(), 0)?;
        std::fs::create_dir(folder.path().join(CAPTURES))?;
        // The folder of counters is private, as Weir wants it.
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.path().join("counters"), private)?;
        Ok(Scene { place: self, setting, folder, profile, observe })
    }
}

impl Scene<'_> {
    /// The folder in which its processes count.
    pub fn counters(&self) -> PathBuf {
        self.folder.path().join("counters")
    }

    /// A command on a side, with no word before `program`.
    pub fn plain(&self, side: Side, program: impl AsRef<Path>) -> Command {
        let mut command = clean(self.place.stage.command(side, program.as_ref()));
        command.env("WEIR_LIB_DIR", &self.place.library).env("WEIR_RUN_DIR", self.counters());
        command.env("TMPDIR", self.folder.path());
        command
    }

    /// A command that runs a program and all that it starts under `weir run`, on a side.
    pub fn weir(&self, side: Side, program: impl Into<OsString>) -> Command {
        self.run(self.plain(side, &self.place.weir), program.into())
    }

    /// The same, and `weir doctor` watches if registrars are observed: of one command of a scene at most.
    pub fn watched(&self, side: Side, program: impl Into<OsString>) -> Command {
        self.doctor(self.plain(side, &self.place.weir), program.into())
    }

    /// The same for a launcher of MPI: its ranks have process groups of their own, and end with it all the same, where there are
    /// namespaces.
    pub fn launcher(&self, side: Side, program: impl Into<OsString>) -> Command {
        if self.place.stage.namespace_path(side).is_none() {
            return self.watched(side, program);
        }
        let mut alone = self.plain(side, "unshare");
        alone.args(["--pid", "--fork", "--kill-child"]).arg(&self.place.weir);
        self.doctor(alone, program.into())
    }

    fn doctor(&self, mut command: Command, program: OsString) -> Command {
        if self.observe == Observe::Registrars {
            command.args(["doctor", "--json", "--output"]).arg(self.report()).arg("--").arg(&self.place.weir);
        }
        self.run(command, program)
    }

    fn run(&self, mut command: Command, program: OsString) -> Command {
        command.args(["run", "--mpi", "off", "--profile", &self.profile]);
        // Two processes stand for two hosts, even if they are in one namespace.
        command.args(["--local", "off"]);
        if self.setting.guarded {
            command.args(["--guard", "auto"]);
        }
        if self.observe == Observe::Packets {
            let captures = self.folder.path().join(CAPTURES).join("%p.pcapng");
            command.arg("--capture").arg(captures).args(["--capture-snap", "headers"]);
        }
        command.arg("--").arg(program);
        command
    }

    fn report(&self) -> PathBuf {
        self.folder.path().join("doctor.json")
    }

    /// The libraries that registered memory on demand, if that was observed.
    pub fn registrars(&self) -> Result<Vec<String>> {
        registrars(&self.report())
    }

    /// The captures of all processes, if packets were observed.
    pub fn captured(&self) -> Result<Vec<PathBuf>> {
        let folder = self.folder.path().join(CAPTURES);
        let mut all: Vec<PathBuf> = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
        all.sort();
        Ok(all)
    }
}
