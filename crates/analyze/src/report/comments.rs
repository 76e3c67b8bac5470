//! The findings as comments of frames, for Wireshark: `weir: ` and the number, kind and text of the finding.

use super::document::{Document, FindingEntry};
use std::collections::HashMap;

/// The comments of frames, by index of the file and number of the frame.
pub fn comments(document: &Document) -> HashMap<(u16, u64), Vec<String>> {
    let mut all: HashMap<(u16, u64), Vec<String>> = HashMap::new();
    for (at, finding) in document.findings.iter().enumerate() {
        for (frame, file) in finding.frames.iter().zip(&finding.frame_files) {
            all.entry((*file, *frame)).or_default().push(comment(at + 1, *frame, finding));
        }
    }
    all
}

fn comment(number: usize, frame: u64, finding: &FindingEntry) -> String {
    let note = finding.ladder.iter().find(|step| step.frame == frame).map_or("", |step| &step.note);
    let note = if note.is_empty() { String::new() } else { format!(" [{note}]") };
    format!("weir: {number} {}: {}{note} {}", finding.kind, finding.title, finding.text)
}
