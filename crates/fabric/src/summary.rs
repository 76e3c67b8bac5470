//! What an endpoint has done, on standard error (`WEIR_ODP_SUMMARY=1`).

use crate::adapter_counters;
use crate::domain::Domain;
use std::io::Write;
use weir_msg::Endpoint;

/// Prints a line for each counter.
pub fn print(protocol: &Endpoint, domain: &Domain) {
    let settings = protocol.settings();
    let mut text = format!(
        "weir-odp: process {}, device {}, scheme {}, rendezvous by {}\n",
        std::process::id(),
        domain.adapter.attributes().device,
        settings.scheme,
        settings.rendezvous
    );
    for (name, value) in protocol.counters().iter() {
        text += &format!("weir-odp:   {name:<32} {value}\n");
    }
    // Of all endpoints of the process, and of what else it registers.
    let process = ["page_faults", "page_fault_pages", "page_prefetch_pages", "page_invalidation_pages", "pinned_peak"];
    for (name, value) in adapter_counters::read() {
        if process.contains(&name.as_str()) {
            let name = format!("process_{name}");
            text += &format!("weir-odp:   {name:<32} {value}\n");
        }
    }
    // In one piece, because other processes print theirs at the same time.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
