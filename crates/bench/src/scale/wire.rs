//! Bytes on an interface while pairs run, and the throughput that follows from them.
//!
//! Pairs do not start and end at the same moment, so the sum of the figures that they print says little: pairs that run
//! one after the other would each print the whole throughput of the machine.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{Read, Seek};
use std::time::Instant;
use weir_stage::counters::sent_bytes;
use weir_stage::{Side, Stage};

/// The share of the bytes before and after the time that counts.
const EDGE: f64 = 0.1;

/// The counter of sent bytes of a side's interface, and what it showed.
pub struct Wire {
    /// A file of procfs remains that of the namespace in which it was opened.
    counters: File,
    interface: &'static str,
    begun: Instant,
    /// Seconds since the beginning, and bytes.
    samples: Vec<(f64, u64)>,
}

impl Wire {
    /// Of what this side sends from now on.
    pub fn of(stage: &Stage, side: Side) -> Result<Wire> {
        let counters = stage.enter(side, || File::open("/proc/thread-self/net/dev"))?.context("/proc/…/net/dev")?;
        let mut wire = Wire { counters, interface: stage.interface(), begun: Instant::now(), samples: Vec::new() };
        wire.sample()?;
        Ok(wire)
    }

    /// Reads the counter.
    pub fn sample(&mut self) -> Result<()> {
        let mut text = String::new();
        self.counters.rewind()?;
        self.counters.read_to_string(&mut text)?;
        let sent = sent_bytes(&text, self.interface).context("the kernel shows no counters of the interface")?;
        self.samples.push((self.begun.elapsed().as_secs_f64(), sent));
        Ok(())
    }

    /// Payload per second, where `payload` is all that was moved: see `middle`.
    pub fn throughput(&self, payload: f64) -> Result<f64> {
        Ok(payload * (1.0 - 2.0 * EDGE) / middle(&self.samples)?)
    }
}

/// The time in which all bytes but the first and the last tenth left, seconds.
fn middle(samples: &[(f64, u64)]) -> Result<f64> {
    let (first, last) = samples.first().zip(samples.last()).context("no samples")?;
    let total = (last.1 - first.1) as f64;
    ensure!(total > 0.0, "no byte crossed the interface");
    let time_of = |share: f64| -> f64 {
        let wanted = first.1 as f64 + share * total;
        let after = samples.iter().position(|sample| sample.1 as f64 >= wanted).unwrap_or(samples.len() - 1).max(1);
        let ((start, before), (end, now)) = (samples[after - 1], samples[after]);
        start + (end - start) * (wanted - before as f64) / (now - before) as f64
    };
    Ok(time_of(1.0 - EDGE) - time_of(EDGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slow_first_and_last_tenth_do_not_count() {
        // One second of start, then 100 bytes in ten seconds with a slow last tenth.
        let samples = [(0.0, 50), (1.0, 50), (2.0, 60), (4.0, 100), (6.0, 140), (16.0, 150)];
        assert_eq!(middle(&samples).unwrap(), 4.0);
        // Between samples, bytes count as evenly spread.
        assert!((middle(&[(0.0, 0), (10.0, 1000)]).unwrap() - 8.0).abs() < 1e-9);
    }

    #[test]
    fn an_interface_without_traffic_is_an_error() {
        assert!(middle(&[(0.0, 7), (1.0, 7)]).is_err());
        assert!(middle(&[]).is_err());
    }

    #[test]
    #[ignore = "needs root"]
    fn the_counter_is_that_of_the_namespace_also_for_later_readings() {
        let stage = Stage::same_host().unwrap();
        let mut wire = Wire::of(&stage, Side::B).unwrap();
        let bytes = [0; 1000];
        stage
            .enter(Side::B, || {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(&bytes, socket.local_addr().unwrap()).unwrap();
            })
            .unwrap();
        wire.sample().unwrap();
        let sent = wire.samples[1].1 - wire.samples[0].1;
        assert!((1000..1100).contains(&sent), "{sent}");
    }
}
