//! NAS BT and SP (class C, 162³ points): after the faces, lines are solved in three dimensions, forward and back. Each process
//! has cells along the diagonals, so that all work in each stage.

use super::flops::computes;
use super::grid::Grid;
use crate::mpi::script::{BufferId, Op, Script};
use std::time::Duration;

/// A benchmark.
pub struct Sweep {
    /// Operations of a point in a step: those of class A (181.3 and 102.0 · 10⁹ for 64³ points) by points and steps.
    flop: f64,
    /// Doubles of a point that go to the next stage: forward, and back.
    doubles: [u64; 2],
    /// The process computes between a send and its completion (M VII.D.2, of SP).
    overlaps: bool,
}

pub const BT: Sweep = Sweep { flop: 3458.0, doubles: [30, 5], overlaps: false };
pub const SP: Sweep = Sweep { flop: 973.0, doubles: [22, 10], overlaps: true };

const SIDE: u64 = 162;

/// A script of a step for each process.
pub fn scripts(grid: &Grid, sweep: &Sweep) -> Vec<Script> {
    let processes = grid.processes();
    // The number of processes should be a square; 128 are taken for 11².
    let cells = (processes as f64).sqrt() as u64;
    let face = (SIDE / cells).pow(2);
    let step = computes(sweep.flop * (SIDE * SIDE * SIDE) as f64 / processes as f64);
    let stages = 2 * 3 * cells as u32;
    let stage = step / (stages + 3);
    (0..processes)
        .map(|rank| {
            let mut script = Script::default();
            faces(&mut script, grid, rank, cells * face * 2 * 5 * 8, stage * 3);
            for dimension in 0..3 {
                for (nth, doubles) in sweep.doubles.iter().enumerate() {
                    let way = if nth == 0 { 1 } else { -1 };
                    let ends = [grid.beside(rank, dimension, way), grid.beside(rank, dimension, -way)];
                    let tag = 100 + 2 * dimension as u32 + nth as u32;
                    line(&mut script, sweep, ends, tag, (cells, face * doubles * 8), stage);
                }
            }
            script
        })
        .collect()
}

fn faces(script: &mut Script, grid: &Grid, rank: usize, len: u64, computes: Duration) {
    for side in 0..6 {
        let (dimension, way) = (side / 2, if side % 2 == 0 { 1 } else { -1 });
        let received = script.buffer(len);
        script.body.push(Op::Irecv {
            from: grid.beside(rank, dimension, -way),
            tag: side as u32,
            buffer: received,
            len,
            req: 0,
        });
    }
    for side in 0..6 {
        let (dimension, way) = (side / 2, if side % 2 == 0 { 1 } else { -1 });
        let sent = script.buffer(len);
        script.body.push(Op::Isend {
            to: grid.beside(rank, dimension, way),
            tag: side as u32,
            buffer: sent,
            len,
            req: 0,
        });
    }
    script.body.extend([Op::WaitAll, Op::Compute(computes)]);
}

/// All stages of a line: each takes what the stage before has, except for the first.
fn line(
    script: &mut Script,
    sweep: &Sweep,
    [to, from]: [usize; 2],
    tag: u32,
    (cells, len): (u64, u64),
    stage: Duration,
) {
    let (sent, received): (BufferId, BufferId) = (script.buffer(len), script.buffer(len));
    for at in 0..cells {
        let (first, last) = (at == 0, at + 1 == cells);
        let irecv = Op::Irecv { from, tag, buffer: received, len, req: 1 };
        let isend = Op::Isend { to, tag, buffer: sent, len, req: 2 };
        if !first {
            script.body.push(irecv);
        }
        if sweep.overlaps {
            // What can be done without the stage before, while that one's result is on its way.
            script.body.push(Op::Compute(stage));
        }
        if !first {
            script.body.extend([Op::Wait(1), Op::Wait(2)]);
        }
        if !sweep.overlaps {
            script.body.push(Op::Compute(stage));
        }
        if !last {
            script.body.push(isend);
        }
    }
    script.body.push(Op::Wait(2));
}
