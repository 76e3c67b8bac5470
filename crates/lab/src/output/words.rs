//! How runs were made, and how many claims hold, in words.

use crate::claim::{Claim, Kind};
use crate::experiment::Done;

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

    /// What a simulation found for a claim of a live run.
    pub(super) fn simulated(&self, claim: &Claim) -> Option<&Claim> {
        self.simulated.iter().find(|simulated| simulated.name == claim.name)
    }
}

/// How many claims of each kind hold: "3 of 4 calibrated, 1 of 2 shaped, 5 of 6 predicted".
pub(super) fn counts<'a>(claims: impl Iterator<Item = &'a Claim> + Clone) -> String {
    let count = |kind: Kind| {
        let of_kind = claims.clone().filter(move |claim| claim.kind == kind);
        let all = of_kind.clone().count();
        (all > 0).then(|| format!("{} of {all} {}", of_kind.filter(|claim| claim.holds()).count(), kind.word()))
    };
    let kinds = [Kind::Calibrated, Kind::Shaped, Kind::Predicted];
    kinds.into_iter().filter_map(count).collect::<Vec<_>>().join(", ")
}
