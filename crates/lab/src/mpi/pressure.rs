//! How often the operating system takes pages: so often that ODP-Native has as many page faults as M counts.
//!
//! A transfer has a page fault at each end where pages of its buffer have gone since the buffer was used last, or where it is
//! used for the first time. Pages go at random while their process computes.

use super::kernels::Program;
use super::memory::PAGE;
use super::script::{BufferId, Op, Script};
use std::collections::BTreeMap;
use weir_msg::Settings;

/// No page is taken more often, 1/s of computing: then all buffers of most kernels lose some pages in each step. Assumed.
const MOST: f64 = 10.0;

/// A use of a buffer that is registered: its pages, and how long its process has computed since it was used last, s.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Use {
    pages: f64,
    after: f64,
    /// The first in a step.
    first: bool,
}

/// The rate at which each page of a buffer goes, 1/s of computing, for so many page faults of a process in the whole run.
pub fn rate(program: &Program, settings: &Settings, faults: f64) -> f64 {
    let uses: Vec<Use> = program.scripts.iter().flat_map(|script| uses(script, settings)).collect();
    let (steps, processes) = (f64::from(program.steps), program.scripts.len() as f64);
    let expected = |rate: f64| {
        let of = |each: &Use| {
            let lost = 1.0 - (-rate * each.pages * each.after).exp();
            steps * lost + if each.first { 1.0 - lost } else { 0.0 }
        };
        uses.iter().map(of).sum::<f64>() / processes
    };
    let (mut low, mut high) = (0.0, MOST);
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if expected(middle) < faults { low = middle } else { high = middle }
    }
    high
}

/// Uses of registered memory in a step of a script.
fn uses(script: &Script, settings: &Settings) -> Vec<Use> {
    let mut uses = vec![];
    // Of each buffer its pages, and when it is used first and last.
    let mut used: BTreeMap<BufferId, (f64, f64, f64)> = BTreeMap::new();
    let (mut now, mut reads) = (0.0, false);
    for op in &script.body {
        let (buffer, len) = match *op {
            Op::Compute(time) => {
                now += time.as_secs_f64();
                continue;
            }
            Op::Isend { buffer, len, .. } | Op::Irecv { buffer, len, .. } if len > settings.eager_limit => {
                (buffer, len)
            }
            Op::Put { buffer, len, .. } | Op::Get { buffer, len, .. } if len > settings.rma_bounce.into() => {
                reads = true;
                (buffer, len)
            }
            _ => continue,
        };
        let pages = len.div_ceil(PAGE) as f64;
        let (_, _, last) = used.entry(buffer).or_insert((pages, now, now));
        if now > *last {
            uses.push(Use { pages, after: now - *last, first: false });
            *last = now;
        }
    }
    // The window of each process is used by others as often as this one uses theirs; its pages are missing once.
    if let Some(window) = script.window.filter(|_| reads) {
        used.insert(window, (script.buffers[window].div_ceil(PAGE) as f64, 0.0, 0.0));
    }
    uses.extend(used.values().map(|(pages, first, last)| Use {
        pages: *pages,
        after: now - last + first,
        first: true,
    }));
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Two buffers of 10 pages, one of them used twice in a step of 2 s.
    fn program(steps: u32) -> Program {
        let mut script = Script::default();
        let (one, two) = (script.buffer(40960), script.buffer(40960));
        let second = Op::Compute(Duration::from_secs(1));
        let send = |buffer| Op::Isend { to: 1, tag: 0, buffer, len: 40960, req: 0 };
        script.body = vec![send(one), second, send(two), send(one), second];
        Program { scripts: vec![script], steps }
    }

    #[test]
    fn uses_are_apart_by_the_time_that_a_process_computes() {
        let mut uses = uses(&program(1).scripts[0], &Settings::default());
        uses.sort_by(|one, two| one.after.total_cmp(&two.after));
        let each = |after, first| Use { pages: 10.0, after, first };
        assert_eq!(uses, [each(1.0, false), each(1.0, true), each(2.0, true)]);
    }

    #[test]
    fn the_rate_gives_the_page_faults_that_are_wanted() {
        let settings = Settings::default();
        // The first step has two faults whatever the rate; each other one and the second use of the first step have three at most.
        let found = rate(&program(1), &settings, 2.5);
        assert!((found * 10.0 - std::f64::consts::LN_2).abs() < 1e-6, "{found}");
        assert!(rate(&program(11), &settings, 1.0) < 1e-9);
        assert_eq!(rate(&program(11), &settings, 100.0), MOST);
    }
}
