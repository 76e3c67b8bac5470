//! The laboratory: published experiments, run on the simulator or live, their figures, and what the papers claim.

#![forbid(unsafe_code)]

pub mod figure;
pub mod micro;
