//! Measurements: each run gives one figure.

use super::beside_flood::{self, Flood};
use super::captured::{self, Captured, Figure};
use super::cmtime::{self, Phase};
use super::fabric::{self, Provider};
use super::load::Loops;
use super::mpi::{self, Speed, Test};
use super::peers::{self, Over};
use super::perftest::{self, Icrc, Latency, Verb};
use super::{guarded, idle, load, memory, raw, tcp};
use anyhow::Result;
use std::collections::HashMap;
use std::time::Duration;
use weir_stage::{Stage, locate};

const MIB: usize = 1 << 20;
/// Iterations of the first run, which tells the rate.
const PILOT: u64 = 2000;
/// Of a latency: on a busy machine an iteration can take milliseconds.
const LATENCY_PILOT: u64 = 200;

/// What a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measurement {
    /// Bandwidth of perftest on Weir.
    Perftest { verb: Verb, size: usize, icrc: Icrc, both_ways: bool },
    /// The same beside a flood of a third host.
    Flooded { verb: Verb, size: usize, icrc: Icrc, flood: Flood },
    /// Bandwidth of the carrier's system calls without a protocol.
    Raw { size: usize, both_ways: bool },
    /// Bandwidth of a test of UCX.
    Ucx { test: &'static str, size: usize, over: Over },
    /// Bandwidth of one TCP stream, writes of 1 MiB.
    Iperf3,
    /// Half round trip of WRITEs or SENDs, median.
    Latency { verb: Verb, size: usize },
    /// The same under `weir doctor`.
    WatchedLatency { verb: Verb, size: usize },
    /// A figure of perftest on Weir with guards on.
    Guarded { verb: Verb, size: usize, figure: Figure },
    /// Half round trip of a UDP datagram as long as the frame of an 8-byte WRITE.
    RawLatency,
    /// Half round trip in a test of UCX, median.
    UcxLatency { test: &'static str, size: usize, over: Over },
    /// Rate of messages.
    MessageRate { verb: Verb, size: usize },
    /// Rate of messages in a test of UCX.
    UcxMessageRate { test: &'static str, size: usize, over: Over },
    /// Half round trip of libfabric, mean.
    FabricLatency { provider: Provider, size: usize },
    /// Bandwidth of libfabric's ping-pong: one message at a time.
    FabricRate { provider: Provider, size: usize },
    /// A library of MPI: a median time, or bandwidth.
    Mpi(Speed),
    /// CPU time of event-driven perftest, 1 MiB. (perftest has no events for WRITE.)
    EventCpu(Verb),
    /// CPU time of iperf3.
    Iperf3Cpu,
    /// CPU time of connected processes with nothing to do.
    Idle,
    /// Memory of this number of connected QPs.
    QpMemory(usize),
    /// Rate at which librdmacm sets up or tears down so many connections.
    Connections { count: u32, phase: Phase },
    /// Rate at which the kernel sets up so many TCP connections.
    TcpConnections(u32),
    /// A figure of perftest on Weir, with RoCE packets by UDP, under a capture.
    Captured { verb: Verb, size: usize, captured: Captured, figure: Figure },
}

/// Unit of a figure; figures are kept in its base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    BytesPerSecond,
    Seconds,
    /// Seconds that are shown as seconds, not as microseconds.
    WallSeconds,
    MessagesPerSecond,
    CpuSecondsPerByte,
    Cores,
    Bytes,
    ConnectionsPerSecond,
}

impl Unit {
    /// Its name as shown, and the factor from the base unit to the shown unit.
    fn shown(self) -> (&'static str, f64) {
        match self {
            Unit::BytesPerSecond => ("GB/s", 1e-9),
            Unit::Seconds => ("µs", 1e6),
            Unit::WallSeconds => ("s", 1.0),
            Unit::MessagesPerSecond => ("M/s", 1e-6),
            Unit::CpuSecondsPerByte => ("s/GB", 1e9),
            Unit::Cores => ("% of a core", 100.0),
            Unit::Bytes => ("MiB", 1.0 / MIB as f64),
            Unit::ConnectionsPerSecond => ("k/s", 1e-3),
        }
    }

    /// Its name as shown.
    pub fn name(self) -> &'static str {
        self.shown().0
    }

    /// Converts a figure from the base unit to the unit as shown.
    pub fn scale(self, figure: f64) -> f64 {
        figure * self.shown().1
    }

    /// A figure with its unit.
    pub fn show(self, figure: f64) -> String {
        let scaled = self.scale(figure);
        let digits = if scaled.abs() < 10.0 { 2 } else { 1 };
        format!("{scaled:.digits$} {}", self.name())
    }
}

