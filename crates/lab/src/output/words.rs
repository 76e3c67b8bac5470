//! How runs were made, and how many claims hold, in words.

use crate::adapter::CHANGED;
use crate::claim::{Claim, ENOUGH, Kind, Paper};
use crate::experiment::Done;

/// The labels, in the order of the tables.
pub(super) const KINDS: [Kind; 3] = [Kind::Calibrated, Kind::Shaped, Kind::Predicted];

/// What the labels of claims mean.
pub(super) const LABELS: [(&str, &str); 3] = [
    ("calibrated", "a parameter of the profile, or of the simulated host, was fixed from this observation"),
    ("shaped", "the mechanism was chosen or changed after this observation was seen"),
    ("predicted", "neither"),
];

/// What the descriptions of the papers' figures rest on.
pub(super) const DESCRIBED: &str = "Beside each drawing stands the papers' own figure in words. The descriptions follow \
    the captions and the text of the papers, without the figures themselves. “The text states no scale” means that \
    neither says whether an axis is linear or logarithmic.";

/// The publications.
pub(super) const SOURCES: &str = "T is T. Fukuoka's master's thesis, “Finding and Analyzing Performance Pitfalls of \
    On-Demand Paging of InfiniBand”, 2021. P is “Pitfalls of InfiniBand with On-Demand Paging” by T. Fukuoka, S. Sato \
    and K. Taura, 2021. E is S. Passas' master's thesis, “Analysis and Optimization of Overheads in Communication \
    Protocols Over High Speed Ethernet-based Cluster Interconnects”, University of Crete, 2008. M is “Designing MPI Library \
    with On-Demand Paging (ODP) of InfiniBand: Challenges and Benefits” by M. Li and others, SC 2016. F is “A Performance \
    Study of InfiniBand Fourteen Data Rate (FDR)” by Q. Liu and R. D. Russell, HPC 2014.";

/// What "18 of 20" means, the values and the charts.
pub(super) fn seeds_explained() -> String {
    format!(
        "A claim is judged with each seed. “18 of 20” beside a verdict: it holds at 18 of 20 seeds. It holds as a whole \
         if it holds at {:.0} % of them. Weir's value is the median over the seeds, the spread is from the lowest to \
         the highest. Drawings show the first seed.",
        ENOUGH * 100.0
    )
}

impl Done {
    /// "sim" or "live".
    pub fn runner(&self) -> &'static str {
        if self.live { "live" } else { "sim" }
    }

    /// "seed 1, 1 trial", "20 seeds from 1, 3 or 10 trials of each".
    pub(super) fn trials_text(&self) -> String {
        let counts: Vec<String> = self.trials.iter().map(u32::to_string).collect();
        let trials = format!("{} trial{}", counts.join(" or "), if self.trials == [1] { "" } else { "s" });
        match self.seeds {
            1 => format!("seed {}, {trials}", self.seed),
            seeds => format!("{seeds} seeds from {}, {trials} of each", self.seed),
        }
    }

    /// "connectx4", "connectx4 and 9 with changes".
    pub(super) fn adapters_text(&self) -> String {
        let (changed, plain): (Vec<&String>, Vec<&String>) =
            self.profiles.iter().partition(|name| name.contains(CHANGED));
        let mut words: Vec<String> = plain.into_iter().cloned().collect();
        let mut bases: Vec<(&str, usize)> = vec![];
        for name in &changed {
            let base = name.split(CHANGED).next().unwrap_or(name);
            match bases.iter_mut().find(|(known, _)| *known == base) {
                Some((_, count)) => *count += 1,
                None => bases.push((base, 1)),
            }
        }
        words.extend(bases.into_iter().map(|(base, count)| format!("{count} with changes to {base}")));
        words.join(", ")
    }

    /// What a simulation found for a claim of a live run.
    pub(super) fn simulated(&self, claim: &Claim) -> Option<&Claim> {
        self.simulated.iter().find(|simulated| simulated.name == claim.name)
    }

    /// Claims of the simulation beside a live run that the live run does not make.
    pub(super) fn only_simulated(&self) -> impl Iterator<Item = &Claim> {
        self.simulated.iter().filter(|claim| self.report.claims.iter().all(|live| live.name != claim.name))
    }
}

/// The paper's value with its unit, or the paper's words.
pub(super) fn paper_with_unit(claim: &Claim) -> String {
    match &claim.paper {
        Paper::Figure(_) => with_unit(claim.paper_text(), claim.unit),
        // A range, such as "0.002 – 0.004".
        Paper::Words(words) if words.chars().all(|letter| letter.is_ascii_digit() || ". –".contains(letter)) => {
            with_unit(claim.paper_text(), claim.unit)
        }
        Paper::Words(_) => claim.paper_text(),
    }
}

/// Weir's value with its unit.
pub(super) fn weir_with_unit(claim: &Claim) -> String {
    if claim.weir.is_finite() { with_unit(claim.weir_text(), claim.unit) } else { claim.weir_text() }
}

/// A simulated value beside a live one: "4.57, 20 of 20".
pub(super) fn simulated_text(claim: &Claim) -> String {
    format!("{}, {}", claim.weir_text(), claim.seeds_text())
}

/// "3 of 4" for the claims of a kind; `None` if there are none.
pub(super) fn count<'a>(claims: impl Iterator<Item = &'a Claim>, kind: Kind) -> Option<String> {
    let of_kind: Vec<bool> = claims.filter(|claim| claim.kind == kind).map(Claim::holds).collect();
    (!of_kind.is_empty()).then(|| format!("{} of {}", of_kind.iter().filter(|holds| **holds).count(), of_kind.len()))
}

/// How many claims of each kind hold: "3 of 4 calibrated, 1 of 2 shaped, 5 of 6 predicted".
pub(super) fn counts<'a>(claims: impl Iterator<Item = &'a Claim> + Clone) -> String {
    let one = |kind: Kind| count(claims.clone(), kind).map(|count| format!("{count} {}", kind.word()));
    KINDS.into_iter().filter_map(one).collect::<Vec<_>>().join(", ")
}

/// "3 of 4 claims hold", whatever their kinds.
pub(super) fn score<'a>(claims: impl Iterator<Item = &'a Claim>) -> String {
    let all: Vec<bool> = claims.map(Claim::holds).collect();
    format!("{} of {}", all.iter().filter(|holds| **holds).count(), all.len())
}

/// A claim as a sign: its shape is the label, a cross means that the claim fails.
pub(super) fn sign(claim: &Claim) -> &'static str {
    match (claim.kind, claim.holds()) {
        (_, false) => "✗",
        (Kind::Calibrated, true) => "◼",
        (Kind::Shaped, true) => "◆",
        (Kind::Predicted, true) => "●",
    }
}

/// Texts that stand below a table, each once, with the names of the claims that have it.
pub(super) fn notes<'a>(
    claims: &'a [Claim],
    of: impl Fn(&'a Claim) -> Option<&'a str>,
) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut notes: Vec<(&str, Vec<&str>)> = vec![];
    for claim in claims {
        let Some(text) = of(claim).filter(|text| !text.is_empty()) else { continue };
        match notes.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(&claim.name),
            None => notes.push((text, vec![&claim.name])),
        }
    }
    notes
}

fn with_unit(value: String, unit: &str) -> String {
    if unit.is_empty() { value } else { format!("{value} {unit}") }
}
