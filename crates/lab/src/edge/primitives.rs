//! The output of `weir edge primitives`.

use super::command;
use anyhow::Result;
use serde::Deserialize;

/// What the parts of a transfer cost on this machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Primitives {
    pub memory: Memory,
    pub calls: Calls,
    pub pages: Vec<Pages>,
}

/// Rates in GB/s, of all threads together.
#[derive(Clone, Debug, Deserialize)]
pub struct Memory {
    pub copies: Vec<Copied>,
    pub reads: Vec<Rate>,
    pub writes: Vec<Rate>,
    /// Of another NUMA node.
    pub remote: Option<Remote>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Copied {
    pub bytes: u64,
    pub threads: u32,
    pub gigabytes: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Rate {
    pub threads: u32,
    pub gigabytes: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Remote {
    pub read: f64,
    pub write: f64,
}

/// Times in µs.
#[derive(Clone, Debug, Deserialize)]
pub struct Calls {
    pub system_call: f64,
    pub ioctl: f64,
    pub buffer: f64,
    pub write_header: f64,
    pub read_header: f64,
}

/// Times of so many pages in one call, µs.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Pages {
    pub pages: u32,
    /// `None`: the process may not lock so many.
    pub pin: Option<f64>,
    pub unpin: Option<f64>,
    pub remap: f64,
}

/// Measures them, by this executable.
pub fn measured() -> Result<Primitives> {
    command::json(&["primitives".to_owned()])
}

impl Primitives {
    /// Times of so many pages; NaN if they were not measured.
    pub fn pages(&self, pages: u32) -> Pages {
        let none = Pages { pages, pin: None, unpin: None, remap: f64::NAN };
        self.pages.iter().find(|row| row.pages == pages).copied().unwrap_or(none)
    }
}

impl Memory {
    /// The rate of copies of a size; NaN if it was not measured.
    pub fn copy(&self, bytes: u64, threads: u32) -> f64 {
        let is_it = |copy: &&Copied| copy.bytes == bytes && copy.threads == threads;
        self.copies.iter().find(is_it).map_or(f64::NAN, |copy| copy.gigabytes)
    }

    pub fn read(&self, threads: u32) -> f64 {
        rate(&self.reads, threads)
    }

    pub fn write(&self, threads: u32) -> f64 {
        rate(&self.writes, threads)
    }
}

impl Pages {
    /// The time to pin them; NaN if it was not measured.
    pub fn pinned(&self) -> f64 {
        self.pin.unwrap_or(f64::NAN)
    }
}

fn rate(rates: &[Rate], threads: u32) -> f64 {
    rates.iter().find(|rate| rate.threads == threads).map_or(f64::NAN, |rate| rate.gigabytes)
}
