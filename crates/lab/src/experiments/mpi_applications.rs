//! Patterns of communication like those of applications, with the four schemes (M fig. 10 and 11, tables I and II).

use super::mpi_common::*;
use super::mpi_paper::{self, Row};
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Calibrated, Kind::Shaped};
use crate::data::Data;
use crate::experiment::{Experiment, Input, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use crate::mpi::kernels::Kernel;
use crate::mpi::measure::{self, Found, Run};
use crate::mpi::pressure;
use anyhow::Result;
use weir_msg::{Scheme, Settings};

pub const EXPERIMENT: Experiment = Experiment {
    id: "mpi-applications",
    title: "MPI with on-demand paging: programs like M's applications",
    source: "M fig. 10 and 11, tables I and II",
    not_simulated: None,
    not_live: |_| None,
    paper: "Ten applications with 64 and 128 processes on eight nodes. ODP-Optimal takes as long as Pin-down, and has less than 1 % \
            of the page faults of the other schemes. Where a process computes between a send and its completion, pages that were \
            prefetched are gone when data travel: with ODP-Enhanced and ODP-Native LAMMPS takes ten times as long, and AWP-ODC 24 \
            to 32 times. LU computes at no such place, and ODP-Enhanced equals ODP-Optimal. The kernels here are our own: \
            their messages are like those of the applications.",
    figures: &[
        PaperFigure {
            name: "M fig. 10",
            axes: "Execution time and size of pinned buffers of each application and scheme, 64 processes. The text states no scale.",
            shows: "Lammps-EAM: Pin-down 4 s, ODP-Enhanced 37.8, ODP-Optimal 4, ODP-Native 35. Boltzmann: 30.13, 53.7, 31.2 and \
                    54.8 s. AWP-ODC 512³: ODP-Enhanced takes 24 times as long as ODP-Optimal.",
            here: "Times of a step, relative to Pin-down. Pinned bytes: mpi-pinned.",
            drawings: 3,
        },
        PaperFigure {
            name: "M fig. 11",
            axes: "As M fig. 10, with 128 processes.",
            shows: "Lammps-LJ: Pin-down 7 s, ODP-Enhanced 71.2, ODP-Optimal 7.1, ODP-Native 70.9. AWP-ODC 512³: ODP-Enhanced takes 32 \
                    times as long as ODP-Optimal.",
            here: "As above. Tables I and II are in mpi-applications-statistics.csv.",
            drawings: 3,
        },
    ],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const NODES: usize = 8;

const BEHIND: &str = "Like AWP-ODC 256³: a process that has lost pages prefetches them one call after the other, 5 µs each, and falls behind \
                      its neighbours. Their data arrive while it still computes (M V.C), in memory that it prefetched before, and \
                      find pages missing: 7 % of ODP-Native's page faults with 64 processes. M has 0.8 %. Like NAS-CG with 128: \
                      messages of a node share its adapter, and their order decides. Pin-down takes as long if computations \
                      differ by a thousandth.";
const FAULT: &str = "A page fault takes 0.45 to 0.7 ms, one after the other on a node, as on ConnectX-4. M's times mean 0.8 ms with eight \
                     processes on a node (EAM) and 1.7 ms with 16 (LJ), if each exchange has one on both sides. M does not say why.";
const WAVES: &str = "M has 180 page faults of a process with ODP-Enhanced. Here are as many within a factor of two. Each one holds up a wave that \
                     all processes wait for, so that a run of 13 s takes 2 s longer.";
const STEPS: &str = "M states neither steps nor times. With 300 operations of a point and 10⁹ in a second, a process computes for 0.6 s (64 \
                     processes) or 0.3 s (128) in a step. Page faults add 0.4 and 0.9 s. Factors of 24 and 32 need steps of 20 to 30 ms.";

/// All runs with some number of processes.
struct Runs {
    processes: usize,
    /// They stand for those of M fig. 11 and table II.
    more: bool,
    kernels: Vec<Kernel>,
    steps: Vec<u32>,
    found: Vec<Found>,
}

impl Runs {
    fn of(bench: &Bench<'_>, counts: [usize; 2]) -> Result<Vec<Runs>> {
        let adapter = adapter(bench)?;
        let mut all = vec![];
        let mut runs = vec![];
        for (processes, more) in counts.into_iter().zip([false, true]) {
            let kernels: Vec<Kernel> = Kernel::ALL.into_iter().filter(|k| !more || mpi_paper::in_table_2(*k)).collect();
            let programs: Vec<_> = kernels.iter().map(|k| k.program(processes, simulated(*k, bench.shrink))).collect();
            for (kernel, program) in kernels.iter().zip(&programs) {
                let native = mpi_paper::row(*kernel, if more { 128 } else { 64 }, Scheme::OdpNative);
                let pressure = pressure::rate(program, &Settings::default(), native.faults);
                runs.extend(SCHEMES.map(|scheme| {
                    let mut run = Run::new(scheme, NODES, program.scripts.clone(), &adapter);
                    run.cluster.pressure = pressure;
                    run.cluster.seed = bench.seed;
                    run
                }));
            }
            let steps = programs.iter().map(|program| program.steps).collect();
            all.push(Runs { processes, more, kernels, steps, found: vec![] });
        }
        let mut found = measure::all(bench, &runs);
        for runs in &mut all {
            let rest = found.split_off(runs.kernels.len() * SCHEMES.len());
            runs.found = std::mem::replace(&mut found, rest);
        }
        Ok(all)
    }

    fn at(&self, kernel: Kernel, scheme: Scheme) -> Found {
        let at = self.kernels.iter().position(|each| *each == kernel);
        let which = SCHEMES.iter().position(|each| *each == scheme);
        at.zip(which).map_or(Found::NONE, |(at, which)| self.found[at * SCHEMES.len() + which])
    }

    /// How much longer a step takes than with another scheme.
    fn against(&self, kernel: Kernel, scheme: Scheme, other: Scheme) -> f64 {
        self.at(kernel, scheme).warm_round / self.at(kernel, other).warm_round
    }

    /// The largest value of all kernels.
    fn worst(&self, of: impl Fn(Kernel) -> f64) -> f64 {
        let all = self.kernels.iter().map(|kernel| of(*kernel));
        all.reduce(|most, v| if most.is_nan() || v <= most { most } else { v }).unwrap_or(f64::NAN)
    }

    /// Page faults and prefetched pages of a process in the whole run.
    fn pages(&self, kernel: Kernel, scheme: Scheme) -> [f64; 2] {
        let steps = self.kernels.iter().position(|each| *each == kernel).map_or(f64::NAN, |at| self.steps[at].into());
        let found = self.at(kernel, scheme);
        let run = |whole: f64, warm: f64| (whole - warm + warm / found.warm_rounds * (steps - 1.0)).round();
        let Found { whole, warm, .. } = found;
        [run(whole.faults, warm.faults), run(whole.prefetched, warm.prefetched)]
    }

    fn bars(&self, scheme: Scheme) -> Bars {
        let bar = |kernel: &Kernel| (kernel.name().to_owned(), self.against(*kernel, scheme, Scheme::PinDown));
        Bars {
            title: format!("{}, {} processes", scheme_name(scheme), self.processes),
            x: Axis::log("time of a step, relative to Pin-down").showing(0.5, 20.0),
            bars: self.kernels.iter().map(bar).collect(),
        }
    }
}

/// Steps that are simulated; the first one warms up.
fn simulated(kernel: Kernel, shrink: u32) -> u32 {
    let steps = match kernel {
        Kernel::Bt | Kernel::Sp | Kernel::Lu | Kernel::Awp512 => 2,
        Kernel::Mg | Kernel::LammpsLj | Kernel::Awp256 => 4,
        Kernel::LammpsEam => 5,
        Kernel::Cg | Kernel::Boltzmann | Kernel::Lennard => 10,
    };
    if shrink > 1 { 2 } else { steps }
}

fn run(bench: &Bench<'_>) -> Result<Report> {
    let counts = if bench.shrink > 1 { [16, 32] } else { [64, 128] };
    let all = Runs::of(bench, counts)?;
    let mut report = Report { inputs: inputs(), data: times(&all), ..Report::default() };
    report.more.push(("statistics", statistics(&all)));
    for runs in &all {
        report
            .bars
            .extend([Scheme::OdpEnhanced, Scheme::OdpOptimal, Scheme::OdpNative].map(|scheme| runs.bars(scheme)));
        report.claims.extend(claims(runs));
    }
    Ok(report)
}

fn claims(runs: &Runs) -> Vec<Claim> {
    use Scheme::{OdpEnhanced, OdpNative, OdpOptimal, PinDown};
    let n = runs.processes;
    let share =
        |kernel: Kernel| runs.at(kernel, OdpOptimal).warm.faults / runs.at(kernel, OdpNative).warm.faults.max(1.0);
    let best = |kernel| runs.against(kernel, OdpOptimal, OdpNative).max(runs.against(kernel, OdpOptimal, OdpEnhanced));
    let mut claims = vec![
        Claim::at_most(
            Shaped,
            format!("ODP-Optimal against Pin-down, all kernels, {n} processes, worst"),
            "the same performance",
            1.05,
            runs.worst(|kernel| runs.against(kernel, OdpOptimal, PinDown)),
            "times",
        )
        .lacks(BEHIND),
        Claim::at_most(
            Shaped,
            format!("page faults of ODP-Optimal, {n} processes: share of ODP-Native's, worst"),
            "less than 1 %",
            0.01,
            runs.worst(share),
            "",
        )
        .lacks(BEHIND),
        Claim::at_most(
            Shaped,
            format!("ODP-Optimal against the better of the other ODP schemes, {n} processes, worst"),
            "better for all benchmarks",
            1.02,
            runs.worst(best),
            "times",
        )
        .lacks(BEHIND),
        Claim::between(
            Shaped,
            format!("like NAS-LU, {n} processes: ODP-Enhanced against ODP-Optimal"),
            "equal",
            (0.95, 1.05),
            runs.against(Kernel::Lu, OdpEnhanced, OdpOptimal),
            "times",
        )
        .lacks(WAVES)
        .from("M VII.D.2"),
    ];
    let factor = |kernel: Kernel, scheme, other, paper: f64, lacks: &'static str, source| {
        let name = format!("{}, {n} processes: {} against {}", kernel.name(), scheme_name(scheme), scheme_name(other));
        Claim::near(Shaped, name, paper, 0.3, runs.against(kernel, scheme, other), "times").lacks(lacks).from(source)
    };
    if !runs.more {
        let sp = |scheme, lacks| {
            let name = format!("like NAS-SP, {n} processes: {} against ODP-Optimal", scheme_name(scheme));
            let value = runs.against(Kernel::Sp, scheme, OdpOptimal);
            Claim::at_least(Shaped, name, "ODP-Optimal is much better", 1.5, value, "times")
                .lacks(lacks)
                .from("M VII.D.2")
        };
        let faults = |kernel: Kernel, paper| {
            let name = format!("{}, {n} processes: page faults of a process with ODP-Native", kernel.name());
            Claim::near(Calibrated, name, paper, 0.3, runs.pages(kernel, OdpNative)[0], "")
                .lacks(SHORT)
                .from("M table I")
        };
        let boltzmann = "M VII.D.4";
        claims.extend([
            factor(Kernel::LammpsEam, OdpEnhanced, PinDown, 37.8 / 4.0, FAULT, "M VII.D.3"),
            factor(Kernel::LammpsEam, OdpNative, PinDown, 35.0 / 4.0, FAULT, "M VII.D.3"),
            factor(Kernel::Awp512, OdpEnhanced, OdpOptimal, 24.0, STEPS, "M VII.D.1"),
            sp(OdpEnhanced, FAULT),
            sp(OdpNative, FAULT),
            factor(Kernel::Boltzmann, OdpEnhanced, PinDown, 53.7 / 30.13, READS, boltzmann),
            factor(Kernel::Boltzmann, OdpNative, PinDown, 54.8 / 30.13, READS, boltzmann),
            factor(Kernel::Lennard, OdpEnhanced, OdpOptimal, 1.0 / 0.7, BLOCKS, "M VII.D.5"),
            factor(Kernel::Lennard, OdpNative, OdpOptimal, 1.0 / 0.69, BLOCKS, "M VII.D.5"),
            faults(Kernel::LammpsLj, 2903.0),
            faults(Kernel::LammpsEam, 5011.0),
        ]);
    } else {
        claims.extend([
            factor(Kernel::LammpsLj, OdpEnhanced, PinDown, 71.2 / 7.0, FAULT, "M VII.D.3"),
            factor(Kernel::LammpsLj, OdpNative, PinDown, 70.9 / 7.0, FAULT, "M VII.D.3"),
            factor(Kernel::Awp512, OdpEnhanced, OdpOptimal, 32.0, STEPS, "M VII.D.1"),
        ]);
    }
    claims
}

const SHORT: &str = "There are at most two page faults for each exchange here: 2400 (LJ) and 4800 (EAM).";
const READS: &str = "M states neither how often a process reads nor how much. M's run takes 24 s longer with 831 page faults of a process, 30 ms \
                     for each one. Here 500 page faults cost 5 ms each: 0.6 ms for each of the eight processes of a node.";
const BLOCKS: &str =
    "M states neither how often a process reads nor how much. The kernel reads three blocks of 128 KiB in 6 ms.";

fn inputs() -> Vec<Input> {
    let mut inputs = INPUTS.to_vec();
    inputs.extend([
        Input {
            name: "time with Pin-down",
            paper: "Lammps-LJ with 128 processes 7 s, Lammps-EAM with 64 processes 4 s, Boltzmann with 64 processes 30.13 s",
            profile: "what a process computes in a step; 100 steps, as in the input files of LAMMPS",
            source: "M VII.D",
        },
        Input {
            name: "pages that the operating system takes",
            paper: "communication buffers are invalidated while processes compute; numbers of page faults",
            profile: "each page of a buffer at random while its process computes, for each kernel at the rate at which ODP-Native \
                      should have M's number of page faults; at most 10 times in a second",
            source: "M V.C, VII.D.1, tables I and II",
        },
        Input {
            name: "lists of Lammps-EAM",
            paper: "5011 and 5701 page faults with ODP-Native, two for each exchange",
            profile: "0.9 µs for an atom in a step, so that a list of one double for each atom is longer than 16 KiB with 128 \
                      processes, too",
            source: "M tables I and II",
        },
    ]);
    inputs
}

fn times(all: &[Runs]) -> Data {
    let mut data = Data::new(["processes", "kernel", "scheme", "step ms", "run s", "against Pin-down", "M: run s"]);
    for runs in all {
        for (kernel, steps) in runs.kernels.iter().zip(&runs.steps) {
            for scheme in SCHEMES {
                let found = runs.at(*kernel, scheme);
                data.push([
                    runs.processes.into(),
                    kernel.name().into(),
                    scheme_name(scheme).into(),
                    rounded(found.warm_round / 1e3).into(),
                    rounded(found.warm_round / 1e6 * f64::from(*steps)).into(),
                    rounded(runs.against(*kernel, scheme, Scheme::PinDown)).into(),
                    mpi_paper::time(*kernel, runs.processes, scheme).into(),
                ]);
            }
        }
    }
    data
}

/// Tables I and II.
fn statistics(all: &[Runs]) -> Data {
    let mut data = Data::new([
        "processes",
        "kernel",
        "scheme",
        "page faults",
        "M: page faults",
        "prefetched pages",
        "M: prefetched pages",
        "pages taken in simulated steps",
    ]);
    for runs in all {
        for kernel in &runs.kernels {
            for scheme in SCHEMES.into_iter().filter(|scheme| scheme.on_demand()) {
                let [faults, prefetched] = runs.pages(*kernel, scheme);
                let Row { faults: m_faults, prefetched: m_prefetched } =
                    mpi_paper::row(*kernel, runs.processes, scheme);
                data.push([
                    runs.processes.into(),
                    kernel.name().into(),
                    scheme_name(scheme).into(),
                    faults.into(),
                    m_faults.into(),
                    prefetched.into(),
                    m_prefetched.into(),
                    runs.at(*kernel, scheme).warm.taken.round().into(),
                ]);
            }
        }
    }
    data
}
