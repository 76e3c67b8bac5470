//! The applications of the thesis as they are (T chapter 6): ArgoDSM and SparkUCX, built from checkouts, run over UCX over
//! Weir by processes of their own.
//!
//! [`Software`] is what the caller has of them. [`Place`] is where they run. [`argo`] and [`spark`] build and run them.

pub mod argo;
mod counters;
mod packets;
mod place;
mod registrars;
mod setting;
pub mod spark;
pub mod ucx;

pub use counters::Counters;
pub use packets::{Evidence, evidence};
pub use place::Place;
pub use setting::{Memory, Observe, Setting};
pub use ucx::Ucx;

use anyhow::{Result, ensure};
use std::path::PathBuf;

/// What the caller has of the applications, and how much to run.
#[derive(Clone, Debug, Default)]
pub struct Software {
    /// A checkout of ArgoDSM, with its submodule `qd`.
    pub argodsm: Option<PathBuf>,
    /// A checkout of SparkUCX.
    pub sparkucx: Option<PathBuf>,
    /// Prefix of an installation of UCX; `None`: the system's.
    pub ucx: Option<PathBuf>,
    /// Folder of a Java of 8 to 13, as JAVA_HOME; `None`: one that is found.
    pub java: Option<PathBuf>,
    /// Few runs of small inputs.
    pub quick: bool,
}

impl Software {
    /// An error if programs are missing, or if UCX is not fit for memory on demand.
    pub fn check(&self, programs: &[&'static str]) -> Result<()> {
        let packages = weir_stage::missing(programs.iter().copied());
        ensure!(packages.is_empty(), "programs are missing: apt install {}", packages.join(" "));
        Ucx::find(self.ucx.as_deref())?.check()
    }
}
