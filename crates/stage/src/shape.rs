//! Links of a given rate: `tc` (iproute2) with a token bucket at both ends.

use crate::{Side, Stage};
use anyhow::Result;

/// Bytes that pass at once, at least: twice the longest packet of segmentation offload, which is 64 KiB.
const LEAST_BURST: u64 = 128 << 10;
/// Time that a burst covers at least, so that a late timer of the kernel costs no rate.
const BURST_MICROSECONDS: u64 = 400;
/// Packets that would wait longer are dropped.
const QUEUE_MILLISECONDS: u32 = 20;

impl Stage {
    /// Gives a link (`eth0` is 0) a rate in both directions. It counts bytes of Ethernet headers and all above.
    pub fn shape(&self, link: usize, gigabits: u32) -> Result<()> {
        self.shape_to(link, gigabits * 1000)
    }

    /// The same in Mbit/s.
    pub(crate) fn shape_to(&self, link: usize, megabits: u32) -> Result<()> {
        let burst = burst(megabits);
        for side in [Side::A, Side::B] {
            let bucket = format!("tbf rate {megabits}mbit burst {burst} latency {QUEUE_MILLISECONDS}ms");
            self.iproute(side, "tc", &format!("qdisc replace dev eth{link} root {bucket}"))?;
        }
        Ok(())
    }
}

fn burst(megabits: u32) -> u64 {
    LEAST_BURST.max(u64::from(megabits) / 8 * BURST_MICROSECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{iperf, missing};

    #[test]
    fn a_burst_has_room_for_offloaded_packets_and_late_timers() {
        assert_eq!((burst(1000), burst(10_000)), (131_072, 500_000));
    }

    #[test]
    #[ignore = "needs root"]
    fn a_shaped_link_carries_its_rate_and_no_more() {
        assert!(missing(["tc", "iperf3"]).is_empty(), "install iproute2 and iperf3");
        let stage = Stage::new(1500).unwrap();
        stage.shape(0, 1).unwrap();
        let run = iperf::run(&stage, 1, 1 << 20).unwrap();
        // 1 Gbit/s is 0.125 GB/s, and a burst of 128 KiB comes on top.
        assert!(run.gigabytes > 0.0 && run.bytes < 200_000_000, "{} GB/s, {} bytes", run.gigabytes, run.bytes);
    }
}
