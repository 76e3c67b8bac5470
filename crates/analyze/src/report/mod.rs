//! The report as a document: what text, JSON and HTML are made of.

mod comments;
mod document;
mod text;

pub use comments::comments;
pub use document::{Connection, Document, FindingEntry, Half, Interval, LadderStep, Peer};
pub use text::{Style, headline, text};
