//! What a test of `weir edge bench` has shown.

use super::configuration::{Configuration, packets};
use super::job::{Done, Test};
use super::usage::Parts;
use serde::Serialize;

/// One test with one size on one set of links.
#[derive(Debug, Serialize)]
pub struct Row {
    pub links: String,
    pub mtu: u32,
    pub test: &'static str,
    pub size: usize,
    /// Bytes of operations that were performed, both directions together; those of a ping-pong too.
    pub bytes: u64,
    pub seconds: f64,
    /// Gbit/s of them.
    pub gigabits: f64,
    /// What the links carry at most, Gbit/s, both directions together in `two-way`.
    pub nominal: f64,
    pub share: f64,
    /// Packets with bytes of operations, both directions.
    pub packets: u64,
    /// Those of them that were sent before.
    pub again: u64,
    /// One way, microseconds; of `ping-pong` only.
    pub median_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// The time of the call that begins an operation, microseconds; of streams only.
    pub call_median_us: Option<f64>,
    pub call_p99_us: Option<f64>,
    pub client: SideUsage,
    pub server: SideUsage,
}

#[derive(Debug, Serialize)]
pub struct SideUsage {
    pub cpu_seconds: f64,
    pub link_bytes: Vec<u64>,
    pub system_calls: u64,
    pub sleeps: u64,
    /// With `--breakdown`.
    pub breakdown: Option<Vec<Share>>,
}

/// CPU time of a part.
#[derive(Debug, PartialEq, Serialize)]
pub struct Share {
    pub part: &'static str,
    /// Microseconds for each packet with bytes of operations.
    pub us_per_packet: f64,
    /// Of the CPU time of the process.
    pub percent: f64,
}

impl Row {
    pub fn new(links: &Configuration, mtu: u32, done: &Done, breakdown: bool) -> Row {
        let Done { job, client, server } = done;
        let operations = client.operations + server.operations;
        let begun = operations + client.failed + server.failed;
        let (bytes, seconds) = (operations * job.size as u64, client.seconds.max(server.seconds));
        // A one-way job ends for the client when the server has told it that all is performed.
        let seconds = if job.test == Test::TwoWay { seconds } else { client.seconds };
        let gigabits = bytes as f64 * 8e-9 / seconds;
        let nominal = links.nominal(mtu, job.size) * if job.test == Test::TwoWay { 2.0 } else { 1.0 };
        let sent = client.usage.packets_sent + server.usage.packets_sent;
        // Each side that sends tells the other the end, in a packet of its own.
        let ends = if job.test == Test::TwoWay { 2 } else { 1 };
        let side = |part: &super::job::Part| SideUsage {
            cpu_seconds: part.usage.cpu,
            link_bytes: part.usage.link_bytes.clone(),
            system_calls: part.usage.sends + part.usage.receives + part.usage.empty_receives,
            sleeps: part.usage.sleeps,
            breakdown: breakdown.then(|| shares(&part.usage.parts, part.usage.cpu, sent)),
        };
        Row {
            links: links.name.clone(),
            mtu,
            test: job.test.name(),
            size: job.size,
            bytes,
            seconds,
            gigabits,
            nominal,
            share: gigabits / nominal,
            packets: sent,
            again: sent.saturating_sub(begun * packets(mtu, job.size) + ends),
            median_us: client.latency.map(|[median, _]| median * 1e6),
            p99_us: client.latency.map(|[_, p99]| p99 * 1e6),
            call_median_us: client.call.map(|[median, _]| median * 1e6),
            call_p99_us: client.call.map(|[_, p99]| p99 * 1e6),
            client: side(client),
            server: side(server),
        }
    }
}

/// The parts, and what is left: the program, and the rest of the kernel's time.
fn shares(parts: &Parts, cpu: f64, packets: u64) -> Vec<Share> {
    let named = parts.named();
    let rest = (cpu - named.iter().map(|(_, seconds)| seconds).sum::<f64>()).max(0.0);
    let share = |(part, seconds): (&'static str, f64)| Share {
        part,
        us_per_packet: if packets > 0 { seconds * 1e6 / packets as f64 } else { 0.0 },
        percent: if cpu > 0.0 { seconds * 100.0 / cpu } else { 0.0 },
    };
    named.into_iter().chain([("other", rest)]).map(share).collect()
}

#[cfg(test)]
pub mod tests {
    use super::super::job::{Job, Part};
    use super::super::usage::Usage;
    use super::*;

    pub fn part(operations: u64, seconds: f64, packets_sent: u64) -> Part {
        let parts = Parts { protocol: 0.25, system_calls: 0.5, ..Parts::default() };
        let usage = Usage { cpu: 1.0, packets_sent, parts, link_bytes: vec![10, 20], ..Usage::default() };
        Part { operations, seconds, usage, ..Part::default() }
    }

    pub fn row(test: Test, client: Part, server: Part) -> Row {
        let done = Done { job: Job { test, size: 1000, seconds: 1.0, sampled: false }, client, server };
        Row::new(&"2x1".parse().unwrap(), 1500, &done, true)
    }

    #[test]
    fn a_stream_has_a_rate_and_packets_that_went_again() {
        let one = row(Test::OneWay, part(100_000, 0.5, 100_008), part(0, 9.0, 0));
        assert!((one.gigabits - 1.6).abs() < 1e-9 && one.bytes == 100_000_000 && one.again == 7, "{one:?}");
        assert!((one.share - 1.6 / one.nominal).abs() < 1e-12 && one.nominal < 2.0);
        let both = row(Test::TwoWay, part(100_000, 0.5, 100_001), part(100_000, 1.0, 100_001));
        assert!((both.gigabits - 1.6).abs() < 1e-9 && both.again == 0, "{both:?}");
        assert!((both.nominal / one.nominal - 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_breakdown_is_per_packet_and_adds_up_to_all_cpu_time() {
        let one = row(Test::OneWay, part(500_000, 1.0, 500_000), part(0, 1.0, 0));
        let shares = one.client.breakdown.unwrap();
        assert_eq!(shares[3], Share { part: "protocol", us_per_packet: 0.5, percent: 25.0 });
        assert_eq!(shares[5], Share { part: "other", us_per_packet: 0.5, percent: 25.0 });
        assert_eq!(shares.iter().map(|share| share.percent).sum::<f64>(), 100.0);
        assert!(super::shares(&Parts::default(), 0.0, 0).iter().all(|share| share.percent == 0.0));
    }
}
