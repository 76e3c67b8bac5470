//! Which libraries registered memory on demand, from the report of `weir doctor`.

use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// The members of the report that are used.
#[derive(Deserialize)]
struct Report {
    processes: Vec<Process>,
}

#[derive(Deserialize)]
struct Process {
    on_demand: Vec<Library>,
}

#[derive(Deserialize)]
struct Library {
    path: String,
}

/// The file names of these libraries, each once; empty if there is no report, because no process opened a device.
pub fn registrars(report: &Path) -> Result<Vec<String>> {
    let Ok(text) = std::fs::read_to_string(report) else { return Ok(vec![]) };
    let report: Report = serde_json::from_str(&text).with_context(|| report.display().to_string())?;
    let paths = report.processes.iter().flat_map(|process| &process.on_demand).map(|library| &library.path);
    let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = paths.map(name).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_is_named_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let process = r#"{"pid": 1, "on_demand": [{"path": "/usr/lib/ucx/libuct_ib.so.0", "regions": 2}]}"#;
        std::fs::write(&path, format!(r#"{{"version": 1, "processes": [{process}, {process}, {{"on_demand": []}}]}}"#))
            .unwrap();
        assert_eq!(registrars(&path).unwrap(), ["libuct_ib.so.0"]);
        assert!(registrars(&folder.path().join("none")).unwrap().is_empty());
    }
}
