//! The results as text, JSON, and an HTML page.

mod charts;
mod document;
mod page;
mod rows;
mod text;

pub use document::Report;
pub use page::page;
pub use text::text;

#[cfg(test)]
mod tests;
