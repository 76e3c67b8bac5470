//! The memory of a host: how long copies take while adapters and the other CPU use it, too. Bytes are not kept.

use super::costs::Costs;
use weir_transport::Instant;
use weir_transport::edge::Fault;

/// Time over which the adapters' use of memory is averaged, ns.
const OVER: f64 = 200_000.0;
/// What adapters leave to copies at least, as a share of all.
const LEFT: f64 = 0.125;

/// How much adapters read and write.
#[derive(Debug)]
pub struct Traffic {
    bytes: f64,
    at: Instant,
}

impl Default for Traffic {
    fn default() -> Traffic {
        Traffic { bytes: 0.0, at: Instant(0) }
    }
}

impl Traffic {
    /// An adapter has read or written so many bytes.
    pub fn add(&mut self, now: Instant, bytes: u32) {
        self.bytes = self.decayed(now) + f64::from(bytes);
        self.at = now;
    }

    /// Time, ns, of a copy of so many bytes that takes `each` ns for a byte where memory is idle; `copies`: how many CPUs copy.
    pub fn copy(&self, now: Instant, costs: &Costs, bytes: u32, each: f64, copies: u32) -> f64 {
        let free = (costs.memory - self.decayed(now) / OVER).max(costs.memory * LEFT);
        f64::from(bytes) * each.max(costs.copy_accesses * f64::from(copies) / free)
    }

    fn decayed(&self, now: Instant) -> f64 {
        self.bytes * (-((now - self.at).as_nanos() as f64) / OVER).exp()
    }
}

/// The address space of a program, in which all can be read and written.
pub struct Anything;

impl weir_transport::edge::Memory for Anything {
    /// How many bytes.
    type Bytes = u32;

    fn read(&mut self, _: u64, bytes: u32, _: bool) -> Result<u32, Fault> {
        Ok(bytes)
    }

    fn write(&mut self, _: u64, _: &u32, _: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn nothing(&mut self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::setting::Platform;

    #[test]
    fn copies_share_memory_with_adapters_and_the_other_cpu() {
        let costs = Costs::of(Platform::Base);
        let mut traffic = Traffic::default();
        let copy = |traffic: &Traffic, copies| traffic.copy(Instant(0), &costs, 1000, costs.copy_out, copies);
        assert_eq!((copy(&traffic, 1), copy(&traffic, 2)), (1000.0, 1000.0), "two CPUs copy 2 GByte/s");
        // Adapters use a quarter of the memory.
        traffic.add(Instant(0), 200_000);
        assert!(copy(&traffic, 1) == 1000.0 && (copy(&traffic, 2) - 4000.0 / 3.0).abs() < 1.0);
    }
}
