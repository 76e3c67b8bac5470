//! Both sides as processes on this machine: `weir edge bench`, by this executable, between two network namespaces (root).
//!
//! Settings that differ in test and size only are measured by one command, several times. CPU time is that of `--breakdown`, in a
//! run of its own: the clocks that it reads cost throughput.

use super::command::{self, Printed};
use super::found::{Cpu, Found};
use super::setting::{Mechanism, Receiving, Sending, Setting};
use crate::bench::Bench;
use crate::statistics::median;
use anyhow::{Context, Result};
use weir_transport::edge::Scheduler;

/// Length of a test, seconds.
const SECONDS: f64 = 0.3;
/// Runs without clocks, of which the medians count.
const TRIALS: u32 = 3;
/// `weir edge bench` has no larger operations.
const LARGEST: u32 = 8 << 20;

/// What two processes find for each setting, in their order. A setting that they cannot be set to ([`not_live`]) has NaN for
/// all values.
pub fn measure(bench: &Bench<'_>, settings: &[Setting]) -> Result<Vec<Found>> {
    (bench.progress)(settings.len(), 0);
    let trials = bench.trials(TRIALS);
    bench.note("this machine", trials);
    let mut found = vec![Found::NONE; settings.len()];
    let mut open: Vec<usize> = (0..settings.len()).collect();
    while let Some(&first) = open.first() {
        let (group, rest) = open.iter().partition(|at| is_one_command(&settings[first], &settings[**at]));
        let group: Vec<usize> = group;
        open = rest;
        if not_live(&settings[first]).is_none() {
            let all: Vec<&Setting> = group.iter().map(|at| &settings[*at]).collect();
            let run = |more: Option<&str>| {
                let options = arguments(&all).into_iter().chain(more.map(str::to_owned));
                command::run(&options.collect::<Vec<_>>()).with_context(|| all[0].name())
            };
            let plain = (0..trials).map(|_| run(None)).collect::<Result<Vec<_>>>()?;
            let divided = run(Some("--breakdown"))?;
            for at in &group {
                found[*at] = of(&settings[*at], &plain, &divided).with_context(|| settings[*at].name())?;
            }
        }
        (bench.progress)(0, group.len());
    }
    Ok(found)
}

/// Why two processes cannot be set to this, as "not live: …"; `None` if they can.
pub fn not_live(setting: &Setting) -> Option<&'static str> {
    let Setting { links, size, sending, receiving, .. } = setting;
    match (sending, receiving) {
        (Sending::Skipped, _) => return Some("not live: what is sent is read, as the peer gets the right bytes"),
        (_, Receiving::Skipped) => return Some("not live: what has come is copied to its place once, at least"),
        (_, Receiving::Remapped(_)) => {
            return Some("not live: the socket interface does not remap pages, nor flush the TLB");
        }
        _ => {}
    }
    if links.rates.iter().any(|rate| rate.fract() != 0.0 || !(1.0..=400.0).contains(rate)) {
        return Some("not live: links of the stage have whole Gbit/s");
    }
    (*size > LARGEST).then_some("not live: operations of a stage have 8 MiB at most")
}

/// Names of a scheduler and of the parameters for it: what the thesis has for its schedulers, and the default for ours.
pub fn scheduling(scheduler: Scheduler) -> [&'static str; 2] {
    match scheduler {
        Scheduler::RoundRobin => ["srr", "multiedge"],
        Scheduler::WeightedRoundRobin => ["wsrr", "multiedge"],
        Scheduler::Dynamic => ["wd", "multiedge"],
        Scheduler::Auto => ["auto", "tuned"],
    }
}

/// Whether two settings differ in test and size only.
fn is_one_command(one: &Setting, other: &Setting) -> bool {
    Setting { test: one.test, size: one.size, ..other.clone() } == *one
}

/// The options of `weir edge bench` for settings that differ in test and size only.
fn arguments(settings: &[&Setting]) -> Vec<String> {
    let first = settings[0];
    let list = |values: Vec<String>| {
        let mut once: Vec<String> = vec![];
        values.into_iter().for_each(|value| {
            if !once.contains(&value) {
                once.push(value)
            }
        });
        once.join(",")
    };
    let weights: Vec<String> = first.links.weights.iter().map(u32::to_string).collect();
    let [scheduler, parameters] = scheduling(first.scheduler);
    // What comes is copied once, as the thesis' base protocol does: that needs no option.
    let copies = if first.sending == Sending::Copied { "send" } else { "none" };
    let mut words = vec![];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    option("links", first.links.name());
    option("weights", weights.join(":"));
    option("mtu", first.mtu.to_string());
    option("scheduler", scheduler.into());
    option("parameters", parameters.into());
    option("copies", copies.into());
    option("offset", first.offset.to_string());
    option("tests", list(settings.iter().map(|setting| setting.test.name().into()).collect()));
    option("sizes", list(settings.iter().map(|setting| setting.size.to_string()).collect()));
    option("seconds", SECONDS.to_string());
    option("peers", "none".into());
    words.extend((first.mechanism == Mechanism::Polling).then(|| "--polling".into()));
    words
}

