//! What an experiment is, and what comes of it.

use crate::bench::Bench;
use crate::claim::Claim;
use crate::data::Data;
use crate::figure::{Bars, Drawing, Ladder, Panel, sheet};
use crate::micro::Wakeup;
use anyhow::Result;
use std::time::Duration;

/// A published experiment, as it can be repeated here.
pub struct Experiment {
    pub id: &'static str,
    pub title: &'static str,
    /// Where it is published: T is the thesis, P the paper.
    pub source: &'static str,
    /// What the authors did and found.
    pub paper: &'static str,
    /// Whether two real processes can do it in reasonable time.
    pub live: bool,
    /// Its claims name adapters, so that it says nothing of any other.
    pub own_adapters: bool,
    pub run: fn(&Bench<'_>) -> Result<Report>,
}

/// What came of one.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub claims: Vec<Claim>,
    pub panels: Vec<Panel>,
    pub bars: Vec<Bars>,
    pub ladders: Vec<Ladder>,
    pub data: Data,
    /// Further tables, each with a name.
    pub more: Vec<(&'static str, Data)>,
}

/// A report, and how it came about.
pub struct Done {
    pub experiment: &'static Experiment,
    pub report: Report,
    pub seed: u64,
    pub profiles: Vec<String>,
    /// How many there were of each setting: more than one number, if not as many of all.
    pub trials: Vec<u32>,
    pub live: bool,
    pub took: Duration,
    /// How exactly the machine slept, if it did.
    pub wakeup: Option<Wakeup>,
}

impl Report {
    /// The figure, if the experiment has one.
    pub fn figure(&self) -> Option<String> {
        let panels = self.panels.iter().map(|panel| panel as &dyn Drawing);
        let all: Vec<&dyn Drawing> = panels.chain(self.bars.iter().map(|bars| bars as &dyn Drawing)).collect();
        (!all.is_empty()).then(|| sheet("", &all))
    }

    /// The packet ladders, if it has any.
    pub fn ladder(&self) -> Option<String> {
        let all: Vec<&dyn Drawing> = self.ladders.iter().map(|ladder| ladder as &dyn Drawing).collect();
        (!all.is_empty()).then(|| sheet("", &all))
    }

    /// Each drawing by itself.
    pub fn drawings(&self) -> Vec<String> {
        let panels = self.panels.iter().map(|panel| panel as &dyn Drawing);
        let bars = self.bars.iter().map(|bars| bars as &dyn Drawing);
        let ladders = self.ladders.iter().map(|ladder| ladder as &dyn Drawing);
        panels.chain(bars).chain(ladders).map(|drawing| sheet("", &[drawing])).collect()
    }

    /// How many claims hold, of how many.
    pub fn score(&self) -> (usize, usize) {
        (self.claims.iter().filter(|claim| claim.holds()).count(), self.claims.len())
    }
}
