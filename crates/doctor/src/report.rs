//! The report: JSON for programs, and text of at most 80 columns for people.

use crate::detect::detect;
use crate::finding::{Advice, Finding};
use crate::trace::{Source, Trace};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;

/// What was observed of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: u32,
    /// The program's words.
    pub program: Vec<String>,
    pub processes: Vec<Process>,
}

/// A process of the program that opened a device.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    pub pid: u32,
    pub program: String,
    /// Nanoseconds since 1970 of time 0 of its findings.
    pub start_unix_ns: u64,
    pub qps: usize,
    /// Names of the devices of its QPs.
    pub devices: Vec<String>,
    /// Send work requests that were posted and completed, and completed receives.
    pub posted: u64,
    pub completed: u64,
    pub received: u64,
    pub findings: Vec<Finding>,
    /// Libraries that registered ODP memory, the program's own code included.
    pub on_demand: Vec<Source>,
    /// What could not be observed.
    pub notes: Vec<String>,
}

/// Version of the JSON.
const VERSION: u32 = 1;
const WIDTH: usize = 80;
/// Findings of a process that the text shows.
const SHOWN: usize = 20;

impl Report {
    /// The report of a program from what its processes left, in order of their start.
    pub fn of(program: Vec<String>, traces: &[Trace]) -> Report {
        let mut traces: Vec<&Trace> = traces.iter().collect();
        traces.sort_by_key(|trace| (trace.start_unix_ns, trace.pid));
        Report { version: VERSION, program, processes: traces.into_iter().map(process).collect() }
    }

    /// The text, which ends with a newline. `folder` is where the processes leave their files.
    pub fn text(&self, folder: &str) -> String {
        let mut text = String::new();
        if self.processes.is_empty() {
            let why = "no process left observations: none opened an RDMA device, or it could not write to";
            wrapped(&mut text, "", &format!("weir doctor: {why} {folder}"));
        }
        for process in &self.processes {
            process.write(&mut text);
        }
        text
    }
}

fn process(trace: &Trace) -> Process {
    let sum = |count: fn(&crate::trace::Qp) -> u64| trace.qps.iter().map(count).fold(0, u64::saturating_add);
    Process {
        pid: trace.pid,
        program: trace.program.clone(),
        start_unix_ns: trace.start_unix_ns,
        qps: trace.qps.len(),
        devices: devices(trace),
        posted: sum(|qp| qp.posted),
        completed: sum(|qp| qp.completed),
        received: sum(|qp| qp.received),
        findings: detect(trace),
        on_demand: trace.sources.clone(),
        notes: notes(trace),
    }
}

fn devices(trace: &Trace) -> Vec<String> {
    let names: BTreeSet<&String> = trace.qps.iter().map(|qp| &qp.device).collect();
    names.into_iter().cloned().collect()
}

fn notes(trace: &Trace) -> Vec<String> {
    let mut notes = vec![];
    let hidden = trace.qps.iter().filter(|qp| qp.hidden).count();
    if hidden > 0 {
        notes.push(format!(
            "{hidden} QPs were connected but posted nothing that was seen: unused, or driven without libibverbs \
             (mlx5dv). With UCX, UCX_TLS=rc_verbs,ud_verbs,self,sm posts through libibverbs."
        ));
    }
    let mut left_out = |count: u64, what: &str| {
        if count > 0 {
            notes.push(format!("{count} {what}"));
        }
    };
    left_out(trace.requests_left_out, "more requests took long: there was no room for them");
    left_out(trace.qps_left_out, "QPs were not observed: there was no room for them");
    left_out(trace.unmatched, "completions were of requests that the layer did not see");
    notes
}

impl Process {
    fn write(&self, text: &mut String) {
        let on = if self.devices.is_empty() { String::new() } else { format!(" on {}", self.devices.join(", ")) };
        wrapped(text, "", &format!("weir doctor: {} (process {}){on}", self.program, self.pid));
        line(
            text,
            &format!(
                "  {} QPs, {} requests posted, {} completed, {} receives",
                self.qps, self.posted, self.completed, self.received
            ),
        );
        if self.findings.is_empty() {
            line(text, "  no stalls found");
        } else {
            line(
                text,
                &format!("  {:10} {:>9} {:>9} {:>10} {:>8} {:>10}", "what", "QP", "at", "cost", "requests", "sure"),
            );
        }
        for finding in self.findings.iter().take(SHOWN) {
            finding.write(text);
        }
        if self.findings.len() > SHOWN {
            line(text, &format!("  and {} more findings: --json has them all", self.findings.len() - SHOWN));
        }
        // The same advice serves many findings.
        let mut given: Vec<&Advice> = vec![];
        for finding in &self.findings {
            let new = finding.advice.iter().filter(|advice| !given.contains(advice)).collect::<Vec<_>>();
            if !new.is_empty() {
                line(text, &format!("  against {}:", finding.kind.name()));
            }
            for advice in new {
                wrapped(text, "    ", &format!("{}: {} -- {}", advice.of, advice.setting, advice.effect));
                given.push(advice);
            }
        }
        for note in &self.notes {
            wrapped(text, "  ", &format!("note: {note}"));
        }
    }
}

