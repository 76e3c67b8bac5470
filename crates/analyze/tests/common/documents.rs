//! What a document has.

use std::collections::HashSet;
use weir_analyze::report::{Document, FindingEntry};

/// The kinds of the findings.
pub fn kinds(document: &Document) -> HashSet<&'static str> {
    document.findings.iter().map(|finding| finding.kind).collect()
}

/// The finding of a kind.
pub fn finding<'a>(document: &'a Document, kind: &str) -> &'a FindingEntry {
    let found = document.findings.iter().find(|finding| finding.kind == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {:?}", kinds(document)))
}