fn of(setting: &Setting, plain: &[Printed], divided: &Printed) -> Result<Found> {
    let row = |printed: &Printed| {
        let is_it = |row: &&command::Row| row.test == setting.test.name() && row.size == setting.size;
        printed.rows.iter().find(is_it).cloned().context("weir edge bench has no row for it")
    };
    let (rows, parts) = (plain.iter().map(row).collect::<Result<Vec<_>>>()?, row(divided)?);
    let middle = |value: fn(&command::Row) -> f64| median(&rows.iter().map(value).collect::<Vec<_>>());
    let cpu = |side: &command::Side| {
        let part = |name: &str| {
            let all = side.breakdown.iter().flatten();
            let percent: f64 = all.filter(|share| share.part == name).map(|share| share.percent).sum();
            percent / 100.0 * side.cpu_seconds / parts.seconds
        };
        Cpu {
            notice: part("poll or events"),
            send: part("send copies"),
            receive: part("receive copies"),
            remap: 0.0,
            packet: part("protocol"),
            device: part("system calls"),
        }
    };
    Ok(Found {
        gbits: middle(|row| row.gigabits),
        latency: middle(|row| row.median_us.unwrap_or(f64::NAN)),
        initiate: middle(|row| row.call_median_us.unwrap_or(f64::NAN)),
        cpu: [cpu(&parts.client), cpu(&parts.server)],
    })
}

#[cfg(test)]
mod tests {
    use super::super::setting::{Flush, Links, Test};
    use super::*;

    #[test]
    fn settings_become_command_lines() {
        let base = |test, size| Setting::base(Links::rated(vec![10.0, 1.0]), test, size).polling();
        let (one, other) = (base(Test::OneWay, 4096), base(Test::PingPong, 64));
        assert!(is_one_command(&one, &other));
        assert!(!is_one_command(&one, &Setting { mtu: 1500, ..other.clone() }));
        assert_eq!(
            arguments(&[&one, &other, &one]).join(" "),
            "--links 1x10+1x1 --weights 10:1 --mtu 9000 --scheduler wd --parameters multiedge --copies send --offset 0 --tests \
             one-way,ping-pong --sizes 4096,64 --seconds 0.3 --peers none --polling"
        );
    }

    #[test]
    fn some_settings_are_not_live() {
        let base = Setting::base(Links::of(2, 1.0), Test::OneWay, 4096);
        assert_eq!(not_live(&base), None);
        let moving = |sending, receiving| not_live(&base.clone().moving(sending, receiving));
        assert_eq!(moving(Sending::Gathered, Receiving::Copied), None);
        let others = [
            moving(Sending::Skipped, Receiving::Copied),
            moving(Sending::Gathered, Receiving::Skipped),
            moving(Sending::Gathered, Receiving::Remapped(Flush::Full)),
            not_live(&Setting { links: Links::of(1, 2.5), ..base.clone() }),
            not_live(&Setting { size: 16 << 20, ..base.clone() }),
        ];
        assert!(others.iter().all(|why| why.is_some_and(|why| why.starts_with("not live: "))), "{others:?}");
    }

    #[test]
    fn the_output_of_a_command_is_what_was_found() {
        let side = r#"{"cpu_seconds":0.2,"breakdown":[{"part":"protocol","us_per_packet":0.5,"percent":50.0},
            {"part":"send copies","us_per_packet":0.1,"percent":25.0}]}"#;
        let row = format!(
            r#"{{"rows":[{{"test":"one-way","size":4096,"seconds":0.4,"gigabits":1.5,"median_us":null,
            "call_median_us":0.7,"again":3,"client":{side},"server":{side}}}]}}"#
        );
        let printed: Printed = serde_json::from_str(&row).unwrap();
        let setting = Setting::base(Links::of(2, 1.0), Test::OneWay, 4096);
        let found = of(&setting, std::slice::from_ref(&printed), &printed).unwrap();
        assert_eq!((found.gbits, found.initiate), (1.5, 0.7));
        assert!(found.latency.is_nan() && (found.cpu[0].packet - 0.25).abs() < 1e-12, "{found:?}");
        assert!((found.cpu[1].send - 0.125).abs() < 1e-12 && found.cpu[1].notice == 0.0, "{found:?}");
        assert!(of(&Setting { size: 64, ..setting }, &[], &printed).is_err());
    }
}
