//! What the memory regions of a process pin, and how many there have been.

use crate::stat::sheet;

/// Pinned memory and registrations of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes that pinned regions cover now: whole pages (of 4 KiB), each once.
    pub pinned_bytes: u64,
    /// The most that they were.
    pub pinned_peak: u64,
    /// Successful registrations of memory of the process so far, also those by `ibv_rereg_mr`.
    pub registrations: u64,
    /// Of these, on-demand.
    pub registrations_on_demand: u64,
}

impl Totals {
    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("pinned_bytes", self.pinned_bytes),
            ("pinned_peak", self.pinned_peak),
            ("registrations", self.registrations),
            ("registrations_on_demand", self.registrations_on_demand),
        ]
        .into_iter()
    }

    pub(super) fn pin(&mut self, bytes: u64) {
        self.pinned_bytes += bytes;
        self.pinned_peak = self.pinned_peak.max(self.pinned_bytes);
    }

    pub(super) fn unpin(&mut self, bytes: u64) {
        self.pinned_bytes -= bytes;
    }

    pub(super) fn register(&mut self, on_demand: bool) {
        self.registrations += 1;
        self.registrations_on_demand += u64::from(on_demand);
    }

    /// Stores them in the sheet. Callers exclude each other.
    pub(super) fn show(&self, shown: &sheet::Memory) {
        shown.pinned_peak.set(self.pinned_peak);
        shown.pinned_bytes.set(self.pinned_bytes);
        shown.registrations.set(self.registrations);
        shown.registrations_on_demand.set(self.registrations_on_demand);
    }
}
