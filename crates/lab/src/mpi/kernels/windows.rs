//! Programs over windows, as Global Arrays make them: lock, get, unlock.

use super::grid::Grid;
use crate::mpi::script::{Op, Script};
use std::time::Duration;

/// Assumed: M says nothing.
pub const BOLTZMANN_STEPS: u32 = 100;
/// M's time of the whole run with 64 processes and Pin-down, s (M VII.D.4).
const BOLTZMANN: f64 = 30.13;
/// Bytes of an edge of a process's part. Assumed.
const EDGE: u64 = 64 << 10;

/// Steps of the molecular dynamics (M VII.D.5).
pub const LENNARD_STEPS: u32 = 7500;
/// A block of 128 × 128 doubles (M VII.D.5).
const BLOCK: u64 = 128 * 128 * 8;
/// Distances of pairs of 4096 atoms, 45 operations each, by the processes. Assumed.
const LENNARD_FLOP: f64 = 4096.0 * 4096.0 / 2.0 * 45.0;

/// Flow in a cavity: each process reads the edges of its neighbours in a plane.
pub fn boltzmann(grid: &Grid) -> Vec<Script> {
    let step = Duration::from_secs_f64(BOLTZMANN / f64::from(BOLTZMANN_STEPS) * 64.0 / grid.processes() as f64);
    let of = |rank: usize| [(0, 1), (0, -1), (1, 1), (1, -1)].map(|(d, way)| grid.beside(rank, d, way)).to_vec();
    scripts(grid, step, EDGE, of)
}

/// Force decomposition: each process reads the blocks of its row and its column.
pub fn lennard(grid: &Grid) -> Vec<Script> {
    let step = super::flops::computes(LENNARD_FLOP / grid.processes() as f64);
    let of = |rank: usize| [(0, 1), (1, 1), (2, 1)].map(|(d, way)| grid.beside(rank, d, way)).to_vec();
    scripts(grid, step, BLOCK, of)
}

fn scripts(grid: &Grid, step: Duration, len: u64, of: impl Fn(usize) -> Vec<usize>) -> Vec<Script> {
    (0..grid.processes())
        .map(|rank| {
            let mut script = Script::default();
            let (window, small) = (script.buffer(len), script.buffer(8));
            script.window = Some(window);
            script.body.push(Op::Compute(step));
            for from in of(rank) {
                let buffer = script.buffer(len);
                script.body.extend([Op::Lock(from), Op::Get { from, buffer, at: 0, len }, Op::Unlock(from)]);
            }
            // All wait for each other, and serve requests for their windows meanwhile.
            for bit in 0..grid.processes().ilog2() {
                let with = rank ^ (1 << bit);
                script.body.push(Op::Irecv { from: with, tag: bit, buffer: small, len: 8, req: 0 });
                script.send(with, bit, small, 8);
                script.body.push(Op::Wait(0));
            }
            script
        })
        .collect()
}
