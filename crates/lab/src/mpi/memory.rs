//! The memory of a process: its buffers in a region of the simulator, and pages that the operating system takes.

use super::script::BufferId;
use std::ops::Range;
use std::time::Duration;
use weir_msg::Buffer;
use weir_sim::{Backing, HostId, Paging, Region, Simulation};
use weir_transport::Chance;

pub const PAGE: u64 = 4096;

/// Buffers of a process, each at a page boundary and with a page behind it.
#[derive(Debug)]
pub struct Memory {
    pub region: Region,
    /// Offset and length of each buffer.
    buffers: Vec<(u64, u64)>,
    /// Pages that the operating system took although the adapter had them.
    pub taken: u64,
}

/// Pages that the operating system takes at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    pub after: Duration,
    /// Offset of each page in the region.
    pub pages: Vec<u64>,
}

impl Memory {
    pub fn new(sim: &mut Simulation, host: HostId, lengths: &[u64], paging: Paging) -> Memory {
        let mut end = 0;
        let place = |len: &u64| {
            let at = end;
            end += len.next_multiple_of(PAGE) + PAGE;
            (at, *len)
        };
        let buffers = lengths.iter().map(place).collect();
        Memory { region: sim.register(host, Backing::Phantom(end.max(PAGE)), paging), buffers, taken: 0 }
    }

    /// Bytes of a buffer.
    pub fn buffer(&self, id: BufferId, len: u64) -> Buffer {
        let (at, whole) = self.buffers[id];
        debug_assert!(len <= whole);
        Buffer::contiguous(self.region.addr + at, len)
    }

    /// Address and length of a buffer.
    pub fn range(&self, id: BufferId) -> (u64, u64) {
        let (at, len) = self.buffers[id];
        (self.region.addr + at, len)
    }

    /// Which pages the operating system takes of each buffer within `time`, at a rate for each page in 1/s.
    pub fn pressure(&self, chance: &mut Chance, time: Duration, rate: f64) -> Vec<Taken> {
        let goes = 1.0 - (-rate * time.as_secs_f64()).exp();
        let mut all = vec![];
        for &(at, len) in &self.buffers {
            let pages: Vec<u64> = (at..at + len).step_by(PAGE as usize).filter(|_| chance.share() < goes).collect();
            if !pages.is_empty() {
                all.push(Taken { after: time.mul_f64(chance.share()), pages });
            }
        }
        all.sort_by_key(|taken| taken.after);
        all
    }

    /// The operating system takes pages.
    pub fn take(&mut self, sim: &mut Simulation, pages: &[u64]) {
        for &at in pages {
            self.taken += u64::from(sim.is_present(&self.region, at));
            sim.set_present(&self.region, at..at + 1, false);
        }
    }

    /// The offsets in the region of a range of addresses.
    pub fn offsets(&self, addr: u64, len: u64) -> Range<u64> {
        let at = addr - self.region.addr;
        at..at + len
    }
}
