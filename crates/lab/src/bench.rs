//! Runs the micro-benchmark many times on several threads; the seeds do not depend on the threads.

use crate::adapter::Adapter;
use crate::claim::Claim;
use crate::micro::{Micro, Outcome, Runner, Wakeup};
use crate::software::Software;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// How runs are made, and how many.
pub struct Bench<'a> {
    /// Makes a runner for each thread.
    pub runner: &'a (dyn Fn() -> Result<Box<dyn Runner>> + Sync),
    /// Runs at the same time.
    pub threads: usize,
    /// These replace the experiment's own profile and number of trials.
    pub profile: Option<&'a str>,
    pub trials: Option<u32>,
    /// Base of the seeds of all runs.
    pub seed: u64,
    /// How often an experiment is repeated with other seeds, to judge its claims.
    pub seeds: u32,
    /// The current repetition, from 0.
    pub round: AtomicU32,
    /// Real processes in real time: experiments leave out settings that take long.
    pub live: bool,
    /// The runs with many QPs have this share of the papers' 8192 operations: 1 of all, 8 of an eighth (live, and in tests).
    pub shrink: u32,
    /// What the caller has of the papers' applications.
    pub software: Software,
    /// Called with the number of newly planned runs and of newly finished runs.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
    /// Filled by the runs.
    pub seen: Mutex<Seen>,
}

/// Time that a packet may take through two processes on a busy machine, ms; adapters take microseconds.
const SLACK: f64 = 0.4;

/// Facts about the runs so far.
#[derive(Debug, Default)]
pub struct Seen {
    profiles: BTreeSet<String>,
    trials: BTreeSet<u32>,
    /// How late the machine woke in live runs.
    wakeups: Vec<Wakeup>,
}

/// A setting of the micro-benchmark.
#[derive(Clone, Debug)]
pub struct Setting {
    pub micro: Micro,
    pub adapter: Adapter,
}

impl From<Micro> for Setting {
    /// The setting on the adapter that the papers examined.
    fn from(micro: Micro) -> Setting {
        micro.on("connectx4")
    }
}

impl Micro {
    /// The setting on the adapter `profile`.
    pub fn on(self, profile: &'static str) -> Setting {
        self.on_changed(Adapter::named(profile))
    }

    /// The setting on an adapter with changes.
    pub fn on_changed(self, adapter: Adapter) -> Setting {
        Setting { micro: self, adapter }
    }
}

impl<'a> Bench<'a> {
    /// One thread, one seed, an eighth of the operations: for tests.
    pub fn small(runner: &'a (dyn Fn() -> Result<Box<dyn Runner>> + Sync)) -> Bench<'a> {
        Bench {
            runner,
            threads: 1,
            profile: None,
            trials: None,
            seed: 1,
            seeds: 1,
            round: AtomicU32::new(0),
            live: false,
            shrink: 8,
            software: Software::default(),
            progress: &|_, _| {},
            seen: Mutex::default(),
        }
    }
}

impl Bench<'_> {
    /// The number of trials of each setting; `default` is the experiment's own number.
    pub fn trials(&self, default: u32) -> u32 {
        self.trials.unwrap_or(default).max(1)
    }

    /// For each key, the values of `take` for its trials. Later keys begin first, because they tend to take longer.
    pub fn measure<K: Sync, S: Into<Setting>, V: Send>(
        &self,
        trials: u32,
        keys: &[K],
        setting: impl Fn(&K) -> S,
        take: impl Fn(&K, &Outcome) -> V + Sync,
    ) -> Result<Vec<Vec<V>>> {
        let settings: Vec<Setting> = keys.iter().map(|key| setting(key).into()).collect();
        let each = trials as usize;
        let jobs = keys.len() * each;
        (self.progress)(jobs, 0);
        let folder = tempfile::tempdir()?;
        let profile = |(at, setting): (usize, &Setting)| setting.adapter.profile(self.profile, folder.path(), at);
        let profiles: Vec<String> = settings.iter().enumerate().map(profile).collect::<Result<_>>()?;
        {
            let shown =
                settings.iter().map(|setting| self.profile.map_or_else(|| setting.adapter.name(), str::to_owned));
            let mut seen = self.seen.lock().expect("no thread panics with it");
            seen.profiles.extend(shown);
            seen.trials.insert(trials);
        }
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let found: Mutex<Vec<(usize, Result<V>)>> = Mutex::new(vec![]);
        let work = || -> Result<()> {
            let mut runner = (self.runner)()?;
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs || stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let at = jobs - 1 - job;
                let (key, setting) = (&keys[at / each], &settings[at / each]);
                let outcome = runner.run(&setting.micro, &profiles[at / each], self.seed_of(at));
                stop.fetch_or(outcome.is_err(), Ordering::Relaxed);
                if let Some(wakeup) = outcome.as_ref().ok().and_then(|outcome| outcome.wakeup) {
                    self.seen.lock().expect("no thread panics with it").wakeups.push(wakeup);
                }
                let value = outcome.map(|outcome| take(key, &outcome));
                found.lock().expect("no thread panics with it").push((at, value));
                (self.progress)(0, 1);
            }
        };
        let threads = self.threads.clamp(1, jobs.max(1));
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            handles
                .into_iter()
                .try_for_each(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        let mut found = found.into_inner().expect("no thread panics with it");
        found.sort_by_key(|(at, _)| *at);
        let mut values: Vec<Vec<V>> = keys.iter().map(|_| vec![]).collect();
        for (at, value) in found {
            let micro = &settings[at / each].micro;
            values[at / each].push(value.with_context(|| format!("trial {} of {micro:?}", at % each))?);
        }
        Ok(values)
    }

