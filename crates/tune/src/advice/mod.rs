//! Advice: what to set in programs and libraries, by name. Every value follows from what was measured, and a setting
//! without a clear effect gets no advice but the statement that it makes no difference.

mod entry;
mod named;
mod others;
mod outstanding;

pub use entry::Advice;
pub use named::Named;

use crate::findings::Findings;

/// All advice that follows from the findings.
pub fn advice(findings: &Findings) -> Vec<Advice> {
    let all = [
        outstanding::size(findings),
        outstanding::outstanding(findings),
        others::signal(findings),
        others::alignment(findings),
        others::wake(findings),
        others::place(findings),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;
