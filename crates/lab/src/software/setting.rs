//! One setting of a run: the adapter, how UCX registers memory with it, and what is observed.

use crate::adapter::Adapter;

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