impl Measurement {
    /// Unit of its figure.
    pub fn unit(self) -> Unit {
        use Measurement::*;
        match self {
            Perftest { .. } | Flooded { .. } | Raw { .. } | Ucx { .. } | Iperf3 => Unit::BytesPerSecond,
            FabricRate { .. } | Mpi(Speed { test: Test::Bandwidth, .. }) => Unit::BytesPerSecond,
            Latency { .. } | WatchedLatency { .. } | RawLatency | UcxLatency { .. } => Unit::Seconds,
            FabricLatency { .. } | Mpi(_) => Unit::Seconds,
            MessageRate { .. } | UcxMessageRate { .. } => Unit::MessagesPerSecond,
            EventCpu(_) | Iperf3Cpu => Unit::CpuSecondsPerByte,
            Idle => Unit::Cores,
            QpMemory(_) => Unit::Bytes,
            Connections { .. } | TcpConnections(_) => Unit::ConnectionsPerSecond,
            Captured { figure, .. } | Guarded { figure, .. } => match figure {
                Figure::Bandwidth => Unit::BytesPerSecond,
                Figure::MessageRate => Unit::MessagesPerSecond,
                Figure::Latency => Unit::Seconds,
            },
        }
    }

    /// A short description.
    pub fn describe(self) -> String {
        use Measurement::*;
        match self {
            Perftest { verb, size, .. } => format!("Weir's {} {}", verb.program(), bytes(size)),
            Flooded { verb, size, flood, .. } => format!("{} {} {}", verb.program(), bytes(size), flood.name()),
            Raw { size, both_ways: false } => format!("raw UDP {}", bytes(size)),
            Raw { size, both_ways: true } => format!("raw UDP {} both ways", bytes(size)),
            Ucx { test, size, over } | UcxLatency { test, size, over } | UcxMessageRate { test, size, over } => {
                format!("UCX {} {test} {}", over.name(), bytes(size))
            }
            FabricLatency { provider, size } => format!("libfabric {} {}", provider.name(), bytes(size)),
            FabricRate { provider, size } => format!("libfabric {} {}", provider.name(), bytes(size)),
            Mpi(Speed { library, over, size, .. }) => format!("{} {} {}", library.name(), over.name(), bytes(size)),
            Iperf3 => "iperf3 1 MiB".into(),
            RawLatency => "raw UDP ping-pong".into(),
            Iperf3Cpu => "iperf3 CPU".into(),
            Latency { verb, size } => format!("Weir's {} {}", verb.latency_program(), bytes(size)),
            WatchedLatency { verb, size } => format!("watched {} {}", verb.latency_program(), bytes(size)),
            Guarded { size, .. } => format!("guarded {} {}", self.programs().join(" "), bytes(size)),
            MessageRate { verb, size } => format!("Weir's {} {}", verb.program(), bytes(size)),
            EventCpu(_) | Idle | QpMemory(_) => format!("{self:?}"),
            Connections { count, .. } => format!("{} -c {count}", cmtime::PROGRAM),
            TcpConnections(count) => format!("{count} TCP connections"),
            Captured { size, captured, .. } => {
                format!("{} {} {}", self.programs().join(" "), bytes(size), captured.name())
            }
        }
    }

