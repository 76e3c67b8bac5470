//! Experiments and their reports.

use crate::bench::Bench;
use crate::claim::Claim;
use crate::data::Data;
use crate::figure::{Bars, Drawing, Ladder, Panel, Stacks, sheet};
use crate::micro::Wakeup;
use crate::software::Software;
use anyhow::Result;
use serde::Serialize;
use std::time::Duration;

/// A published experiment that Weir can repeat.
pub struct Experiment {
    /// Name on the command line, of files and of tests.
    pub id: &'static str,
    pub title: &'static str,
    /// Its publication: T, P, E, M or F, as `experiments.rs` names them.
    pub source: &'static str,
    /// Why the simulator cannot run it; `None` if it can.
    pub not_simulated: Option<&'static str>,
    /// Why this machine cannot run it live, with the software that the caller has; `None` if it can.
    pub not_live: fn(&Software) -> Option<String>,
    /// What the authors did and found.
    pub paper: &'static str,
    /// The papers' own figures, in the order of the report's drawings.
    pub figures: &'static [PaperFigure],
    /// Its claims are about certain adapters, so that it does not run with `--profile`.
    pub fixed_adapters: bool,
    /// It is not repeated with other seeds: it judges its claims over seeds of its own, or over many processes, or has
    /// nothing random.
    pub one_seed: bool,
    /// Makes all runs and judges the claims.
    pub run: fn(&Bench<'_>) -> Result<Report>,
}

/// A figure of the papers, described beside the drawings of an experiment from its caption and from the text.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PaperFigure {
    /// Its numbers, "T fig. 5.2, P fig. 4"; empty if the papers have no such figure.
    pub name: &'static str,
    /// Its quantities and units, and its scales where the text states them.
    pub axes: &'static str,
    /// What it shows, in the numbers that the text gives; without a figure: where the text has the result.
    pub shows: &'static str,
    /// In which respects the drawings here differ from it.
    pub here: &'static str,
    /// Number of drawings of the report that it belongs to: panels first, then bars, then stacks, then
    /// ladders.
    pub drawings: usize,
}

/// The results of an experiment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub claims: Vec<Claim>,
    /// Observations that the model takes as they are, so that they cannot fail: they are no claims.
    pub inputs: Vec<Input>,
    pub panels: Vec<Panel>,
    pub bars: Vec<Bars>,
    pub stacks: Vec<Stacks>,
    pub ladders: Vec<Ladder>,
    /// All measurements, as `ID.csv`.
    pub data: Data,
    /// Live: why some claims are simulated only.
    pub not_live: &'static str,
    /// Further tables, each with a name.
    pub more: Vec<(&'static str, Data)>,
}

/// An observation that the model takes as it is.
#[derive(Clone, Debug, Serialize)]
pub struct Input {
    pub name: &'static str,
    /// In the paper's words or figures.
    pub paper: &'static str,
    /// The profile's value, or where it enters.
    pub profile: &'static str,
    pub source: &'static str,
}

/// A report, and how its runs were made.
pub struct Done {
    pub experiment: &'static Experiment,
    pub report: Report,
    /// Base of the seeds of all runs.
    pub seed: u64,
    /// Number of seeds over which the claims were judged.
    pub seeds: u32,
    /// The claims of a simulation of the same experiment, beside a live run.
    pub simulated: Vec<Claim>,
    /// The profiles of all runs.
    pub profiles: Vec<String>,
    /// Numbers of trials per setting; several numbers if settings differ in it.
    pub trials: Vec<u32>,
    /// Two processes ran, not the simulator.
    pub live: bool,
    /// Real time of all runs.
    pub took: Duration,
    /// How late the machine woke, in live runs.
    pub wakeup: Option<Wakeup>,
}

impl PaperFigure {
    /// Stands beside drawings of which the papers have no figure.
    pub const fn none(shows: &'static str, drawings: usize) -> PaperFigure {
        PaperFigure { name: "", axes: "", shows, here: "", drawings }
    }
}

/// A chosen experiment that was not run.
pub struct LeftOut {
    pub experiment: &'static Experiment,
    /// As the reports print it: "it …".
    pub why: String,
}

impl Report {
    /// The figure, if the experiment has one.
    pub fn figure(&self) -> Option<String> {
        let all = self.charts();
        (!all.is_empty()).then(|| sheet("", &all))
    }

    /// The packet ladders, if the experiment has any.
    pub fn ladder(&self) -> Option<String> {
        let all: Vec<&dyn Drawing> = self.ladders.iter().map(|ladder| ladder as &dyn Drawing).collect();
        (!all.is_empty()).then(|| sheet("", &all))
    }

    /// The drawings of the figure.
    pub fn charts(&self) -> Vec<&dyn Drawing> {
        let panels = self.panels.iter().map(|panel| panel as &dyn Drawing);
        let bars = self.bars.iter().map(|bars| bars as &dyn Drawing);
        panels.chain(bars).chain(self.stacks.iter().map(|stacks| stacks as &dyn Drawing)).collect()
    }

    /// Each drawing as its own SVG.
    pub fn drawings(&self) -> Vec<String> {
        let ladders = self.ladders.iter().map(|ladder| ladder as &dyn Drawing);
        self.charts().into_iter().chain(ladders).map(|drawing| sheet("", &[drawing])).collect()
    }

    /// The number of claims that hold, and of all claims.
    pub fn score(&self) -> (usize, usize) {
        (self.claims.iter().filter(|claim| claim.holds()).count(), self.claims.len())
    }
}
