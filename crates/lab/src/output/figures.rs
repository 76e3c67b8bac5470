//! Pairs the drawings of a report with the papers' figures.

use crate::experiment::{Done, PaperFigure};

/// A figure of the papers and the drawings that belong to it.
pub(super) struct Pair {
    pub figure: Option<&'static PaperFigure>,
    /// Each as an SVG.
    pub drawings: Vec<String>,
    /// The drawings of a simulation that this run did not make.
    pub missing: bool,
}

impl PaperFigure {
    /// "The papers' figure: T fig. 5.2", or that there is none.
    pub(super) fn head(&self) -> String {
        match self.name {
            "" => "The papers have no such figure".to_owned(),
            name => format!("The papers' figure: {name}"),
        }
    }

    /// The parts of the description, each with its name.
    pub(super) fn terms(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let shows = if self.name.is_empty() { "Text" } else { "Shows" };
        [("Axes", self.axes), (shows, self.shows), ("Here", self.here)].into_iter().filter(|(_, text)| !text.is_empty())
    }
}

/// The papers' figures in their order, each with its drawings; drawings without a figure come last.
pub(super) fn pairs(done: &Done) -> Vec<Pair> {
    let mut drawings = done.report.drawings().into_iter();
    let mut pairs: Vec<Pair> = vec![];
    for figure in done.experiment.figures {
        let drawn: Vec<String> = drawings.by_ref().take(figure.drawings).collect();
        let missing = drawn.is_empty() && figure.drawings > 0;
        pairs.push(Pair { figure: Some(figure), drawings: drawn, missing });
    }
    let rest: Vec<String> = drawings.collect();
    if !rest.is_empty() {
        pairs.push(Pair { figure: None, drawings: rest, missing: false });
    }
    pairs
}

/// The experiment's figures of the papers that belong to its first `charts` drawings, and the others.
pub(super) fn split(done: &Done, charts: usize) -> (Vec<&'static PaperFigure>, Vec<&'static PaperFigure>) {
    let mut before = 0;
    done.experiment.figures.iter().partition(|figure| {
        let first = before;
        before += figure.drawings;
        first < charts
    })
}
