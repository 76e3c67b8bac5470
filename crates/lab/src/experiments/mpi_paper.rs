//! What M's tables and text state of its applications.

use crate::mpi::kernels::Kernel;
use weir_msg::Scheme;

/// Page faults and prefetched pages; NaN where M has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub faults: f64,
    pub prefetched: f64,
}

/// Page faults of ODP-Native, ODP-Enhanced and ODP-Optimal; prefetched pages of ODP-Enhanced and ODP-Optimal.
type Line = (Kernel, [f64; 5]);

/// 64 processes.
const TABLE_1: [Line; 11] = [
    (Kernel::Bt, [2643.0, 2212.0, 0.0, 10930.0, 76510.0]),
    (Kernel::Cg, [219.0, 182.0, 0.0, 1792.0, 7392.0]),
    (Kernel::Lu, [273.0, 230.0, 0.0, 2160.0, 19980.0]),
    (Kernel::Mg, [779.0, 612.0, 0.0, 4288.0, 8776.0]),
    (Kernel::Sp, [4777.0, 4798.0, 24.0, 10929.0, 76235.0]),
    (Kernel::LammpsLj, [2903.0, 2447.0, 3.0, 19635.0, 47884.0]),
    (Kernel::LammpsEam, [5011.0, 3945.0, 5.0, 16689.0, 53597.0]),
    (Kernel::Awp256, [3213.0, 2368.0, 26.0, 5837.0, 14123.0]),
    (Kernel::Awp512, [28650.0, 23037.0, 107.0, 20164.0, 97156.0]),
    (Kernel::Boltzmann, [831.0, 723.0, 0.0, 1287.0, 2359.0]),
    (Kernel::Lennard, [1629.0, 1447.0, 0.0, 2307.0, 4816.0]),
];

/// 128 processes.
const TABLE_2: [Line; 9] = [
    (Kernel::Cg, [245.0, 143.0, 0.0, 1224.0, 6177.0]),
    (Kernel::Lu, [280.0, 180.0, 0.0, 1912.0, 18630.0]),
    (Kernel::Mg, [986.0, 730.0, 0.0, 5330.0, 10944.0]),
    (Kernel::LammpsLj, [3023.0, 2880.0, 4.0, 22378.0, 52266.0]),
    (Kernel::LammpsEam, [5701.0, 4430.0, 4.0, 20849.0, 63790.0]),
    (Kernel::Awp256, [2986.0, 2014.0, 0.0, 4358.0, 11229.0]),
    (Kernel::Awp512, [20638.0, 17252.0, 53.0, 28730.0, 67332.0]),
    (Kernel::Boltzmann, [1052.0, 704.0, 0.0, 3528.0, 17139.0]),
    (Kernel::Lennard, [1745.0, 1623.0, 0.0, 4032.0, 25382.0]),
];

/// Whether table II has it.
pub fn in_table_2(kernel: Kernel) -> bool {
    TABLE_2.iter().any(|(each, _)| *each == kernel)
}

/// Table I or II.
pub fn row(kernel: Kernel, processes: usize, scheme: Scheme) -> Row {
    let lines: &[Line] = match processes {
        64 => &TABLE_1,
        128 => &TABLE_2,
        _ => &[],
    };
    let none = [f64::NAN; 5];
    let [native, enhanced, optimal, enhanced_pages, optimal_pages] =
        lines.iter().find(|(each, _)| *each == kernel).map_or(none, |(_, line)| *line);
    let (faults, prefetched) = match scheme {
        Scheme::PinDown => (f64::NAN, f64::NAN),
        Scheme::OdpNative => (native, 0.0),
        Scheme::OdpEnhanced => (enhanced, enhanced_pages),
        Scheme::OdpOptimal => (optimal, optimal_pages),
    };
    Row { faults, prefetched }
}

/// The time of the whole run, s; NaN where the text has none.
pub fn time(kernel: Kernel, processes: usize, scheme: Scheme) -> f64 {
    // In the order of M's figures, as `Scheme::ALL`.
    let all = match (kernel, processes) {
        (Kernel::LammpsLj, 128) => [7.0, 71.2, 7.1, 70.9],
        (Kernel::LammpsEam, 64) => [4.0, 37.8, 4.0, 35.0],
        (Kernel::Boltzmann, 64) => [30.13, 53.7, 31.2, 54.8],
        _ => [f64::NAN; 4],
    };
    Scheme::ALL.iter().position(|each| *each == scheme).map_or(f64::NAN, |at| all[at])
}
