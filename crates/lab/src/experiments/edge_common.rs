//! Shared by the experiments of E: runs, curves, CPU time as stacks, and the table of all.

use crate::bench::Bench;
pub use crate::data::size_name;
use crate::data::{Cell, Data, rounded};
use crate::edge::{self, Cpu, Found, Mechanism, Receiving, Sending, Setting, Test};
use crate::experiment::Input;
use crate::figure::{Axis, Panel, Series, Stacks};
use anyhow::Result;
use weir_transport::edge::Scheduler;

/// Sizes of operations that charts of CPU time have: short, and long.
pub const SHORT: u32 = 4096;
pub const LONG: u32 = 131_072;
/// The longest operation.
pub const LONGEST: u32 = 1 << 20;

/// Why claims may fail live.
pub const LIVE: &str =
    "Live, both hosts are processes on this machine, which share its CPUs, and links are shaped by the kernel.";

/// Settings and what was found for each.
pub struct Runs {
    settings: Vec<Setting>,
    found: Vec<Found>,
}

/// Sizes of operations: in few steps live and in tests.
pub fn sizes(bench: &Bench<'_>) -> Vec<u32> {
    if bench.shrink > 1 {
        return vec![4, SHORT, LONG, LONGEST];
    }
    vec![4, 64, 512, 2048, SHORT, 8192, 16_384, 32_768, 65_536, LONG, 262_144, LONGEST]
}

impl Runs {
    /// Measures all settings.
    pub fn of(bench: &Bench<'_>, settings: Vec<Setting>) -> Result<Runs> {
        let found = edge::measure(bench, &settings)?;
        Ok(Runs { settings, found })
    }

    /// What was found for a setting; nothing but NaN if it was not measured.
    pub fn at(&self, setting: &Setting) -> Found {
        let at = self.settings.iter().position(|each| each == setting);
        let none = Found { gbits: f64::NAN, latency: f64::NAN, initiate: f64::NAN, cpu: [Cpu::default(); 2] };
        at.map_or(none, |at| self.found[at])
    }

    /// The highest throughput over all sizes, MByte/s.
    pub fn peak(&self, sizes: &[u32], setting: impl Fn(u32) -> Setting) -> f64 {
        sizes.iter().map(|size| self.at(&setting(*size)).megabytes()).fold(f64::NAN, f64::max)
    }

    /// A line over the sizes.
    pub fn line(
        &self,
        name: impl Into<String>,
        sizes: &[u32],
        setting: impl Fn(u32) -> Setting,
        y: impl Fn(&Found) -> f64,
    ) -> Series {
        let points = sizes.iter().map(|size| (f64::from(*size), y(&self.at(&setting(*size)))));
        Series::line(name, points.collect::<Vec<_>>())
    }

    /// All runs.
    pub fn data(&self) -> Data {
        let mut data = Data::new([
            "links",
            "test",
            "bytes",
            "mechanism",
            "scheduler",
            "sender",
            "receiver",
            "offset",
            "MByte/s",
            "latency µs",
            "initiate µs",
            "client interrupts %",
            "client send copy %",
            "client receive copy %",
            "client remapping %",
            "client packets %",
            "client device %",
            "server interrupts %",
            "server send copy %",
            "server receive copy %",
            "server remapping %",
            "server packets %",
            "server device %",
        ]);
        for (setting, found) in self.settings.iter().zip(&self.found) {
            let Setting { links, test, size, mechanism, scheduler, sending, receiving, offset, .. } = setting;
            let mut row: Vec<Cell> = vec![
                links.name().as_str().into(),
                test.name().into(),
                (*size).into(),
                if *mechanism == Mechanism::Polling { "polling" } else { "interrupts" }.into(),
                scheduler_name(*scheduler).into(),
                sender_name(*sending).into(),
                receiver_name(*receiving).as_str().into(),
                (*offset).into(),
                rounded(found.megabytes()).into(),
                rounded(found.latency).into(),
                rounded(found.initiate).into(),
            ];
            row.extend(found.cpu.iter().flat_map(|cpu| cpu.parts()).map(|part| Cell::from(rounded(part * 100.0))));
            data.rows.push(row);
        }
        data
    }
}

