//! Pinned bytes of a process with each scheme (M fig. 10 and 11).

use super::mpi_common::*;
use crate::bench::Bench;
use crate::claim::{Claim, Kind::Predicted};
use crate::data::Data;
use crate::experiment::{Experiment, PaperFigure, Report};
use crate::figure::{Axis, Bars};
use crate::mpi::kernels::Kernel;
use crate::mpi::measure::{self, Found, Run};
use anyhow::Result;
use weir_msg::Scheme;

pub const EXPERIMENT: Experiment = Experiment {
    id: "mpi-pinned",
    title: "MPI with on-demand paging: pinned memory",
    source: "M fig. 10 and 11",
    not_simulated: None,
    not_live: |_| None,
    paper: "With on-demand paging only bounce buffers are pinned. The size of pinned buffers of a process is 9 times smaller for \
            Lammps-LJ and Boltzmann, 10 times for AWP-ODC, and 11 times for Lammps-EAM.",
    figures: &[PaperFigure {
        name: "M fig. 10 and 11",
        axes: "Size of pinned buffers of each application with Pin-down and with the other schemes. The text states no scale.",
        shows: "Factors of 9 to 11.",
        here: "Kernels of our own, with 128 processes like Lammps (M VII.D.3), with 64 the others: pinned bytes of a process, and \
               the factor.",
        drawings: 3,
    }],
    fixed_adapters: true,
    one_seed: true,
    run,
};

const BUFFERS: &str = "The factor is that of the program's buffers to bounce buffers. M states the size of neither. weir-msg pins 32 KiB of bounce \
                       buffers for each peer, and up to 256 KiB if the peer sends many messages at once (like AWP-ODC, which sends \
                       six to a side). The kernel's buffers follow from its input.";

fn run(bench: &Bench<'_>) -> Result<Report> {
    let processes = |kernel: Kernel| match kernel {
        _ if bench.shrink > 1 => 16,
        Kernel::LammpsLj | Kernel::LammpsEam => 128,
        _ => 64,
    };
    let adapter = adapter(bench)?;
    let with = |kernel: Kernel| {
        let program = kernel.program(processes(kernel), 2);
        [Scheme::PinDown, Scheme::OdpOptimal].map(|scheme| Run::new(scheme, 8, program.scripts.clone(), &adapter))
    };
    let runs: Vec<Run> = Kernel::ALL.into_iter().flat_map(with).collect();
    let found = measure::all(bench, &runs);
    let pairs: Vec<(Kernel, &[Found])> = Kernel::ALL.into_iter().zip(found.chunks(2)).collect();
    let fewer = |pair: &[Found]| pair[0].pinned / pair[1].pinned;
    let mut data = Data::new(["kernel", "processes", "Pin-down: pinned bytes", "ODP-Optimal: pinned bytes", "factor"]);
    for (kernel, pair) in &pairs {
        data.push([
            kernel.name().into(),
            processes(*kernel).into(),
            rounded(pair[0].pinned).into(),
            rounded(pair[1].pinned).into(),
            rounded(fewer(pair)).into(),
        ]);
    }
    let of = |kernel: Kernel| pairs.iter().find(|(each, _)| *each == kernel).map_or(f64::NAN, |(_, pair)| fewer(pair));
    let claim = |kernel: Kernel, paper: f64| {
        let name = format!("{}: pinned bytes with Pin-down against ODP-Optimal", kernel.name());
        Claim::near(Predicted, name, paper, 0.3, of(kernel), "times").lacks(BUFFERS)
    };
    let least = pairs.iter().map(|(_, pair)| fewer(pair)).fold(f64::INFINITY, f64::min);
    let claims = vec![
        Claim::at_least(
            Predicted,
            "all kernels: pinned bytes with Pin-down against ODP-Optimal, least",
            "smaller",
            1.0,
            least,
            "times",
        ),
        claim(Kernel::LammpsLj, 9.0),
        claim(Kernel::LammpsEam, 11.0),
        claim(Kernel::Awp512, 10.0),
        claim(Kernel::Awp256, 10.0),
        claim(Kernel::Boltzmann, 9.0),
    ];
    let bars = |title: &str, label: &str, value: &dyn Fn(&[Found]) -> f64| Bars {
        title: title.into(),
        x: Axis::linear(label).showing(0.0, 0.0),
        bars: pairs.iter().map(|(kernel, pair)| (kernel.name().to_owned(), value(pair))).collect(),
    };
    let mib = f64::from(1 << 20);
    let bars = vec![
        bars("Pin-down", "pinned (MiB) of a process", &|pair| pair[0].pinned / mib),
        bars("ODP-Optimal", "pinned (MiB) of a process", &|pair| pair[1].pinned / mib),
        bars("Pin-down against ODP-Optimal", "times", &fewer),
    ];
    Ok(Report { claims, bars, data, ..Report::default() })
}
