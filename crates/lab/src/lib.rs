//! The laboratory: published experiments, run on the simulator or live, with figures, compared with the papers' claims.

#![forbid(unsafe_code)]

pub mod adapter;
pub mod bench;
pub mod claim;
pub mod data;
pub mod detectors;
pub mod edge;
mod environment;
pub mod experiment;
pub mod experiments;
pub mod figure;
pub mod guarded;
pub mod micro;
pub mod mpi;
pub mod output;
pub mod software;
pub mod statistics;
pub mod stream;
