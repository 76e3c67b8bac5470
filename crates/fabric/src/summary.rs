//! What an endpoint has done (`WEIR_ODP_SUMMARY`): lines on standard error, or a file for a script.

use crate::adapter_counters;
use crate::domain::Domain;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use weir_msg::Endpoint;

/// Where summaries go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Summary {
    /// To standard error.
    Shown,
    /// Each to a file of its own in this folder, as a JSON object.
    Written(PathBuf),
}

impl Summary {
    /// A path with a slash is a folder; `0` asks for no summary, anything else for lines.
    pub fn parse(value: &str) -> Option<Summary> {
        match value {
            "0" => None,
            path if path.contains('/') => Some(Summary::Written(path.into())),
            _ => Some(Summary::Shown),
        }
    }

    /// Gives the summary of an endpoint that closes.
    pub fn give(&self, protocol: &Endpoint, domain: &Domain) {
        match self {
            Summary::Shown => show(protocol, domain),
            Summary::Written(folder) => write(folder, protocol, domain),
        }
    }
}

/// A line for each counter.
fn show(protocol: &Endpoint, domain: &Domain) {
    let settings = protocol.settings();
    let mut text = format!(
        "weir-odp: process {}, device {}, scheme {}, rendezvous by {}\n",
        std::process::id(),
        domain.adapter.attributes().device,
        settings.scheme,
        settings.rendezvous
    );
    for (name, value) in counters(protocol) {
        let _ = writeln!(text, "weir-odp:   {name:<32} {value}");
    }
    // In one piece, because other processes print theirs at the same time.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A file that has another name until it is whole.
fn write(folder: &Path, protocol: &Endpoint, domain: &Domain) {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let (settings, process) = (protocol.settings(), std::process::id());
    let mut text = format!(
        "{{\"process\": {process}, \"device\": \"{}\", \"scheme\": \"{}\", \"rendezvous_by\": \"{}\"",
        domain.adapter.attributes().device,
        settings.scheme,
        settings.rendezvous
    );
    for (name, value) in counters(protocol) {
        let _ = write!(text, ", \"{name}\": {value}");
    }
    text += "}\n";
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    // Processes of two hosts that share the folder can have the same number.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let path = folder.join(format!("{}-{process}-{number}.json", host.trim()));
    let begun = path.with_extension("json.part");
    if let Err(error) = std::fs::write(&begun, text).and_then(|()| std::fs::rename(&begun, &path)) {
        let text = format!("WEIR_ODP_SUMMARY: cannot write {}: {error}", path.display());
        crate::core::warn(weir_fabric_abi::FI_LOG_EP_CTRL, &text);
    }
}

/// The endpoint's counters, and of those of the adapter what belongs beside them: they are of the whole process, with its
/// other endpoints and what else it registers.
fn counters(protocol: &Endpoint) -> Vec<(String, u64)> {
    let process = ["page_faults", "page_fault_pages", "page_prefetch_pages", "page_invalidation_pages", "pinned_peak"];
    let own = protocol.counters();
    let own = own.iter().map(|(name, value)| (name.to_owned(), value));
    let adapter = adapter_counters::read().into_iter().filter(|(name, _)| process.contains(&name.as_str()));
    own.chain(adapter.map(|(name, value)| (format!("process_{name}"), value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_told_from_a_switch() {
        assert_eq!(Summary::parse("0"), None);
        assert_eq!(Summary::parse("1"), Some(Summary::Shown));
        assert_eq!(Summary::parse("./out"), Some(Summary::Written("./out".into())));
    }
}
