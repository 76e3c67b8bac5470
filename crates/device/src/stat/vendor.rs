//! Counters of paging as text files, with the names and paths that the drivers of Mellanox's adapters use:
//! `class/infiniband_verbs/uverbs0/num_page_faults` etc., one number in each.

use crate::paging::counters::Values;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The files of a device.
pub struct Files {
    folder: PathBuf,
    shown: [u64; NAMES.len()],
}

type Of = fn(&Values) -> u64;

/// The vendor's names and the corresponding counters of Weir. Like the vendor's, they count what was handled.
const NAMES: [(&str, Of); 7] = [
    ("num_page_faults", |v| v.page_faults_handled),
    ("num_page_fault_pages", |v| v.page_fault_pages),
    ("num_invalidations", |v| v.page_invalidations_handled),
    ("num_invalidation_pages", |v| v.page_invalidation_pages),
    ("invalidations_faults_contentions", |v| v.page_contentions),
    ("num_prefetches_handled", |v| v.page_prefetch_handled),
    ("num_prefetch_pages", |v| v.page_prefetch_pages),
];

impl Files {
    /// Creates them in a process's folder, all zero, for the device that programs see as `uverbs<index>`.
    pub fn make(process: &Path, device: &str, index: u64) -> io::Result<Files> {
        let verbs = format!("uverbs{index}");
        let folder = process.join("class/infiniband_verbs").join(&verbs);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("ibdev"), format!("{device}\n"))?;
        for (name, _) in NAMES {
            fs::write(folder.join(name), "0\n")?;
        }
        // The same folder by the device's own name.
        let by_name = process.join("class/infiniband").join(device).join("device/infiniband_verbs");
        fs::create_dir_all(&by_name)?;
        match symlink(Path::new("../../../../infiniband_verbs").join(&verbs), by_name.join(&verbs)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(Files { folder, shown: [0; NAMES.len()] }),
        }
    }

    /// Writes the files with changed values. Counters only grow, so that a number never has fewer digits than
    /// the number that it replaces, and a concurrent reader always finds a complete number.
    pub fn update(&mut self, values: &Values) {
        for ((name, of), shown) in NAMES.iter().zip(&mut self.shown) {
            let value = of(values);
            if value > *shown
                && let Ok(mut file) = OpenOptions::new().write(true).open(self.folder.join(name))
                && file.write_all(format!("{value}\n").as_bytes()).is_ok()
            {
                *shown = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_find_the_numbers_by_both_paths() {
        let folder = std::env::temp_dir().join(format!("weir-test-vendor-{}", std::process::id()));
        let mut files = Files::make(&folder, "weir_test", 2).unwrap();
        let read = |path: &str| fs::read_to_string(folder.join("class").join(path)).unwrap();
        assert_eq!(read("infiniband_verbs/uverbs2/num_page_faults"), "0\n");
        let values = Values { page_faults: 9, page_faults_handled: 8, page_prefetch_pages: 1234, ..Values::default() };
        files.update(&values);
        assert_eq!(read("infiniband_verbs/uverbs2/num_page_faults"), "8\n");
        assert_eq!(read("infiniband/weir_test/device/infiniband_verbs/uverbs2/num_prefetch_pages"), "1234\n");
        assert_eq!(read("infiniband_verbs/uverbs2/ibdev"), "weir_test\n");
        // The device is opened again.
        Files::make(&folder, "weir_test", 2).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
