//! Molecular dynamics: positions go to the neighbours of all six sides before the forces are computed, and forces come back.
//!
//! Each side is an exchange of its own: a receive that does not block, a send that does, and the wait for the receive, as in
//! LAMMPS.

use super::grid::Grid;
use crate::mpi::script::{Op, Script};
use std::time::Duration;

/// The input files that come with LAMMPS have 100 steps.
pub const STEPS: u32 = 100;

/// An input.
pub struct Input {
    /// M's time of the whole run with Pin-down, s, and its number of processes.
    run: (f64, f64),
    /// Time of an atom in a step, s.
    atom: f64,
    /// Atoms on a side's length of one, and the length that a neighbour must know, in the same unit.
    density: f64,
    depth: f64,
    /// Doubles of an atom that go forward and back, one list for each pass over all sides.
    forward: &'static [u64],
    back: &'static [u64],
}

/// M VII.D.3: 7 s with 128 processes. The time of an atom is assumed: published benchmarks of LAMMPS have such times. Density 0.8442, cutoff 2.5 and skin 0.3 as in its file.
pub const LJ: Input = Input { run: (7.0, 128.0), atom: 1e-6, density: 0.8442, depth: 2.8, forward: &[3], back: &[3] };

/// M VII.D.3: 4 s with 64 processes. Copper: 4 atoms in a cube of 3.615 Å; cutoff 4.95 and skin 1 Å. The densities of electrons
/// go back, and their derivatives forward, besides positions and forces.
///
/// The time of an atom is fitted on the page faults of ODP-Native (M tables I and II): 5011 with 64 processes and 5701 with 128 are
/// two in each of 24 exchanges of 100 steps, so lists of one double do not go through bounce buffers either. They must be longer
/// than 16 KiB, and with 1 µs they are not with 128 processes.
pub const EAM: Input = Input {
    run: (4.0, 64.0),
    atom: 0.9e-6,
    density: 4.0 / (3.615 * 3.615 * 3.615),
    depth: 5.95,
    forward: &[3, 1],
    back: &[1, 3],
};

/// A script of a step for each process. The problem is as large for each number of processes.
pub fn scripts(grid: &Grid, input: &Input) -> Vec<Script> {
    let processes = grid.processes() as f64;
    let step = input.run.0 / f64::from(STEPS) * input.run.1 / processes;
    let atoms = step / input.atom;
    let side = (atoms / input.density).cbrt();
    let ghosts = (side * side * input.depth * input.density) as u64;
    (0..grid.processes())
        .map(|rank| {
            let mut script = Script::default();
            // Some of the time is that of integrating, before the exchange; most is that of forces.
            let (integrates, forces) = (Duration::from_secs_f64(step * 0.1), Duration::from_secs_f64(step * 0.9));
            script.body.push(Op::Compute(integrates));
            let halves = forces / input.forward.len() as u32;
            pass(&mut script, grid, rank, ghosts * input.forward[0] * 8, 0);
            script.body.push(Op::Compute(halves));
            for (at, doubles) in input.forward.iter().enumerate().skip(1) {
                pass(&mut script, grid, rank, ghosts * input.back[at - 1] * 8, 10 * at as u32);
                pass(&mut script, grid, rank, ghosts * doubles * 8, 10 * at as u32 + 100);
                script.body.push(Op::Compute(halves));
            }
            pass(&mut script, grid, rank, ghosts * input.back[input.back.len() - 1] * 8, 200);
            script
        })
        .collect()
}

/// An exchange with the neighbours of all sides, one after the other.
fn pass(script: &mut Script, grid: &Grid, rank: usize, len: u64, tag: u32) {
    for dimension in 0..3 {
        for (way, nth) in [(1, 0), (-1, 1)] {
            let (to, from) = (grid.beside(rank, dimension, way), grid.beside(rank, dimension, -way));
            let tag = tag + 2 * dimension as u32 + nth;
            let (sent, received) = (script.buffer(len), script.buffer(len));
            script.body.push(Op::Irecv { from, tag, buffer: received, len, req: 0 });
            script.send(to, tag, sent, len);
            script.body.push(Op::Wait(0));
        }
    }
}
