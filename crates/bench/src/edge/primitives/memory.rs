//! Rates of memory: copies of several sizes, and reads and writes apart, on one or two threads.

use super::timing::{median, seconds};
use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Sizes of copies, bytes: within the caches, and beyond.
const SIZES: [usize; 8] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Bytes that are read or written, of each thread: more than its share of the caches.
const LARGE: usize = 64 << 20;
const THREADS: [usize; 2] = [1, 2];
/// Runs with several threads.
const RUNS: usize = 5;

/// Rates in GB/s, of all threads together.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub copies: Vec<Copied>,
    pub reads: Vec<Rate>,
    pub writes: Vec<Rate>,
    /// Reads and writes of one thread in the memory of another NUMA node.
    pub remote: Option<Remote>,
    /// Why there is no such row.
    pub not_remote: Option<String>,
}

/// A copy.
#[derive(Debug, Serialize)]
pub struct Copied {
    pub bytes: usize,
    pub threads: usize,
    pub gigabytes: f64,
}

/// A read or a write of much memory.
#[derive(Debug, Serialize)]
pub struct Rate {
    pub threads: usize,
    pub gigabytes: f64,
}

/// Both, one thread.
#[derive(Debug, Serialize)]
pub struct Remote {
    pub read: f64,
    pub write: f64,
}

/// Measures all of it.
pub fn measure() -> Result<Memory> {
    let copies = SIZES.iter().flat_map(|&bytes| THREADS.map(|threads| copied(bytes, threads))).collect();
    let rates = |job: fn(&mut [u64])| THREADS.map(|threads| rate(threads, job)).into();
    let (remote, not_remote) = match nodes()?.as_slice() {
        [first, second, ..] => match remote(first, second) {
            Ok(remote) => (Some(remote), None),
            // A container may have the processors of one node only.
            Err(why) => (None, Some(format!("processors {first} and {second}: {why:#}"))),
        },
        _ => (None, Some("this machine has one NUMA node".to_owned())),
    };
    Ok(Memory { copies, reads: rates(read), writes: rates(write), remote, not_remote })
}

fn copied(bytes: usize, threads: usize) -> Copied {
    let buffers = || (vec![1u8; bytes], vec![2u8; bytes]);
    let job = |(from, to): &mut (Vec<u8>, Vec<u8>)| {
        to.copy_from_slice(black_box(&*from));
        black_box(to);
    };
    let seconds = match threads {
        1 => {
            let mut buffers = buffers();
            seconds(|| job(&mut buffers))
        }
        _ => together(threads, bytes, buffers, job),
    };
    Copied { bytes, threads, gigabytes: (bytes * threads) as f64 * 1e-9 / seconds }
}

fn rate(threads: usize, job: fn(&mut [u64])) -> Rate {
    let taken = together(threads, LARGE, || vec![1u64; LARGE / 8], |memory| job(memory));
    Rate { threads, gigabytes: (LARGE * threads) as f64 * 1e-9 / taken }
}

fn read(memory: &mut [u64]) {
    black_box(memory.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
}

fn write(memory: &mut [u64]) {
    memory.fill(black_box(7));
    black_box(memory);
}

/// Seconds of a job when so many threads do it at once, each with buffers of its own; the median of runs, each of which
/// ends with the last thread.
fn together<B>(threads: usize, bytes: usize, buffers: impl Fn() -> B + Sync, job: impl Fn(&mut B) + Sync) -> f64 {
    // A run handles 64 MiB at least.
    let calls = (LARGE / bytes).max(1);
    let gate = Barrier::new(threads);
    let work = || {
        let mut buffers = buffers();
        job(&mut buffers);
        let run = |_| {
            gate.wait();
            let begin = Instant::now();
            (0..calls).for_each(|_| job(&mut buffers));
            begin.elapsed().as_secs_f64() / calls as f64
        };
        (0..RUNS).map(run).collect::<Vec<f64>>()
    };
    let all: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(|h| h.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    median((0..RUNS).map(|run| all.iter().map(|times| times[run]).fold(0.0, f64::max)).collect())
}

/// A processor of each NUMA node with memory.
fn nodes() -> Result<Vec<usize>> {
    let mut found = vec![];
    for node in 0.. {
        let Ok(list) = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")) else { break };
        let first = list.trim().split([',', '-']).next().unwrap_or_default();
        if !first.is_empty() {
            found.push(first.parse().with_context(|| format!("processors of node {node}: {list}"))?);
        }
    }
    Ok(found)
}

/// Memory that a thread on one processor has touched first, used by another.
fn remote(owner: &usize, user: &usize) -> Result<Remote> {
    let on = |cpu: usize| -> Result<()> {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
    };
    let own = std::thread::scope(|scope| scope.spawn(|| on(*owner).map(|()| vec![1u64; LARGE / 8])).join());
    let mut memory = own.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let used = std::thread::scope(|scope| {
        let user = || {
            on(*user)?;
            let rate = |taken: f64| LARGE as f64 * 1e-9 / taken;
            Ok(Remote { read: rate(seconds(|| read(&mut memory))), write: rate(seconds(|| write(&mut memory))) })
        };
        scope.spawn(user).join()
    });
    used.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_positive_on_one_and_two_threads() {
        for threads in THREADS {
            let one = copied(64 << 10, threads);
            assert!(one.gigabytes > 0.0 && one.threads == threads, "{one:?}");
        }
        assert!(!nodes().unwrap().is_empty() || !std::path::Path::new("/sys/devices/system/node").exists());
    }
}
