//! What an adapter counts of page faults and invalidations, from `weir stat PID --json`.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The adapters of both processes. Zeros on a side without ODP memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingCosts {
    pub client: Paging,
    pub server: Paging,
}

/// Counters of paging of a process. Times are sums over all faults or all invalidations, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paging {
    pub page_faults_handled: u64,
    /// From the access that met a fault until its QP continued; then its parts.
    pub page_fault_wait_us: u64,
    pub page_fault_notice_us: u64,
    pub page_fault_populate_us: u64,
    pub page_fault_adapter_us: u64,
    pub page_fault_table_us: u64,
    pub page_fault_resume_us: u64,
    pub page_invalidations_handled: u64,
    /// The whole time; then its parts.
    pub page_invalidation_us: u64,
    pub page_invalidation_table_us: u64,
    pub page_invalidation_quiesce_us: u64,
    pub page_invalidation_rest_us: u64,
}

impl Paging {
    /// The parts of a page fault and their means, µs; NaN without faults.
    pub fn fault(&self) -> [(&'static str, f64); 5] {
        [
            ("notice", self.page_fault_notice_us),
            ("populate", self.page_fault_populate_us),
            ("adapter", self.page_fault_adapter_us),
            ("table", self.page_fault_table_us),
            ("resume", self.page_fault_resume_us),
        ]
        .map(|(part, sum)| (part, sum as f64 / self.page_faults_handled as f64))
    }

    /// The parts of an invalidation and their means, µs; NaN without invalidations.
    pub fn invalidation(&self) -> [(&'static str, f64); 3] {
        [
            ("table", self.page_invalidation_table_us),
            ("quiesce", self.page_invalidation_quiesce_us),
            ("rest", self.page_invalidation_rest_us),
        ]
        .map(|(part, sum)| (part, sum as f64 / self.page_invalidations_handled as f64))
    }
}

/// The counters are copied to the file that `weir stat` reads ten times a second.
const LIMIT: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(50);

/// Reads the counters of a process that runs, once they have this number of invalidations.
pub(super) fn read(weir: &Path, pid: u32, invalidations: u64) -> Result<Paging> {
    let until = Instant::now() + LIMIT;
    loop {
        let shown =
            Command::new(weir).args(["stat", &pid.to_string(), "--json"]).env_remove("WEIR_RUN_DIR").output()?;
        if !shown.status.success() {
            bail!("weir stat: {}", String::from_utf8_lossy(&shown.stderr).trim());
        }
        let paging = parse(&shown.stdout)?;
        let seen = paging.page_invalidations_handled;
        if seen >= invalidations {
            return Ok(paging);
        }
        if Instant::now() > until {
            bail!(
                "process {pid} has {seen} of {invalidations} invalidations: an operation failed, or some were missed"
            );
        }
        std::thread::sleep(INTERVAL);
    }
}

fn parse(json: &[u8]) -> Result<Paging> {
    #[derive(Deserialize)]
    struct Process {
        paging: Paging,
    }
    let process: Process = serde_json::from_slice(json).context("weir stat --json has another form")?;
    Ok(process.paging)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_weir_stat_are_parsed() {
        let mut paging = serde_json::Map::new();
        for (name, value) in [
            ("page_faults", 65),
            ("page_faults_handled", 64),
            ("page_fault_us", 300),
            ("page_fault_wait_us", 6400),
            ("page_fault_notice_us", 3000),
            ("page_fault_populate_us", 280),
            ("page_fault_adapter_us", 0),
            ("page_fault_table_us", 20),
            ("page_fault_resume_us", 3100),
            ("page_invalidations_handled", 64),
            ("page_invalidation_us", 130),
            ("page_invalidation_table_us", 7),
            ("page_invalidation_quiesce_us", 100),
            ("page_invalidation_rest_us", 23),
        ] {
            paging.insert(name.into(), value.into());
        }
        let text = |paging: &serde_json::Map<_, _>| {
            serde_json::json!({"pid": 7, "program": "weir-micro", "paging": paging}).to_string()
        };
        let found = parse(text(&paging).as_bytes()).unwrap();
        assert_eq!((found.page_faults_handled, found.page_fault_wait_us), (64, 6400));
        assert_eq!((found.page_fault_resume_us, found.page_invalidation_quiesce_us), (3100, 100));
        paging.remove("page_fault_notice_us");
        let error = format!("{:#}", parse(text(&paging).as_bytes()).unwrap_err());
        assert!(error.contains("page_fault_notice_us"), "{error}");
    }
}
