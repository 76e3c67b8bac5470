//! The report as a document: what text, JSON and HTML are made of.

mod comments;
mod document;
mod html;
mod ladder;
mod text;

pub use comments::comments;
pub use document::{Capture, Connection, Document, FindingEntry, Half, Interval, Peer};
pub use html::html;
pub use ladder::{LadderStep, Mark};
pub use text::{Style, headline, text};
