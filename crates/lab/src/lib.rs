//! The laboratory: published experiments, run on the simulator or live, their figures, and what the papers claim.

#![forbid(unsafe_code)]

pub mod bench;
pub mod claim;
pub mod data;
pub mod experiment;
pub mod experiments;
pub mod figure;
pub mod micro;
pub mod output;
