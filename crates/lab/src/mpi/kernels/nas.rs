//! NAS CG, LU and MG, class C.

use super::flops::computes;
use super::grid::Grid;
use crate::mpi::script::{Op, Script};

/// CG: 75 times 26 products of a matrix and a vector.
pub const CG_STEPS: u32 = 75 * 26;
/// Operations of CG: 143.3 · 10⁹, as far as remembered.
const CG_FLOP: f64 = 143.3e9;
const CG_ROWS: u64 = 150_000;

/// A product: sums over a row of processes, an exchange with the transposed process, and two sums of a number.
pub fn cg(grid: &Grid) -> Vec<Script> {
    let processes = grid.processes();
    let columns: usize = 1 << (processes.ilog2() / 2);
    let len = CG_ROWS / columns as u64 * 8;
    let step = computes(CG_FLOP / f64::from(CG_STEPS) / processes as f64);
    let exchange = |script: &mut Script, with: usize, tag: u32, len: u64| {
        let (sent, received) = (script.buffer(len), script.buffer(len));
        script.body.push(Op::Irecv { from: with, tag, buffer: received, len, req: 0 });
        script.send(with, tag, sent, len);
        script.body.push(Op::Wait(0));
    };
    (0..processes)
        .map(|rank| {
            let mut script = Script::default();
            script.body.push(Op::Compute(step));
            for bit in 0..columns.ilog2() {
                exchange(&mut script, rank ^ (1 << bit), bit, len);
            }
            // The transposed process; without one in a grid that is no square, the other half.
            let square = columns * columns == processes;
            let with = if square { (rank % columns) * columns + rank / columns } else { rank ^ (processes / 2) };
            if with != rank {
                exchange(&mut script, with, 20, len);
            }
            for sum in 0..2 {
                for bit in 0..columns.ilog2() {
                    exchange(&mut script, rank ^ (1 << bit), 30 + 10 * sum + bit, 8);
                }
            }
            script
        })
        .collect()
}

/// LU: points on a side, and planes that the waves of a step go through.
const LU_SIDE: u64 = 162;
/// Operations of a point in a step: those of class A (64.57 · 10⁹ for 64³ points and 250 steps).
const LU_FLOP: f64 = 985.0;
/// Planes that are computed at a time here. LU takes one; this saves events, and the sums of bytes are the same.
const PLANES: u64 = 6;

/// Two waves through a plane of processes, in blocking calls, and an exchange of faces.
pub fn lu(grid: &Grid) -> Vec<Script> {
    let processes = grid.processes();
    let columns: usize = 1 << processes.ilog2().div_ceil(2);
    let rows = processes / columns;
    let (wide, high) = (LU_SIDE / columns as u64, LU_SIDE / rows as u64);
    let step = computes(LU_FLOP * (LU_SIDE * LU_SIDE * LU_SIDE) as f64 / processes as f64);
    let stages = LU_SIDE / PLANES;
    let stage = step * 2 / 3 / (2 * stages) as u32;
    (0..processes)
        .map(|rank| {
            let mut script = Script::default();
            let (x, y) = ((rank % columns) as isize, (rank / columns) as isize);
            let inside = |x: isize, y: isize| {
                let there = x >= 0 && y >= 0 && x < columns as isize && y < rows as isize;
                there.then(|| y as usize * columns + x as usize)
            };
            let small = [high, wide].map(|points| points * 5 * 8 * PLANES);
            let buffers = small.map(|len| [script.buffer(len), script.buffer(len)]);
            for way in [1, -1] {
                let ends = [[(x - way, y), (x + way, y)], [(x, y - way), (x, y + way)]];
                for _ in 0..stages {
                    for (nth, [from, _]) in ends.iter().enumerate() {
                        if let Some(from) = inside(from.0, from.1) {
                            script.receive(from, nth as u32, buffers[nth][1], small[nth]);
                        }
                    }
                    script.body.push(Op::Compute(stage));
                    for (nth, [_, to]) in ends.iter().enumerate() {
                        if let Some(to) = inside(to.0, to.1) {
                            script.send(to, nth as u32, buffers[nth][0], small[nth]);
                        }
                    }
                }
            }
            script.body.push(Op::Compute(step / 3));
            let faces = [((1, 0), high), ((-1, 0), high), ((0, 1), wide), ((0, -1), wide)];
            for (nth, ((dx, dy), points)) in faces.into_iter().enumerate() {
                let (tag, len) = (10 + nth as u32, 2 * points * LU_SIDE * 5 * 8);
                let (sent, received) = (script.buffer(len), script.buffer(len));
                let from = inside(x - dx, y - dy);
                if let Some(from) = from {
                    script.body.push(Op::Irecv { from, tag, buffer: received, len, req: 0 });
                }
                if let Some(to) = inside(x + dx, y + dy) {
                    script.send(to, tag, sent, len);
                }
                script.body.push(Op::Wait(0));
            }
            script
        })
        .collect()
}

/// MG: points on a side of the finest grid.
const MG_SIDE: u64 = 512;
/// Operations of a point in a step: those of class A (3.905 · 10⁹ for 256³ points and 4 steps).
const MG_FLOP: f64 = 58.0;

/// A V-cycle: on each level down and up, faces go to both neighbours of each dimension.
pub fn mg(grid: &Grid) -> Vec<Script> {
    let processes = grid.processes();
    let step = computes(MG_FLOP * (MG_SIDE * MG_SIDE * MG_SIDE) as f64 / processes as f64);
    let levels: i32 = 7;
    // Each level has an eighth of the points of the level above.
    let whole: f64 = (0..levels).map(|level| 0.125f64.powi(level)).sum();
    (0..processes)
        .map(|rank| {
            let mut script = Script::default();
            for level in (0..levels).chain((0..levels).rev()) {
                let sides = grid.part(MG_SIDE >> level);
                script.body.push(Op::Compute(step.mul_f64(0.125f64.powi(level) / whole / 2.0)));
                for dimension in 0..3 {
                    let points: u64 =
                        (0..3).filter(|other| *other != dimension).map(|other| sides[other] + 2).product();
                    let len = points * 8;
                    for (way, nth) in [(1, 0), (-1, 1)] {
                        let (to, from) = (grid.beside(rank, dimension, way), grid.beside(rank, dimension, -way));
                        let tag = 2 * dimension as u32 + nth;
                        let (sent, received) = (script.buffer(len), script.buffer(len));
                        script.body.push(Op::Irecv { from, tag, buffer: received, len, req: 0 });
                        script.send(to, tag, sent, len);
                        script.body.push(Op::Wait(0));
                    }
                }
            }
            script
        })
        .collect()
}
