//! Results of experiments as a text table, JSON, files, and an HTML page.

mod figures;
mod files;
mod page;
mod table;
mod words;

pub use files::{index, write};
pub use page::page;
pub use table::table;

use crate::claim::Shown;
use crate::experiment::{Done, Input, LeftOut};
use crate::micro::Wakeup;
use serde::Serialize;

/// An experiment as `--json` prints it.
#[derive(Serialize)]
struct ExperimentJson<'a> {
    id: &'a str,
    source: &'a str,
    runner: &'a str,
    profiles: &'a [String],
    seed: u64,
    /// Number of seeds over which the claims were judged.
    seeds: u32,
    /// Numbers of trials per setting; several numbers if settings differ in it.
    trials: &'a [u32],
    seconds: f64,
    /// µs, in live runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    wakeup: Option<Wakeup>,
    claims: Vec<Shown<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    inputs: &'a [Input],
    /// The claims of a simulation, beside a live run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    simulated: Vec<Shown<'a>>,
}

/// An experiment that was not run, as `--json` prints it.
#[derive(Serialize)]
struct LeftOutJson<'a> {
    id: &'a str,
    source: &'a str,
    left_out: &'a str,
    claims: [Shown<'a>; 0],
}

/// All experiments as JSON: `[{"id": …, "claims": [{"name": …, "paper": …, "weir": …, …}]}]`; then those that were not
/// run, with `left_out` and without claims.
pub fn json(all: &[Done], left_out: &[LeftOut]) -> serde_json::Result<String> {
    let to_json = |done: &'_ Done| {
        serde_json::to_value(ExperimentJson {
            id: done.experiment.id,
            source: done.experiment.source,
            runner: done.runner(),
            profiles: &done.profiles,
            seed: done.seed,
            seeds: done.seeds,
            trials: &done.trials,
            seconds: (done.took.as_secs_f64() * 1e3).round() / 1e3,
            wakeup: done.wakeup,
            claims: done.report.claims.iter().map(|claim| claim.shown()).collect(),
            inputs: &done.report.inputs,
            simulated: done.simulated.iter().map(|claim| claim.shown()).collect(),
        })
    };
    let not_run = left_out.iter().map(|left| {
        let (id, source) = (left.experiment.id, left.experiment.source);
        serde_json::to_value(LeftOutJson { id, source, left_out: &left.why, claims: [] })
    });
    serde_json::to_string_pretty(&all.iter().map(to_json).chain(not_run).collect::<Result<Vec<_>, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Claim, Kind};
    use crate::data::Data;
    use crate::experiment::Report;
    use crate::figure::{Axis, Ladder, Panel, Series};
    use std::time::Duration;

    fn done() -> Done {
        let claims = vec![
            Claim::near(Kind::Calibrated, "a < b | c", 1.0, 0.1, 1.05, "ms"),
            Claim::at_least(Kind::Predicted, "many", "hundreds", 100.0, f64::NAN, "times").lacks("it lacks <this>"),
        ];
        let panels = vec![Panel::new("p", Axis::linear("x"), Axis::log("y"), vec![Series::line("s", [(1.0, 2.0)])])];
        let mut data = Data::new(["x"]);
        data.push([1.0.into()]);
        let report = Report { claims, panels, ladders: vec![Ladder::of("l", &[])], data, ..Report::default() };
        Done {
            experiment: crate::experiments::ALL[0],
            report,
            seed: 7,
            seeds: 1,
            simulated: vec![],
            profiles: vec!["connectx4".into()],
            trials: vec![3, 10],
            live: false,
            took: Duration::from_millis(1500),
            wakeup: None,
        }
    }

    fn left_out() -> LeftOut {
        LeftOut { experiment: crate::experiments::ALL[1], why: "it <can> not".into() }
    }

    #[test]
    fn json_is_a_list_of_experiments_with_claims() {
        let value: serde_json::Value = serde_json::from_str(&json(&[done()], &[left_out()]).unwrap()).unwrap();
        assert_eq!(value[0]["id"], "odp-read");
        assert_eq!(value[0]["trials"], serde_json::json!([3, 10]));
        let left =
            serde_json::json!({"id": "odp-send", "source": "T fig. 4.3", "left_out": "it <can> not", "claims": []});
        assert_eq!(value[1], left);
        assert!(value[0].get("wakeup").is_none());
        let wakeup = Some(Wakeup { median: Duration::from_micros(20), most: Duration::from_millis(3) });
        let live: serde_json::Value = serde_json::from_str(&json(&[Done { wakeup, ..done() }], &[]).unwrap()).unwrap();
        assert_eq!(live[0]["wakeup"]["median"].as_f64(), Some(20.0));
        assert_eq!((&value[0]["seed"], &value[0]["runner"]), (&7.into(), &"sim".into()));
        let claims = value[0]["claims"].as_array().unwrap();
        assert_eq!((&claims[0]["holds"], &claims[0]["kind"]), (&true.into(), &"calibrated".into()));
        assert_eq!((&claims[1]["weir"], &claims[1]["holds"]), (&serde_json::Value::Null, &false.into()));
    }

    #[test]
    fn the_table_shows_which_claims_hold_and_why_others_fail() {
        let text = table(&done());
        assert!(text.contains("seed 7, 3 or 10 trials"), "{text}");
        assert!(table(&Done { trials: vec![1], ..done() }).contains("seed 7, 1 trial, "));
        assert!(text.contains("1 of 2 claims hold") && text.contains("FAILS"), "{text}");
        assert!(text.contains("not measured") && text.contains("it lacks <this>"), "{text}");
    }

    #[test]
    fn the_page_loads_nothing_and_closes_its_tags() {
        let html = page(&[done()], &[left_out()]);
        assert!(html.contains("<code>odp-send</code>") && html.contains("not run: it &lt;can&gt; not"), "{html}");
        assert!(html.contains("a &lt; b | c") && html.contains("it lacks &lt;this&gt;"));
        assert!(html.contains("<b>1 of 1 calibrated, 0 of 1 predicted</b> claims hold"), "{html}");
        for tag in ["table", "section", "svg", "figure", "div", "style", "html"] {
            assert_eq!(html.matches(&format!("<{tag}")).count(), html.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let outside = ["src=", "url(", "<link", "<script", "@import"];
        assert!(outside.iter().all(|word| !html.contains(word)), "the page loads another file");
    }

    #[test]
    fn a_live_page_shows_both_values_with_their_own_verdicts() {
        let mut claim = done().report.claims.remove(0);
        claim.values = vec![1.05, 1.02, 3.0];
        let other = Claim::near(Kind::Shaped, "only simulated", 1.0, 0.1, 1.0, "ms");
        let html = page(&[Done { live: true, simulated: vec![claim, other], ..done() }], &[]);
        for text in ["Live", "Simulated", "2 of 3", "not run live", "not simulated", "once, so its verdict"] {
            assert!(html.contains(text), "{text}: {html}");
        }
        let row = html.split("a &lt; b | c").nth(2).unwrap().split("<tr").next().unwrap();
        assert!(row.find("holds").unwrap() < row.find("fails").unwrap(), "{row}");
    }

    #[test]
    fn the_summary_counts_each_label_and_explains_its_signs() {
        for text in [page(&[done()], &[]), index(&[done()], &[])] {
            assert!(text.contains("1 of 1") && text.contains("0 of 1") && text.contains("1 of 2"), "{text}");
            assert!(text.contains("“18 of 20”") && text.contains("–"), "{text}");
        }
        let html = page(&[done()], &[]);
        assert!(html.contains("◼ calibrated, ◆ shaped, ● predicted") && html.contains(">✗</span> the claim fails"));
    }

    #[test]
    fn the_folder_has_data_figures_and_claims_and_its_index_names_them() {
        let folder = std::env::temp_dir().join(format!("weir-lab-{}", std::process::id()));
        write(&folder, &done()).unwrap();
        let index = index(&[done()], &[left_out()]);
        assert!(index.contains("| odp-send: ") && index.contains("| not run: it <can> not |"), "{index}");
        for name in ["odp-read.svg", "odp-read-ladder.svg"] {
            assert!(std::fs::read_to_string(folder.join(name)).unwrap().starts_with("<svg"));
            assert!(index.contains(&format!("]({name})")), "{index}");
        }
        assert_eq!(std::fs::read_to_string(folder.join("odp-read.csv")).unwrap(), "x\n1\n");
        assert!(folder.join("odp-read.json").is_file() && index.contains("a < b \\| c"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
