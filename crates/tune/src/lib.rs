#![forbid(unsafe_code)]
#![allow(dead_code)]
#[cfg(test)]
mod fake;
mod places;
mod plan;
mod search;
mod statistics;
mod units;