/// The throughput of each named line over the sizes.
pub fn throughput(title: impl Into<String>, series: Vec<Series>) -> Panel {
    Panel::new(title, Axis::sizes("bytes of an operation"), Axis::linear("MByte/s").showing(0.0, 0.0), series)
}

/// CPU time of named settings, each of one side: 0 is the client.
pub fn stacks(title: impl Into<String>, runs: &Runs, side: usize, bars: Vec<(String, Setting)>) -> Stacks {
    let cpus = bars.iter().map(|(_, setting)| runs.at(setting).cpu[side].total()).fold(0.0, f64::max);
    let most = if cpus > 1.05 { 200.0 } else { 100.0 };
    // Work that is under way when the measurement ends counts in full.
    let percent = |setting: &Setting| {
        let cpu = runs.at(setting).cpu[side] * 100.0;
        (cpu * (most / cpu.total()).min(1.0)).parts().to_vec()
    };
    Stacks {
        title: title.into(),
        x: Axis::linear("CPU time (%); 100: one CPU").showing(0.0, most),
        parts: Cpu::PARTS.map(str::to_owned).to_vec(),
        bars: bars.into_iter().map(|(name, setting)| (name, percent(&setting))).collect(),
    }
}

/// The thesis' name of a scheduler.
pub fn scheduler_name(scheduler: Scheduler) -> &'static str {
    match scheduler {
        Scheduler::RoundRobin => "SRR",
        Scheduler::WeightedRoundRobin => "WSRR",
        Scheduler::Dynamic => "WD",
        Scheduler::Auto => "auto",
    }
}

/// The setting with copies disabled as far as the run can: on both sides if simulated, at the sender if live.
pub fn without_copies(bench: &Bench<'_>, setting: Setting) -> Setting {
    match bench.live {
        true => setting.moving(Sending::Gathered, Receiving::Copied),
        false => setting.moving(Sending::Skipped, Receiving::Skipped),
    }
}

/// What the simulated hosts take from the thesis as it is; a live run takes nothing.
pub fn inputs(bench: &Bench<'_>) -> Vec<Input> {
    if bench.live { vec![] } else { INPUTS.to_vec() }
}

const INPUTS: [Input; 5] = [
    Input {
        name: "least overhead of an operation, one-way and two-way",
        paper: "about 2 µs",
        profile: "a call, an operation, a packet and a doorbell take 2 µs",
        source: "E 3.2.2",
    },
    Input {
        name: "one CPU copies",
        paper: "about 1 GByte/s, two CPUs 2 GByte/s",
        profile: "1 ns for a byte, at most 4 GByte/s of reads and writes",
        source: "E fig. 3.6",
    },
    Input { name: "a page is remapped in", paper: "0.9 to 1.1 µs", profile: "1 µs", source: "E table 3.2" },
    Input { name: "an empty system call", paper: "0.2 µs", profile: "0.2 µs", source: "E table 3.2" },
    Input {
        name: "which CPU runs what",
        paper: "with polling the receive path can run on another CPU than the send path",
        profile: "with interrupts all of a host runs on one CPU; with polling the thread that receives has a \
                  CPU of its own",
        source: "E 3.2.3",
    },
];

fn sender_name(sending: Sending) -> &'static str {
    match sending {
        Sending::Copied => "copies",
        Sending::Gathered => "gathers",
        Sending::Skipped => "no copy",
    }
}

fn receiver_name(receiving: Receiving) -> String {
    match receiving {
        Receiving::Copied => "copies".to_owned(),
        Receiving::Remapped(flush) => format!("remaps, {flush:?} flush").to_lowercase(),
        Receiving::Skipped => "no copy".to_owned(),
    }
}

/// Settings of all tests and sizes.
pub fn all(tests: &[Test], sizes: &[u32], setting: impl Fn(Test, u32) -> Setting) -> Vec<Setting> {
    tests.iter().flat_map(|test| sizes.iter().map(|size| setting(*test, *size)).collect::<Vec<_>>()).collect()
}