    /// The programs that it needs, which are not part of Weir.
    pub fn programs(self) -> Vec<&'static str> {
        use Measurement::*;
        match self {
            Perftest { verb, .. } | Flooded { verb, .. } | EventCpu(verb) | MessageRate { verb, .. } => {
                vec![verb.program()]
            }
            Idle | QpMemory(_) => vec!["ib_write_bw"],
            Latency { verb, .. } | WatchedLatency { verb, .. } => vec![verb.latency_program()],
            Ucx { .. } | UcxLatency { .. } | UcxMessageRate { .. } => vec!["ucx_perftest"],
            FabricLatency { .. } | FabricRate { .. } => vec![fabric::PROGRAM],
            Mpi(speed) => speed.programs(),
            Iperf3 | Iperf3Cpu => vec!["iperf3"],
            Connections { .. } => vec![cmtime::PROGRAM],
            Raw { .. } | RawLatency | TcpConnections(_) => vec![],
            Captured { verb, figure, .. } | Guarded { verb, figure, .. } => match figure {
                Figure::Latency => vec![verb.latency_program()],
                Figure::Bandwidth | Figure::MessageRate => vec![verb.program()],
            },
        }
    }

    /// Why it cannot run on a stage: a program is missing, or it needs another stage.
    pub fn refusal(self, stage: &Stage) -> Option<String> {
        let missing = self.programs().into_iter().find_map(|program| locate(program).err());
        missing.map(|error| format!("{error:#}")).or_else(|| match self {
            Measurement::FabricLatency { provider, .. } | Measurement::FabricRate { provider, .. } => {
                provider.refusal(stage)
            }
            Measurement::Mpi(speed) => speed.refusal(),
            _ => None,
        })
    }
}

/// Runs measurements. For programs that take a number of iterations instead of a time, it stores their last rate.
pub struct Runner<'a> {
    pub stage: &'a Stage,
    /// Length of a run, seconds.
    pub seconds: f64,
    /// Each core also runs a busy loop.
    pub loaded: bool,
    rates: HashMap<Measurement, f64>,
    mpi: mpi::Programs,
}

impl<'a> Runner<'a> {
    /// A runner without rates yet; a run lasts `seconds`.
    pub fn new(stage: &'a Stage, seconds: f64) -> Self {
        Runner { stage, seconds, loaded: false, rates: HashMap::new(), mpi: mpi::Programs::default() }
    }

    /// Runs a measurement and returns its figure in the base unit; an error if a busy loop has ended meanwhile.
    pub fn run(&mut self, measurement: Measurement) -> Result<f64> {
        let mut loops = self.loaded.then(|| load::start(self.stage)).transpose()?;
        let figure = self.measure(measurement)?;
        loops.as_mut().map_or(Ok(()), Loops::still_run)?;
        Ok(figure)
    }