    /// What `work` makes of each item, in their order, on as many threads as the bench has. The last items begin first,
    /// because they tend to take longer.
    pub fn on_threads<T: Sync, V: Send>(&self, items: &[T], work: impl Fn(&T) -> V + Sync) -> Vec<V> {
        (self.progress)(items.len(), 0);
        let (next, found) = (AtomicUsize::new(items.len()), Mutex::new(vec![]));
        let take = || {
            let before = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            before.ok().map(|left| left - 1)
        };
        let run = || {
            while let Some(at) = take() {
                let value = work(&items[at]);
                found.lock().expect("no thread panics with it").push((at, value));
                (self.progress)(0, 1);
            }
        };
        let threads = self.threads.clamp(1, items.len().max(1));
        std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(run)));
        let mut found = found.into_inner().expect("no thread panics with it");
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, value)| value).collect()
    }

    /// The outcome of a single run.
    pub fn once(&self, setting: impl Into<Setting>) -> Result<Outcome> {
        let setting = setting.into();
        let runs = self.measure(1, &[setting], Setting::clone, |_, outcome| outcome.clone())?;
        Ok(runs.into_iter().flatten().next().expect("one key, one trial"))
    }

    /// Raises the upper bounds of claims about single packets' times, which may be microseconds: live, the time of this
    /// machine's processes adds to them.
    pub fn add_live_slack(&self, mut claims: Vec<Claim>) -> Vec<Claim> {
        if self.live {
            claims.iter_mut().filter(|claim| claim.unit == "ms").for_each(|claim| claim.high += SLACK);
        }
        claims
    }

    /// Runs of an experiment that does not use the micro-benchmark are made on `adapter`.
    pub fn note(&self, adapter: &str, trials: u32) {
        let mut seen = self.seen.lock().expect("no thread panics with it");
        seen.profiles.insert(adapter.to_owned());
        seen.trials.insert(trials);
    }

    /// The adapters of all runs so far.
    pub fn profiles(&self) -> Vec<String> {
        self.seen.lock().expect("no thread panics with it").profiles.iter().cloned().collect()
    }

    /// The numbers of trials per setting so far.
    pub fn counts(&self) -> Vec<u32> {
        self.seen.lock().expect("no thread panics with it").trials.iter().copied().collect()
    }

    /// How late the machine woke in live runs so far: median, and maximum.
    pub fn wakeup(&self) -> Option<Wakeup> {
        let mut all = self.seen.lock().expect("no thread panics with it").wakeups.clone();
        all.sort_by_key(|wakeup| wakeup.median);
        let median = all.get(all.len() / 2)?.median;
        Some(Wakeup { median, most: all.iter().map(|wakeup| wakeup.most).max()? })
    }

    /// The seed of a run, which depends on its index and on the repetition but not on its thread (SplitMix64).
    fn seed_of(&self, at: usize) -> u64 {
        let seed = self.seed.wrapping_add(self.round.load(Ordering::Relaxed).into());
        // Seeds that follow each other must not share runs: the index enters after the seed was mixed.
        let mut z =
            seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A runner with times that follow from the parameters.
    struct Fake;

    impl Runner for Fake {
        fn run(&mut self, micro: &Micro, profile: &str, seed: u64) -> Result<Outcome> {
            anyhow::ensure!(micro.size != 13, "unlucky");
            let time = micro.interval + Duration::from_nanos(seed % 1000 + profile.len() as u64);
            Ok(Outcome { time, ..Outcome::default() })
        }
    }

    fn bench(threads: usize, seed: u64, of: impl FnOnce(&Bench<'_>)) {
        let bench = Bench { threads, seed, shrink: 1, ..Bench::small(&|| Ok(Box::new(Fake))) };
        of(&bench);
    }

    fn times(bench: &Bench<'_>) -> Vec<Vec<Duration>> {
        let setting = |us: &u64| Micro { interval: Duration::from_micros(*us), ..Micro::default() };
        bench.measure(5, &[100, 200, 300], setting, |_, outcome| outcome.time).unwrap()
    }

    #[test]
    fn trials_depend_on_the_seed_and_not_on_threads() {
        let mut seen = vec![];
        for (threads, seed) in [(1, 7), (4, 7), (4, 8)] {
            bench(threads, seed, |bench| seen.push(times(bench)));
        }
        assert_eq!(seen[0], seen[1]);
        assert_ne!(seen[0], seen[2]);
        assert_eq!(seen[0].iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5]);
        assert!(
            seen[0]
                .iter()
                .zip([100, 200, 300])
                .all(|(all, us)| all.iter().all(|t| t.as_micros() as u64 / 100 == us / 100))
        );
    }

    #[test]
    fn an_error_names_the_run() {
        bench(2, 1, |bench| {
            let error = bench.once(Micro { size: 13, ..Micro::default() }).unwrap_err();
            assert!(format!("{error:#}").contains("unlucky") && format!("{error:#}").contains("size: 13"), "{error:#}");
        });
    }
}
