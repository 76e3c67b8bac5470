//! Captures of real traffic: Soft-RoCE with and without errors, Weir with packet damming.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use weir_analyze::report::{Document, FindingEntry, Style, text};
use weir_analyze::{Analysis, Options};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures").join(name)
}

/// The document of captures, without the frames after `last`.
fn analyzed(names: &[&str], last: u64) -> Document {
    let mut analysis = Analysis::new(Options::default());
    for (number, name) in names.iter().enumerate() {
        let mut reader = weir_capture::open(fixture(name)).unwrap();
        while let Some(frame) = reader.next_frame().unwrap().filter(|frame| frame.number <= last) {
            analysis.frame(number as u16, &frame);
        }
    }
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    Document::new(&analysis.finish(), &names)
}

fn kinds(document: &Document) -> HashSet<&'static str> {
    document.findings.iter().map(|finding| finding.kind).collect()
}

fn of<'a>(document: &'a Document, kind: &str) -> Vec<&'a FindingEntry> {
    document.findings.iter().filter(|finding| finding.kind == kind).collect()
}

#[test]
fn clean_traffic_of_soft_roce_shows_nothing() {
    for name in ["rxe-verbs-1024.pcap", "rxe-verbs-gid0-ipv6.pcap"] {
        // The first 499 frames are transfers of every size and operation; errors are made after them.
        let document = analyzed(&[name], 499);
        assert_eq!(kinds(&document), HashSet::new(), "{name}");
        let half = &document.connections[0].halves[0];
        assert!(half.messages > 50 && half.repeats == 0 && half.latency_p50_ns.is_some(), "{name}");
    }
    assert_eq!(kinds(&analyzed(&["rxe-hostpeer.pcap"], 6)), HashSet::new());
}

#[test]
fn the_errors_of_soft_roce_are_named() {
    for name in ["rxe-verbs-1024.pcap", "rxe-verbs-gid0-ipv6.pcap"] {
        let document = analyzed(&[name], u64::MAX);
        // A SEND without a receive, repeated until one was posted; and refused requests on four connections.
        assert_eq!(kinds(&document), HashSet::from(["slow-receiver", "rnr-storm", "remote-error"]), "{name}");
        let [storm] = of(&document, "rnr-storm")[..] else { panic!("{name}: more than one") };
        assert_eq!(storm.count, 19, "{name}");
        assert_eq!(storm.cost_packets, 57, "{name}: three packets, nineteen times");
        let refused = of(&document, "remote-error");
        assert_eq!(refused.len(), 4, "{name}");
        let access = refused.iter().filter(|finding| finding.text.contains("IBV_WC_REM_ACCESS_ERR")).count();
        assert_eq!(access, 3, "{name}");
    }
}

#[test]
fn a_packet_with_a_wrong_icrc_is_lost() {
    let document = analyzed(&["rxe-hostpeer.pcap"], u64::MAX);
    assert_eq!(kinds(&document), HashSet::from(["bad-icrc", "timeout", "loss"]));
    assert_eq!(of(&document, "bad-icrc")[0].frames, [7]);
    assert_eq!(of(&document, "timeout")[0].frames, [7, 8]);
}

#[test]
fn damming_shows_in_the_captures_of_either_side_and_of_both() {
    let [client, server] = ["weir-damming-client.pcapng", "weir-damming-server.pcapng"];
    for names in [&[client][..], &[server], &[client, server], &[server, client]] {
        let document = analyzed(names, u64::MAX);
        assert_eq!(kinds(&document), HashSet::from(["damming", "responder-page-fault"]), "{names:?}");
        assert_eq!(document.connections.len(), 1);
        let dammed = of(&document, "damming")[0];
        assert_eq!(dammed.count, 1);
        assert!((430_000_000..560_000_000).contains(&dammed.cost_ns), "{}", dammed.cost_ns);
        assert_eq!((dammed.requester.qp, dammed.responder.qp), (Some(8623393), Some(6423693)));
    }
}

#[test]
fn the_text_fits_a_terminal_and_has_colours_only_on_request() {
    for name in ["rxe-verbs-gid0-ipv6.pcap", "rxe-verbs-1024.pcap", "weir-damming-client.pcapng"] {
        let document = analyzed(&[name], u64::MAX);
        let plain = text(&document, Style { colours: false, connections: 20 });
        for line in plain.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
        assert!(!plain.contains('\x1b'));
        let coloured = text(&document, Style { colours: true, connections: 20 });
        assert!(coloured.contains("\x1b[1;31m1. "), "{name}");
        let few = text(&document, Style { colours: false, connections: 0 });
        assert!(few.len() < plain.len() && few.contains("1. "), "{name}");
    }
}

#[test]
fn the_json_has_the_fields_of_the_documentation() {
    let document = analyzed(&["weir-damming-client.pcapng"], u64::MAX);
    let value: serde_json::Value = serde_json::from_str(&document.json()).unwrap();
    let documented =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/analyze.md")).unwrap();
    let fields = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let finding = &value["findings"][0];
    let half = &value["connections"][0]["halves"][0];
    let is_documented = |field: &str| {
        let ends = [format!("{field}`"), format!("{field}[]`")];
        ends.iter().any(|end| documented.contains(&format!("`{end}")) || documented.contains(&format!(".{end}")))
    };
    for object in [&value, &value["capture"], finding, &finding["advice"][0], &finding["ladder"][0], half] {
        for field in fields(object) {
            assert!(is_documented(&field), "{field} is not in docs/analyze.md");
        }
    }
    for field in ["kind", "connection", "frames", "from", "to", "cost_ns", "confidence", "advice"] {
        assert!(!finding[field].is_null(), "{field}");
    }
}
