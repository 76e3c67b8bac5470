//! `contrib/weir-findings.lua` in tshark shows the findings of `weir analyze --annotate`, and the remarks of captures.

use std::path::{Path, PathBuf};
use std::process::Command;
use weir_analyze::report::{Document, comments};
use weir_analyze::{Analysis, Options};
use weir_capture::{Annotated, Frame, LinkType};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The fields that tshark prints for the frames that a display filter selects.
fn shown(capture: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let script = root().join("contrib/weir-findings.lua");
    let mut tshark = Command::new("tshark");
    tshark.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(capture);
    tshark.args(["-n", "-Y", filter, "-T", "fields", "-E", "separator=/t"]);
    for field in fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
#[ignore = "needs tshark"]
fn findings_are_fields_and_expert_information() {
    let path = root().join("tests/fixtures/captures/weir-damming-client.pcapng");
    let mut analysis = Analysis::new(Options::default());
    let mut reader = weir_capture::open(&path).unwrap();
    while let Some(frame) = reader.next_frame().unwrap() {
        analysis.frame(0, &frame);
    }
    let document = Document::new(&analysis.finish(), &["a".to_owned()]);
    let comments = comments(&document);
    let folder = tempfile::tempdir().unwrap();
    let annotated = folder.path().join("annotated.pcapng");
    let mut copy = Annotated::new(std::fs::File::create(&annotated).unwrap(), "test");
    let mut reader = weir_capture::open(&path).unwrap();
    while let Some(frame) = reader.next_frame().unwrap() {
        let own = comments.get(&(0, frame.number)).cloned().unwrap_or_default();
        copy.frame(0, "a", &frame, &own).unwrap();
    }
    copy.flush().unwrap();

    let at = document.findings.iter().position(|finding| finding.kind == "damming").unwrap();
    let dammed = &document.findings[at];
    let frames = shown(&annotated, "weir.finding.kind == \"damming\"", &["frame.number"]);
    assert_eq!(frames.concat(), dammed.frames.iter().map(u64::to_string).collect::<Vec<_>>());
    let fields = ["weir.finding", "weir.finding.number"];
    for row in shown(&annotated, "weir.finding.kind == \"damming\"", &fields) {
        assert!(row[0].contains("packet damming") && row[0].contains(&dammed.text), "{row:?}");
        assert_eq!(row[1], (at + 1).to_string());
    }
    let all: std::collections::BTreeSet<u64> =
        document.findings.iter().flat_map(|finding| finding.frames.clone()).collect();
    let marked = shown(
        &annotated,
        "_ws.expert.message contains \"packet\" || _ws.expert.message contains \"page\"",
        &["frame.number"],
    );
    assert_eq!(marked.concat(), all.iter().map(u64::to_string).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs tshark"]
fn remarks_of_captures_are_shown_and_other_comments_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("remarks.pcapng");
    let mut copy = Annotated::new(std::fs::File::create(&path).unwrap(), "test");
    let data = [0; 60];
    for (number, comment) in [
        (1, "lost by fault injection"),
        (2, "lunch"),
        (3, "lost by the adapter: packet damming"),
        (4, "delayed by fault injection"),
    ] {
        copy.frame(0, "a", &Frame::new(number, number, LinkType::Ethernet, &data), &[comment.to_owned()]).unwrap();
    }
    copy.flush().unwrap();
    let rows = shown(&path, "weir.remark", &["frame.number", "weir.remark"]);
    let expected = [
        ["1", "lost by fault injection"],
        ["3", "lost by the adapter: packet damming"],
        ["4", "delayed by fault injection"],
    ];
    assert_eq!(rows, expected.map(|row| row.map(str::to_owned).to_vec()));
}