impl Finding {
    fn write(&self, text: &mut String) {
        let qp = match self.qp {
            Some(number) => format!("0x{number:06x}"),
            None if self.qps > 0 => format!("{} QPs", self.qps),
            None => "-".into(),
        };
        let (cost, requests) = if self.requests == 0 {
            ("-".to_owned(), "-".to_owned())
        } else {
            (time(self.cost_ns), self.requests.to_string())
        };
        let sure = format!("{:.0} %", 100.0 * self.confidence);
        line(
            text,
            &format!("  {:10} {qp:>9} {:>9} {cost:>10} {requests:>8} {sure:>10}", self.kind.name(), time(self.from)),
        );
        wrapped(text, "    ", &self.what);
    }
}

/// A time of four digits or fewer.
fn time(ns: u64) -> String {
    match ns {
        ns if ns >= 10_000_000_000 => format!("{} s", ns / 1_000_000_000),
        ns if ns >= 1_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        ns if ns >= 10_000_000 => format!("{} ms", ns / 1_000_000),
        ns if ns >= 1_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        ns => format!("{} us", ns / 1000),
    }
}

fn line(text: &mut String, line: &str) {
    let _ = writeln!(text, "{line}");
}

/// Breaks a text between words.
fn wrapped(text: &mut String, indent: &str, words: &str) {
    let mut row = indent.to_owned();
    for word in words.split_whitespace() {
        if row.len() > indent.len() && row.chars().count() + 1 + word.chars().count() > WIDTH {
            line(text, &row);
            row = format!("{indent}  {word}");
        } else {
            if row.len() > indent.len() {
                row.push(' ');
            }
            row.push_str(word);
        }
    }
    line(text, &row);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Qp, Request};

    fn traces() -> Vec<Trace> {
        let ms = 1_000_000;
        let request = |posted, begun, done| Request {
            posted,
            begun,
            done,
            missing: done,
            opcode: 4,
            bytes: 100,
            ..Request::default()
        };
        let qp = Qp {
            device: "mlx5_0".into(),
            number: 0xabcdef,
            service: 2,
            min_rnr_timer: 14,
            posted: 2,
            completed: 2,
            ..Qp::default()
        };
        let source = Source { path: "/usr/lib/libuct_ib.so.0".into(), implicit: true, regions: 1, ..Source::default() };
        vec![
            Trace {
                pid: 7,
                program: "app".into(),
                qps: vec![qp.clone(), Qp { hidden: true, ..qp }],
                requests: vec![request(0, 0, 4 * ms), request(ms, 4 * ms, 500 * ms)],
                sources: vec![source],
                ..Trace::default()
            },
            Trace { pid: 6, program: "app".into(), ..Trace::default() },
        ]
    }

    #[test]
    fn the_text_fits_eighty_columns_and_names_what_to_change() {
        let mut traces = traces();
        traces[0].qps[0].timeout = 1;
        let text = Report::of(vec!["app".into()], &traces).text("/f");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        for part in [
            "damming",
            "0xabcdef",
            "UCX_IB_REG_METHODS=rcache,direct",
            "no stalls",
            "rc_verbs",
            "libuct_ib",
            "on mlx5_0",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(Report::of(vec![], &[]).text("/f").ends_with("write to /f\n"));
    }

    #[test]
    fn json_has_the_documented_members() {
        let mut traces = traces();
        traces[0].qps[0].timeout = 1;
        let json = serde_json::to_value(Report::of(vec!["app".into()], &traces)).unwrap();
        assert_eq!(json["version"], 1);
        assert_eq!((json["processes"][0]["pid"].as_u64(), json["processes"][1]["pid"].as_u64()), (Some(6), Some(7)));
        assert_eq!(json["processes"][1]["devices"], serde_json::json!(["mlx5_0"]));
        let finding = &json["processes"][1]["findings"][0];
        assert_eq!((finding["kind"].as_str(), finding["qp"].as_u64()), (Some("damming"), Some(0xabcdef)));
        assert_eq!((finding["from"].as_u64(), finding["to"].as_u64()), (Some(1_000_000), Some(500_000_000)));
        assert!(finding["cost_ns"].as_u64().unwrap() > 400_000_000 && finding["advice"][0]["setting"].is_string());
        assert_eq!(json["processes"][1]["on_demand"][0]["implicit"], true);
    }
}
