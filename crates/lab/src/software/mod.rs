//! The applications of the thesis as they are (T chapter 6): ArgoDSM and SparkUCX, built from checkouts, run over UCX over
//! Weir by processes of their own.
//!
//! [`Software`] is what the caller has of them. [`Place`] is where they run. [`argo`] and [`spark`] build and run them.

pub mod argo;
mod counters;
mod packets;
mod place;
mod registrars;
pub mod spark;
pub mod ucx;

pub use counters::Counters;
pub use packets::{Evidence, evidence};
pub use place::Place;
pub use ucx::Ucx;

use crate::adapter::Adapter;
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

/// How UCX registers memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Pinned,
    OnDemand,
    /// As it does if it is not told.
    Untold,
}

/// An adapter, and how UCX registers memory with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub adapter: Adapter,
    pub memory: Memory,
    /// Under `weir run --guard auto`.
    pub guarded: bool,
}

impl Setting {
    /// The adapter with pinned memory.
    pub fn pinned(adapter: Adapter) -> Setting {
        Setting { adapter, memory: Memory::Pinned, guarded: false }
    }

    /// The adapter with memory on demand.
    pub fn on_demand(adapter: Adapter) -> Setting {
        Setting { memory: Memory::OnDemand, ..Setting::pinned(adapter) }
    }

    /// The adapter, and UCX is not told how to register memory.
    pub fn untold(adapter: Adapter) -> Setting {
        Setting { memory: Memory::Untold, ..Setting::pinned(adapter) }
    }

    /// The same with all guards.
    pub fn guarded(self) -> Setting {
        Setting { guarded: true, ..self }
    }

    /// "connectx4, on demand, guarded".
    pub fn name(&self) -> String {
        let memory = match self.memory {
            Memory::Pinned => "pinned",
            Memory::OnDemand => "on demand",
            Memory::Untold => "as UCX likes",
        };
        let guarded = if self.guarded { ", guarded" } else { "" };
        format!("{}, {memory}{guarded}", self.adapter.name())
    }
}

/// What is observed of a run besides the counters, each of which changes its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observe {
    Nothing,
    /// The packets of each process, in captures.
    Packets,
    /// Which libraries register memory on demand, by `weir doctor`.
    Registrars,
}
