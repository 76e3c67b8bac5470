#![forbid(unsafe_code)]
#![allow(dead_code)]
mod advice;
#[cfg(test)]
mod fake;
mod findings;
mod fit;
mod places;
mod plan;
mod search;
mod statistics;
mod units;
