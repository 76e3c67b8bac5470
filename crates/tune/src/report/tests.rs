use super::*;
use crate::fake::{Adapter, measured};
use crate::places::Placement;
use crate::plan::Plan;

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

#[test]
fn json_has_stable_names() {
    let report = report();
    let value: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
    let names: Vec<&String> = value.as_object().unwrap().keys().collect();
    let expected = [
        "advice",
        "best",
        "effects",
        "equation1",
        "equation2",
        "failures",
        "format",
        "measured",
        "method",
        "runs",
        "seconds",
        "subject",
    ];
    assert_eq!(
        {
            let mut names = names;
            names.sort();
            names
        },
        expected.each_ref().map(|name| *name)
    );
    assert_eq!(value["best"][0]["size"], 32768);
    assert_eq!(value["effects"][0]["stage"], "outstanding");
    let back: Report = serde_json::from_value(value).unwrap();
    assert_eq!(back.advice, report.advice);
}
