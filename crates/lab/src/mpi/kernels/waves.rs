//! Waves in an elastic body, as in AWP-ODC: velocities (3) and stresses (6) on a grid; two planes of each go to the neighbours
//! while the process computes.

use super::flops::computes;
use super::grid::Grid;
use crate::mpi::script::{Op, Script};

/// Assumed: M says nothing.
pub const STEPS: u32 = 100;
/// Operations of a point in a step. Assumed.
const FLOP: f64 = 300.0;

/// A script of a step for each process: all receives and sends, then the computation, then all waits.
pub fn scripts(grid: &Grid, cube: u64) -> Vec<Script> {
    let sides = grid.part(cube);
    let points: u64 = sides.iter().product();
    let step = computes(FLOP * points as f64);
    (0..grid.processes())
        .map(|rank| {
            let mut script = Script::default();
            for (part, variables) in [(0, 3), (1, 6)] {
                exchange(&mut script, grid, rank, (part, variables), &sides);
                script.body.extend([Op::Compute(step * variables / 9), Op::WaitAll]);
            }
            script
        })
        .collect()
}

fn exchange(script: &mut Script, grid: &Grid, rank: usize, (part, variables): (u32, u32), sides: &[u64; 3]) {
    let mut sends = vec![];
    for variable in 0..variables {
        for side in 0..6 {
            let (dimension, way) = (side / 2, if side % 2 == 0 { 1 } else { -1 });
            let plane: u64 = (0..3).filter(|other| *other != dimension).map(|other| sides[other]).product();
            let (len, tag) = (2 * plane * 4, part * 100 + variable * 10 + side as u32);
            let (sent, received) = (script.buffer(len), script.buffer(len));
            let (to, from) = (grid.beside(rank, dimension, way), grid.beside(rank, dimension, -way));
            script.body.push(Op::Irecv { from, tag, buffer: received, len, req: 0 });
            sends.push(Op::Isend { to, tag, buffer: sent, len, req: 0 });
        }
    }
    script.body.extend(sends);
}
