//! The body of the fuzz target `analyze`: any packets, at any time, give the same report twice, which can be written.

mod packets;

use crate::report::{Document, Style, html, text};
use crate::{Analysis, Options, Report};
use packets::Packets;
use weir_capture::Reader;
use weir_trials::Input;

/// Analyses what an input says: a capture file, or packets that are almost those of a few connections, in a file and from
/// adapters. Nothing may panic, and the report is the same for the same packets.
pub fn fuzz_analyze(bytes: &[u8]) {
    let mut input = Input(bytes);
    let first = input.byte();
    let asked = input.byte();
    let (file, observed) = match first & 1 {
        0 => Packets::default().draw(&mut input),
        _ => (input.rest().to_vec(), vec![]),
    };
    // A compressed file may hold much more than a fuzzer has time for.
    if matches!(file.first(), Some(0x1f | 0x28)) {
        return;
    }
    let all = || analysis(&file, &observed, usize::from(asked));
    assert_eq!(all(), all(), "the same packets give the same report");
}

/// The report as JSON. There is a report after packet number `asked`, too.
fn analysis(file: &[u8], observed: &[packets::Reported], asked: usize) -> String {
    let mut analysis = Analysis::new(Options::default());
    let mut count = 0;
    if let Ok(mut reader) = Reader::new(std::io::Cursor::new(file.to_vec())) {
        while let Ok(Some(frame)) = reader.next_frame() {
            analysis.frame(0, &frame);
            if count == asked {
                written(&analysis.report());
            }
            count += 1;
        }
    }
    for (number, reported) in observed.iter().enumerate() {
        analysis.observed(reported.source, &reported.packet(number as u64 + 1));
        if reported.ends {
            analysis.source_ended(reported.source);
        }
        if count == asked {
            written(&analysis.report());
        }
        count += 1;
    }
    written(&analysis.finish())
}

/// Writes the report in each way, and checks what must be true of any report.
fn written(report: &Report<'_>) -> String {
    for finding in &report.findings {
        assert!(finding.from <= finding.to, "{finding:?}");
        assert!((0.0..=1.0).contains(&finding.confidence), "{finding:?}");
        assert!(finding.count > 0 && !finding.flows.is_empty(), "{finding:?}");
    }
    let document = Document::new(report, &["a".to_owned(), "b".to_owned()]);
    let json = document.json();
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["findings"].as_array().map(Vec::len), Some(report.findings.len()));
    assert!(!text(&document, Style::default()).is_empty());
    assert!(html(&document).contains("</html>"));
    json
}
