//! `weir profiles`: adapters that Weir can imitate, and the source of each of their parameters.

use anyhow::Result;
use clap::Args;
use std::fmt::Write;
use std::process::ExitCode;
use weir_profiles::{Described, Explained};

/// Arguments of `weir profiles`.
#[derive(Args, Debug)]
pub struct ProfilesArgs {
    /// Explain all parameters of this profile: a name, or your own profile file
    #[arg(value_name = "NAME|FILE")]
    name: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Lists the profiles, or explains a single profile.
pub fn run(args: &ProfilesArgs) -> Result<ExitCode> {
    let text = match &args.name {
        Some(name) => {
            let profile = weir_profiles::describe(name)?;
            if args.json { json(&profile)? } else { table(&profile) }
        }
        None => {
            let all = weir_profiles::all()?;
            let entries: Vec<_> = all.iter().map(Described::entry).collect();
            if args.json { serde_json::to_string_pretty(&entries)? + "\n" } else { list(&all) }
        }
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

fn list(all: &[Described]) -> String {
    let lines = all.iter().map(|each| format!("{:14} {}\n", each.profile.name, each.about));
    lines.collect::<String>()
        + "\n`weir profiles NAME` explains a profile, `weir run --profile NAME -- PROGRAM` runs a program on it.\n"
}

fn json(profile: &Described) -> Result<String> {
    let entry = profile.entry();
    let shown = serde_json::json!({ "name": entry.name, "about": entry.about, "values": profile.values });
    Ok(serde_json::to_string_pretty(&shown)? + "\n")
}

/// Sections of keys. Each key has its value and source, and below them its meaning and a note.
fn table(profile: &Described) -> String {
    let mut text = format!("{}: {}\n", profile.profile.name, profile.about);
    let key = |value: &Explained| value.key.split_once('.').map_or(value.key.len(), |(_, key)| key.len());
    let width = profile.values.iter().map(key).max().unwrap_or(0);
    let mut last = "";
    for value in &profile.values {
        let (section, key) = value.key.split_once('.').unwrap_or(("", &value.key));
        if section != last {
            last = section;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "\n[{section}]");
        }
        let _ = writeln!(text, "{key:width$}  {:14}  {}", value.value.to_string(), value.source);
        for line in [&value.means, &value.note].into_iter().filter(|line| !line.is_empty()) {
            let _ = writeln!(text, "{:width$}    {line}", "");
        }
    }
    let cited = SOURCES.iter().filter(|(key, _)| profile.values.iter().any(|value| cites(value, key)));
    text + "\n" + &cited.map(|(key, what)| format!("{key}: {what}\n")).collect::<String>()
}

/// Sources that values name by a letter or two.
const SOURCES: [(&str, &str); 4] = [
    (
        "T",
        "T. Fukuoka, Finding and Analyzing Performance Pitfalls of On-Demand Paging of InfiniBand\n   (master's thesis), section or figure.",
    ),
    ("R", "github.com/unionxic/rdma-fault-characterization, harness/ack_timeout (measurements, 2026)."),
    (
        "F",
        "Q. Liu and R. Russell, A Performance Study of InfiniBand Fourteen Data Rate (FDR), 2014, figure or section.",
    ),
    ("NV", "NVIDIA, Adaptive Retransmission: Parameters Control (docs.nvidia.com, August 2025)."),
];

/// Whether a value names this source.
fn cites(value: &Explained, key: &str) -> bool {
    let words = value.source.split_whitespace().chain(value.note.split_whitespace());
    words.into_iter().any(|word| word.trim_matches(|mark: char| mark.is_ascii_punctuation()) == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_a_line_for_each_profile() {
        let list = list(&weir_profiles::all().unwrap());
        for name in weir_profiles::names() {
            assert!(
                list.lines().any(|line| line.starts_with(&format!("{name} ")) && line.len() > 30),
                "{name} in {list}"
            );
        }
    }

    #[test]
    fn a_table_shows_values_sources_and_meanings() {
        let table = table(&weir_profiles::describe("connectx4").unwrap());
        let line =
            |part: &str| table.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {table}"));
        assert!(line("least_exponent").contains("16") && line("least_exponent").contains("T fig 4.5"));
        for part in ["[ack_timeout]", "[damming]", "T_tr is 4.096 µs", "1.28 ms became", "T. Fukuoka"] {
            line(part);
        }
    }

    #[test]
    fn a_table_explains_the_sources_that_it_names() {
        let table = |name| table(&weir_profiles::describe(name).unwrap());
        let roce = table("connectx6-roce");
        for part in ["T: T. Fukuoka", "R: github.com/", "NV: NVIDIA", "[12.5, 8.4, "] {
            assert!(roce.contains(part), "{part} in {roce}");
        }
        let fdr = table("connectx3-fdr");
        for part in ["F: Q. Liu", "T: T. Fukuoka", "[host]", "partial_miss_ns"] {
            assert!(fdr.contains(part), "{part} in {fdr}");
        }
        assert!(!table("connectx6").contains("F: Q. Liu"));
        assert!(!table("connectx6").contains("NV: NVIDIA") && !table("connectx6").contains("R: github.com"));
    }

    #[test]
    fn json_has_each_value_with_its_source() {
        let profile = weir_profiles::describe("connectx4").unwrap();
        let json: serde_json::Value = serde_json::from_str(&json(&profile).unwrap()).unwrap();
        assert_eq!(json["name"], "connectx4");
        let values = json["values"].as_array().unwrap();
        assert_eq!(values.len(), profile.values.len());
        let factor = values.iter().find(|value| value["key"] == "rnr_wait.factor").unwrap();
        assert_eq!(factor["value"], serde_json::json!([2.65, 4.30]));
        assert!(factor["source"].as_str().unwrap().starts_with("T fig 4.2"), "{factor}");
        assert!(factor["means"].as_str().unwrap().contains("RNR NAK"), "{factor}");
    }
}
