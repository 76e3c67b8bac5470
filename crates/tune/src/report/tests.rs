use super::*;
use crate::fake::{Adapter, measured};
use crate::places::Placement;
use crate::plan::Plan;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn report() -> Report {
    let named = |name: &str| Placement { name: name.into(), ..Placement::default() };
    let plan = Plan::full(vec![named("as the kernel chooses"), named("a <b>")]);
    let refuses = vec![64 << 20];
    let mut findings = measured(plan, Adapter { refuses, ..Adapter::new(6, 0.01) });
    findings.subject.adapter = "weir_<eth0>".into();
    Report::of(findings)
}

#[test]
fn the_text_has_all_tables_and_the_advice() {
    let text = text(&report());
    for title in ["Best settings", "What matters", "Equation 1", "Equation 2", "Not measured", "Advice"] {
        assert!(text.contains(&format!("\n{title}")), "{title}: {text}");
    }
    assert!(text.contains("do not fit") && text.contains("no difference") && text.contains("ib_write_bw -s"), "{text}");
    assert!(
        text.contains("The paper's constants: 3 MiB up to 128 KiB (128 messages at most), 4 MiB above (2 at least)")
    );
    assert!(!text.lines().any(|line| line.ends_with(' ')), "{text}");
}

#[test]
fn the_page_loads_nothing_and_closes_its_tags() {
    let html = page(&report());
    assert!(html.contains("weir_&lt;eth0&gt;") && html.contains("a &lt;b&gt;") && !html.contains("NaN"));
    assert_eq!(html.matches("<svg").count(), 6);
    for tag in ["table", "svg", "div", "style", "html", "h2"] {
        let opened = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let outside = ["src=", "url(", "<link", "<script", "@import"];
    assert!(outside.iter().all(|word| !html.contains(word)), "the page loads another file");
}

/// The names of fields of each object, such as "best[]: cpu_per_gb gbits".
fn fields(value: &Value, path: &str, all: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let separator = if path.is_empty() { "" } else { "." };
                fields(value, &format!("{path}{separator}{name}"), all);
                all.entry(path.into()).or_default().insert(name.clone());
            }
        }
        Value::Array(array) => array.iter().for_each(|value| fields(value, &format!("{path}[]"), all)),
        _ => {}
    }
}

#[test]
fn json_has_the_names_of_its_format() {
    let report = report();
    let value: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    let mut all = BTreeMap::new();
    fields(&value, "", &mut all);
    let line = |(path, names): (String, BTreeSet<String>)| {
        format!("{path}: {}\n", names.into_iter().collect::<Vec<_>>().join(" "))
    };
    let all: String = all.into_iter().map(line).collect();
    assert_eq!(value["format"], 1);
    assert_eq!(all, FORMAT_1, "a name has changed: this is another format");
    assert_eq!(value["best"][0]["size"], 32768);
    let effect = &value["effects"][0];
    assert_eq!((effect["stage"].as_str(), effect["role"].as_str()), (Some("outstanding"), Some("best-over-one")));
    let back: Report = serde_json::from_value(value).unwrap();
    assert_eq!(back.advice, report.advice);
}

/// The names of `--json`, format 1.
const FORMAT_1: &str = "\
: advice best effects equation1 equation2 failures format measured method runs seconds subject
advice[]: about settings text
advice[].settings[]: note program setting
best[]: cpu_per_gb gbits outstanding period signal size
best[].gbits: interval mean median runs
effects[]: against clear cpu_per_gb cpu_per_gb_against ratio role setting size stage verdict
effects[].ratio: interval mean rounds
equation1: fit paper_loss sizes
equation1.fit: constants fitted_loss held_out_loss loss paper_held_out_loss
equation1.fit.constants: large least limit most small
equation1.sizes[]: fitted observed observed_gbits predicted predicted_gbits ratio size
equation1.sizes[].observed_gbits: interval mean median runs
equation1.sizes[].predicted_gbits: interval mean median runs
equation1.sizes[].ratio: interval mean rounds
equation2[]: gbits outstanding over_every over_half period size
equation2[].gbits: interval mean median runs
equation2[].over_every: interval mean rounds
equation2[].over_half: interval mean rounds
failures[]: error setting size stage
measured[]: settings size stage
measured[].settings[]: cpu_per_gb gbits left_out name offset outstanding polls receiver sender \
    signal
measured[].settings[].gbits: interval mean median runs
measured[].settings[].receiver: cpus node
measured[].settings[].sender: cpus node
subject: adapter device namespaces peer peer_device quick weir
";
