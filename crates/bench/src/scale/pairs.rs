//! Pairs of processes that move bytes at the same time.

use super::wire::Wire;
use crate::peers::{self, Over};
use crate::perftest::{self, Icrc, words};
use anyhow::{Result, bail};
use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};
use weir_stage::{Child, Side, Stage};

const SIZE: usize = 64 << 10;
const WEIR: &str = "ib_write_bw";
/// Interval of readings.
const TICK: Duration = Duration::from_millis(20);
/// Time limit of a run, from the start of its last client.
const BOUND: Duration = Duration::from_secs(90);
/// A run lasts longer by this for each pair, because its pairs start one after the other.
const SECONDS_PER_PAIR: f64 = 0.1;
/// Before the first run: bytes per second that any machine reaches.
const FIRST_RATE: f64 = 0.5e9;
/// The smallest number of iterations of a pair.
const FEWEST: u64 = 500;

/// What the pairs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    Weir,
    Ucx,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Weir => WEIR,
            Program::Ucx => "UCX tcp tag_bw",
        }
    }

    /// Messages that a pair moves when it is asked for `iterations`.
    fn messages(self, iterations: u64) -> u64 {
        match self {
            Program::Weir => iterations,
            Program::Ucx => iterations + peers::warm_up(iterations),
        }
    }
}

/// Runs pairs; it keeps the rates of earlier runs, from which the number of iterations follows.
pub struct Pairs<'a> {
    stage: &'a Stage,
    /// Length of a run with few pairs.
    seconds: f64,
    /// By program and number of pairs: bytes per second of all pairs together.
    rates: HashMap<(Program, usize), f64>,
}

impl<'a> Pairs<'a> {
    pub fn new(stage: &'a Stage, seconds: f64) -> Self {
        Pairs { stage, seconds, rates: HashMap::new() }
    }

    /// Runs `count` pairs at once, and returns the bytes per second of all of them together.
    pub fn run(&mut self, program: Program, count: usize) -> Result<f64> {
        // The rate of as many pairs, otherwise that of the largest smaller number.
        let known = (1..=count).rev().find_map(|fewer| self.rates.get(&(program, fewer)));
        let rate = match known {
            Some(&rate) => rate,
            None => self.run_at(program, 1, FIRST_RATE)?,
        };
        let rate = self.run_at(program, count, rate)?;
        self.rates.insert((program, count), rate);
        Ok(rate)
    }

    /// One run, as long as it should be if the pairs together move `rate` bytes per second.
    fn run_at(&self, program: Program, count: usize, rate: f64) -> Result<f64> {
        let seconds = self.seconds + SECONDS_PER_PAIR * count as f64;
        let iterations = ((rate * seconds / (count * SIZE) as f64) as u64).max(FEWEST);
        // All servers listen before the first client starts.
        let (mut children, mut clients) = (Vec::with_capacity(2 * count), Vec::with_capacity(count));
        for _ in 0..count {
            let (server, client) = self.prepare(program, iterations)?;
            children.push(server);
            clients.push(client);
        }
        let mut wire = Wire::of(self.stage, Side::B)?;
        for mut client in clients {
            children.push(Child::spawn(&mut client, format!("{} (client)", program.name()))?);
            // On a machine that is busy with the first pairs, starting all clients takes seconds.
            wire.sample()?;
        }
        watch(&mut children, &mut wire)?;
        for child in children {
            child.wait(TICK)?.success()?;
        }
        wire.throughput((program.messages(iterations) * count as u64 * SIZE as u64) as f64)
    }

    /// A server that listens, and the command of its client.
    fn prepare(&self, program: Program, iterations: u64) -> Result<(Child, Command)> {
        match program {
            Program::Weir => {
                let arguments = words(&format!("-s {SIZE} -n {iterations}"));
                let mut pair = perftest::prepare(self.stage, WEIR, Icrc::Auto, &arguments)?;
                pair.client_of(self.stage);
                Ok((pair.server, pair.client))
            }
            Program::Ucx => {
                let pair = peers::prepare_ucx(self.stage, Over::Tcp, "tag_bw", SIZE, iterations)?;
                Ok((pair.server, pair.client))
            }
        }
    }
}

/// Reads the counter until all programs have ended; an error if one fails or does not end.
fn watch(children: &mut [Child], wire: &mut Wire) -> Result<()> {
    let end = Instant::now() + BOUND;
    loop {
        wire.sample()?;
        let mut running = 0;
        for child in children.iter_mut() {
            match child.poll()? {
                None => running += 1,
                Some(status) if !status.success() => bail!("{}", child.printed()?),
                Some(_) => {}
            }
        }
        if running == 0 {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{running} of {} programs had not ended after {BOUND:?}", children.len());
        }
        std::thread::sleep(TICK);
    }
}
