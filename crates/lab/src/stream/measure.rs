//! All jobs of an experiment: simulated on threads, or live in turns.

use super::sim::{ADAPTER, Route, Simulated};
use super::{Found, Job, Measure, Place, Session, SideFound};
use crate::bench::Bench;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use weir_stage::Stage;

/// Live runs of a job, of which the median counts.
const TRIALS: u32 = 3;
/// Bytes of a packet that the papers' MTU of 4096 needs.
const STAGE_MTU: u32 = 9000;

/// Jobs, and what was found for each.
#[derive(Default)]
pub struct Runs(Vec<(Route, Job, Found)>);

impl Runs {
    /// Measures jobs. A job that is there twice is measured once.
    pub fn of(bench: &Bench<'_>, jobs: impl IntoIterator<Item = (Route, Job)>) -> Result<Runs> {
        let mut once: Vec<(Route, Job)> = vec![];
        jobs.into_iter().for_each(|job| {
            if !once.contains(&job) {
                once.push(job);
            }
        });
        let found = if bench.live { live(bench, &once)? } else { simulated(bench, &once)? };
        Ok(Runs(once.into_iter().zip(found).map(|((route, job), found)| (route, job, found)).collect()))
    }

    /// What was found for a job.
    pub fn get(&self, route: Route, job: &Job) -> Option<&Found> {
        self.0.iter().find(|(of, each, _)| *of == route && each == job).map(|(_, _, found)| found)
    }

    /// Its throughput, Gbit/s; NaN if it was not measured.
    pub fn gbits(&self, route: Route, job: &Job) -> f64 {
        self.get(route, job).map_or(f64::NAN, |found| found.gbits)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &(Route, Job, Found)> {
        self.0.iter()
    }
}

fn simulated(bench: &Bench<'_>, jobs: &[(Route, Job)]) -> Result<Vec<Found>> {
    bench.note(ADAPTER, 1);
    let profile = Arc::new(weir_profiles::load(ADAPTER)?);
    let found = |(route, job): &(Route, Job)| {
        Simulated::new(profile.clone(), *route).measure(job).with_context(|| format!("{job:?}"))
    };
    bench.on_threads(jobs, found).into_iter().collect()
}

/// In rounds, of which every other goes backwards: what drifts does not favour a job.
fn live(bench: &Bench<'_>, jobs: &[(Route, Job)]) -> Result<Vec<Found>> {
    (bench.progress)(jobs.len(), 0);
    let trials = bench.trials(TRIALS);
    bench.note("this machine", trials);
    let weir = std::env::current_exe().context("cannot find the path of the weir command")?;
    let library = weir_stage::library_folder()?;
    let placed = jobs.iter().any(|(_, job)| job.sender != Place::default() || job.receiver != Place::default());
    let compared = jobs.iter().any(|(route, _)| *route == Route::BackToBack);
    let mut sessions: Vec<(Route, Session)> = vec![];
    for (route, _) in jobs {
        if sessions.iter().all(|(of, _)| of != route) {
            // A switch changes nothing where it is not compared with a cable.
            let bridged = *route == Route::Switch && compared;
            let stage = if bridged { Stage::bridged(STAGE_MTU)? } else { Stage::new(STAGE_MTU)? };
            let reason = stage.loopback_reason().unwrap_or_default();
            ensure!(!bridged || reason.is_empty(), "a bridge needs network namespaces: {reason}");
            // Jobs with a place choose their cores.
            let stage = if placed { stage.unpinned() } else { stage };
            sessions.push((*route, Session::on_stage(stage, &weir, &library)?));
        }
    }
    let mut found: Vec<Vec<Found>> = jobs.iter().map(|_| vec![]).collect();
    for round in 0..trials {
        for turn in 0..jobs.len() {
            let at = if round % 2 == 0 { turn } else { jobs.len() - 1 - turn };
            let (route, job) = &jobs[at];
            let (_, session) = sessions.iter_mut().find(|(of, _)| of == route).context("each route has a session")?;
            found[at].push(session.measure(job).with_context(|| format!("{job:?}"))?);
            if round + 1 == trials {
                (bench.progress)(0, 1);
            }
        }
    }
    Ok(found.into_iter().map(middle).collect())
}

/// The trial with the median throughput, and the average CPU time of all: it is measured in ticks.
fn middle(mut trials: Vec<Found>) -> Found {
    trials.sort_by(|a, b| a.gbits.total_cmp(&b.gbits));
    let average = |of: fn(&Found) -> f64| trials.iter().map(of).sum::<f64>() / trials.len() as f64;
    let middle = &trials[trials.len() / 2];
    let side = |used: SideFound, user: f64, system: f64| SideFound {
        user: user * middle.seconds,
        system: system * middle.seconds,
        ..used
    };
    Found {
        sender: side(middle.sender, average(|f| f.sender.user / f.seconds), average(|f| f.sender.system / f.seconds)),
        receiver: side(
            middle.receiver,
            average(|f| f.receiver.user / f.seconds),
            average(|f| f.receiver.system / f.seconds),
        ),
        ..middle.clone()
    }
}
