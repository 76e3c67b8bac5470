//! What the packets of a run show, found by the analysis of `weir analyze`.

use crate::figure::{Ladder, Rung};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_analyze::report::{Document, FindingEntry, LadderStep, Mark};
use weir_analyze::{Analysis, Options};

/// What the analysis found in the captures of a run.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Kind, how often, and for how long requests waited, in the analysis' order.
    pub findings: Vec<(&'static str, u64, Duration)>,
    /// The packets around the most expensive packet damming.
    pub dammed: Option<Vec<LadderStep>>,
}

/// What the captures of a run show. Each has a connection's packets as one end saw them, so that one of them counts: that with
/// the most expensive packet damming, otherwise that of which requests waited the longest.
pub fn evidence(captures: &[PathBuf]) -> Result<Evidence> {
    let all = captures.iter().map(|path| of(path)).collect::<Result<Vec<Evidence>>>()?;
    let order =
        |each: &Evidence| (each.cost("damming"), each.findings.iter().map(|(.., time)| *time).sum::<Duration>());
    Ok(all.into_iter().max_by_key(order).unwrap_or_default())
}

fn of(path: &Path) -> Result<Evidence> {
    let mut analysis = Analysis::new(Options::default());
    let mut reader = weir_capture::open(path).with_context(|| path.display().to_string())?;
    // The process may have been killed while it wrote: what comes before counts.
    while let Ok(Some(frame)) = reader.next_frame() {
        analysis.frame(0, &frame);
    }
    let report = analysis.finish();
    let document = Document::new(&report, &[path.display().to_string()]);
    let time = |entry: &FindingEntry| Duration::from_nanos(entry.cost_ns);
    let findings = document.findings.iter().map(|entry| (entry.kind, entry.count, time(entry))).collect();
    let dammed = document.findings.iter().filter(|entry| entry.kind == "damming").max_by_key(|entry| entry.cost_ns);
    Ok(Evidence { findings, dammed: dammed.map(|entry| entry.ladder.clone()) })
}

impl Evidence {
    /// How long requests waited because of a kind of finding.
    pub fn cost(&self, kind: &str) -> Duration {
        self.findings.iter().filter(|(known, ..)| *known == kind).map(|(.., time)| *time).sum()
    }

    /// The ladder of the dammed request.
    pub fn ladder(&self, title: &str) -> Option<Ladder> {
        let steps = self.dammed.as_ref()?;
        let rung = |step: &LadderStep| {
            let lost = matches!(step.mark, Mark::Lost | Mark::Unanswered);
            Rung {
                time: Duration::from_nanos(step.time_ns),
                from_client: step.from_requester,
                label: format!("{} {}", step.what, step.psn),
                operation: step.from_requester.then_some(lost.into()),
                lost,
            }
        };
        Some(Ladder { title: title.into(), rungs: steps.iter().map(rung).collect() })
    }
}