    fn measure(&mut self, measurement: Measurement) -> Result<f64> {
        use Measurement::*;
        let (stage, seconds) = (self.stage, self.seconds);
        match measurement {
            Perftest { verb, size, icrc, both_ways } => {
                Ok(perftest::bandwidth(stage, verb, size, icrc, both_ways, seconds)?.bytes)
            }
            Flooded { verb, size, icrc, flood } => beside_flood::bandwidth(stage, verb, size, icrc, flood, seconds),
            Raw { size, both_ways } => raw::throughput(stage, size, both_ways, seconds),
            Ucx { test, size, over } => {
                let ucx = |n| Ok(peers::ucx(stage, over, test, size, n)?.messages);
                Ok(self.run_for_time(measurement, PILOT, ucx)? * size as f64)
            }
            UcxMessageRate { test, size, over } => {
                let ucx = |n| Ok(peers::ucx(stage, over, test, size, n)?.messages);
                self.run_for_time(measurement, PILOT, ucx)
            }
            Iperf3 => Ok(peers::iperf3(stage, seconds)?.rate),
            Iperf3Cpu => Ok(peers::iperf3(stage, seconds)?.cpu_per_byte),
            Measurement::Latency { verb, size } => {
                self.median(measurement, |stage, n| perftest::latency(stage, verb, size, n))
            }
            WatchedLatency { verb, size } => {
                self.median(measurement, |stage, n| perftest::watched_latency(stage, verb, size, n))
            }
            Guarded { verb, size, figure } => match figure {
                Figure::Bandwidth => Ok(guarded::bandwidth(stage, verb, size, seconds)?.bytes),
                Figure::MessageRate => Ok(guarded::bandwidth(stage, verb, size, seconds)?.messages),
                Figure::Latency => self.median(measurement, |stage, n| guarded::latency(stage, verb, size, n)),
            },
            RawLatency => raw::latency(stage, seconds),
            UcxLatency { test, size, over } => self.median(measurement, |stage, n| {
                let ucx = peers::ucx(stage, over, test, size, n)?;
                Ok(perftest::Latency { median: ucx.median, mean: ucx.mean })
            }),
            FabricLatency { provider, size } => fabric::ping_pong(stage, provider, size, seconds),
            FabricRate { provider, size } => Ok(size as f64 / fabric::ping_pong(stage, provider, size, seconds)?),
            Mpi(speed) => {
                let figure = self.mpi.run(stage, &speed, seconds)?;
                Ok(if speed.test == Test::Bandwidth { figure * speed.size as f64 } else { figure })
            }
            MessageRate { verb, size } => {
                Ok(perftest::bandwidth(stage, verb, size, Icrc::Auto, false, seconds)?.messages)
            }
            EventCpu(verb) => {
                let mut cpu_per_byte = 0.0;
                self.run_for_time(measurement, 1000, |n| {
                    let pair = perftest::events(stage, verb, MIB, n)?;
                    cpu_per_byte = pair.cpu().as_secs_f64() / (n as f64 * MIB as f64);
                    Ok(perftest::parse_bandwidth(&pair.client.stdout)?.bytes / MIB as f64)
                })?;
                Ok(cpu_per_byte)
            }
            Idle => idle::cpu_use(stage, Duration::from_secs_f64(1.5 * seconds)),
            QpMemory(count) => memory::of_qps(stage, count),
            Connections { count, phase } => cmtime::rate(stage, count, phase),
            TcpConnections(count) => tcp::rate(stage, count),
            Captured { verb, size, captured, figure } => match figure {
                Figure::Bandwidth => Ok(captured::bandwidth(stage, verb, size, captured, seconds)?.bytes),
                Figure::MessageRate => Ok(captured::bandwidth(stage, verb, size, captured, seconds)?.messages),
                Figure::Latency => {
                    self.median(measurement, |stage, n| captured::latency(stage, verb, size, captured, n))
                }
            },
        }
    }

    /// The median of a latency program that runs for so many iterations.
    fn median(&mut self, key: Measurement, run: impl Fn(&Stage, u64) -> Result<Latency>) -> Result<f64> {
        let (stage, mut median) = (self.stage, 0.0);
        self.run_for_time(key, LATENCY_PILOT, |n| {
            let latency = run(stage, n)?;
            median = latency.median;
            Ok(0.5 / latency.mean)
        })?;
        Ok(median)
    }

    /// Runs `job` with a number of iterations that takes about `seconds`; `job` returns iterations per second.
    fn run_for_time(&mut self, key: Measurement, pilot: u64, mut job: impl FnMut(u64) -> Result<f64>) -> Result<f64> {
        let rate = match self.rates.get(&key) {
            Some(&rate) => rate,
            None => job(pilot)?,
        };
        let rate = job(((rate * self.seconds) as u64).clamp(pilot, 50_000_000))?;
        self.rates.insert(key, rate);
        Ok(rate)
    }
}

fn bytes(size: usize) -> String {
    match size {
        s if s >= MIB => format!("{} MiB", s / MIB),
        s if s >= 1 << 10 => format!("{} KiB", s >> 10),
        s => format!("{s} B"),
    }
}
