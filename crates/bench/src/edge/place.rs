//! Two namespaces with shaped links, in which Weir and baselines run.

use super::arguments::Plan;
use super::baselines::Baseline;
use super::configuration::Configuration;
use super::failure::{FailureRow, Times};
use super::job::{Done, Job};
use super::report::Comparison;
use super::role::{self, Role};
use super::row::Row;
use super::settings::Settings;
use anyhow::{Context, Result, bail};
use weir_stage::{Failure, Stage};

/// Two namespaces with shaped links.
pub struct Place<'a> {
    pub stage: Stage,
    links: &'a Configuration,
    mtu: u32,
    settings: Settings,
}

impl Place<'_> {
    /// An error says why there are none.
    pub fn new<'a>(links: &'a Configuration, mtu: u32, settings: &Settings) -> Result<Place<'a>> {
        let stage = Stage::with_links(links.rates.len(), mtu)?;
        if let Some(why) = stage.loopback_reason() {
            bail!("there are no links to measure: {why}");
        }
        for (link, &rate) in links.rates.iter().enumerate() {
            stage.shape(link, rate)?;
        }
        Ok(Place { stage, links, mtu, settings: settings.for_links(&links.rates)? })
    }

    /// Weir does the jobs.
    pub fn measure(&self, jobs: &[Job]) -> Result<Vec<Done>> {
        self.measure_and(jobs, None)
    }

    /// Weir does a job, and the second link fails meanwhile: after a third of the time, until two thirds.
    pub fn fail(&self, job: Job, failure: Failure) -> Result<FailureRow> {
        let (part, mut times) = (job.seconds, Ok(Times::default()));
        let job = Job { seconds: 3.0 * part, sampled: true, ..job };
        let mut inflict = || {
            times = Times::inflict(&self.stage, self.links, failure, part);
            Ok(())
        };
        let done = self.measure_and(&[job], Some(&mut inflict));
        let (times, done) = (times?, done?.pop().context("no result")?);
        Ok(FailureRow::new(self.links, self.mtu, &done, failure, times))
    }

    /// Weir does the jobs. `then` is called when they begin.
    fn measure_and(&self, jobs: &[Job], then: Option<&mut dyn FnMut() -> Result<()>>) -> Result<Vec<Done>> {
        let (settings, jobs) = (self.settings.clone(), jobs.to_vec());
        let seconds = jobs.iter().map(|job| job.seconds).sum();
        let server = |address| Role::Server { address, settings: settings.clone() };
        let client = |address| Role::Client { address, settings: settings.clone(), jobs };
        let outcome = role::pair_and(&self.stage, seconds, server, client, then)?;
        serde_json::from_str(&outcome.client.stdout).with_context(|| outcome.client.printed())
    }

    /// Weir in turns with all baselines.
    pub fn compare(&self, plan: &Plan) -> Result<Vec<Comparison>> {
        let Plan { compared: job, rounds, .. } = *plan;
        let (links, mtu) = (self.links, self.mtu);
        let mut comparisons = vec![];
        let mut runnable = vec![];
        for &peer in &plan.peers {
            let comparison = Comparison::new(links, mtu, job.size, peer.name());
            match Baseline::prepare(peer, &self.stage, links, mtu) {
                Ok(baseline) => runnable.push((baseline, comparison, vec![])),
                Err(why) => comparisons.push(Comparison { skipped: Some(format!("{why:#}")), ..comparison }),
            }
        }
        for _ in 0..if runnable.is_empty() { 0 } else { rounds } {
            let done = self.measure(&[job])?.pop().context("no result")?;
            let weir = Row::new(links, mtu, &done, false).gigabits;
            for (baseline, comparison, figures) in &mut runnable {
                if comparison.failed.is_some() {
                    continue;
                }
                match baseline.run(links, mtu, job.size, job.seconds) {
                    Ok(figure) => figures.push((weir, figure)),
                    Err(why) => comparison.failed = Some(format!("{why:#}")),
                }
            }
        }
        comparisons.extend(runnable.into_iter().map(|(_, comparison, figures)| comparison.measured(&figures)));
        Ok(comparisons)
    }
}
