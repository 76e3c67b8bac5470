//! What the ranks of a run have written (`WEIR_ODP_SUMMARY`).

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The sum of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Processes that used the provider.
    pub processes: u64,
    /// Page faults; `None`: the adapter does not say.
    pub page_faults: Option<u64>,
    /// Ranges that were prefetched.
    pub prefetches: u64,
    /// Pages that prefetches have brought; `None`: the adapter does not say.
    pub prefetched_pages: Option<u64>,
    /// Pages that the adapter lost because the memory went away or changed; `None`: the adapter does not say.
    pub invalidated_pages: Option<u64>,
    /// Sum of the most that each process had pinned at once, bytes.
    pub pinned_peak: u64,
    /// Registrations of the program's memory.
    pub registrations: u64,
    /// Operations that found their memory registered.
    pub cache_hits: u64,
    /// Messages by rendezvous.
    pub rendezvous: u64,
}

/// A file: one endpoint of a process, and beside it what the adapter says of the process.
#[derive(Debug, Deserialize)]
struct Endpoint {
    process: u64,
    prefetches: u64,
    pinned_peak: u64,
    registrations: u64,
    cache_hits: u64,
    rendezvous: u64,
    process_page_faults: Option<u64>,
    process_page_prefetch_pages: Option<u64>,
    process_page_invalidation_pages: Option<u64>,
    process_pinned_peak: Option<u64>,
}

/// Reads all files of the folder.
pub fn read(folder: &Path) -> Result<Totals> {
    let mut endpoints = vec![];
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = std::fs::read_to_string(&path)?;
            let endpoint: Endpoint = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
            // Processes of two hosts may have the same number.
            let host = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let host = host.rsplitn(3, '-').nth(2).unwrap_or_default().to_owned();
            endpoints.push((host, endpoint));
        }
    }
    Ok(total(&endpoints))
}

fn total(endpoints: &[(String, Endpoint)]) -> Totals {
    let mut totals = Totals::default();
    let mut processes: BTreeMap<(&str, u64), Vec<&Endpoint>> = BTreeMap::new();
    for (host, endpoint) in endpoints {
        processes.entry((host, endpoint.process)).or_default().push(endpoint);
    }
    for all in processes.values() {
        totals.processes += 1;
        for endpoint in all {
            totals.prefetches += endpoint.prefetches;
            totals.registrations += endpoint.registrations;
            totals.cache_hits += endpoint.cache_hits;
            totals.rendezvous += endpoint.rendezvous;
        }
        // These grow, so that the endpoint that closed last has the whole process's.
        let most = |of: fn(&Endpoint) -> Option<u64>| all.iter().filter_map(|endpoint| of(endpoint)).max();
        let add = |sum: &mut Option<u64>, value: Option<u64>| *sum = value.map(|value| sum.unwrap_or(0) + value);
        add(&mut totals.page_faults, most(|endpoint| endpoint.process_page_faults));
        add(&mut totals.prefetched_pages, most(|endpoint| endpoint.process_page_prefetch_pages));
        add(&mut totals.invalidated_pages, most(|endpoint| endpoint.process_page_invalidation_pages));
        let own = || all.iter().map(|endpoint| endpoint.pinned_peak).sum();
        totals.pinned_peak += most(|endpoint| endpoint.process_pinned_peak).unwrap_or_else(own);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(process: u64, prefetches: u64, faults: Option<u64>) -> (String, Endpoint) {
        let endpoint = Endpoint {
            process,
            prefetches,
            pinned_peak: 10,
            registrations: 1,
            cache_hits: 2,
            rendezvous: 3,
            process_page_faults: faults,
            process_page_prefetch_pages: faults,
            process_page_invalidation_pages: faults,
            process_pinned_peak: faults.map(|_| 100),
        };
        ("host".to_owned(), endpoint)
    }

    #[test]
    fn what_belongs_to_a_process_counts_once() {
        let totals = total(&[endpoint(1, 5, Some(7)), endpoint(1, 6, Some(9)), endpoint(2, 1, Some(1))]);
        assert_eq!((totals.processes, totals.prefetches, totals.registrations), (2, 12, 3));
        assert_eq!((totals.page_faults, totals.pinned_peak), (Some(10), 200));
    }

    #[test]
    fn an_adapter_without_counters_leaves_those_of_the_endpoints() {
        let totals = total(&[endpoint(1, 5, None), endpoint(1, 6, None)]);
        assert_eq!((totals.page_faults, totals.pinned_peak), (None, 20));
    }

    #[test]
    fn the_files_of_endpoints_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"process": 7, "device": "weir_lo", "scheme": "pin-down", "rendezvous_by": "write", "eager": 1,
            "rendezvous": 2, "prefetches": 0, "pinned_peak": 4096, "registrations": 1, "cache_hits": 0}"#;
        std::fs::write(folder.path().join("a-b-7-0.json"), text).unwrap();
        std::fs::write(folder.path().join("a-b-7-1.json.part"), "{").unwrap();
        let totals = read(folder.path()).unwrap();
        assert_eq!((totals.processes, totals.rendezvous, totals.pinned_peak), (1, 2, 4096));
    }
}
