//! What the adapters of all processes of a run count, read until the last of them has ended.

use crate::data::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weir_device::stat::read::{self, Held, Process};

/// Interval of looking for new processes. A process that lives shorter is not seen.
const TICK: Duration = Duration::from_millis(10);
/// So long the watcher waits for processes that have not ended.
const END: Duration = Duration::from_secs(10);

/// Sums over all processes that opened a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub processes: u64,
    /// The most QPs that each process had at a time.
    pub qps: u64,
    /// Packets that were sent.
    pub packets: u64,
    pub page_faults: u64,
    pub ack_timeouts: u64,
    pub rnr_naks: u64,
    pub sequence_naks: u64,
}

impl Counters {
    /// Headers of [`Counters::cells`].
    pub const COLUMNS: [&str; 6] = ["QPs", "packets", "page faults", "RNR NAKs", "sequence NAKs", "ACK timeouts"];

    /// Cells of a row of data.
    pub fn cells(&self) -> [Cell; 6] {
        let counts = [self.qps, self.packets, self.page_faults, self.rnr_naks, self.sequence_naks, self.ack_timeouts];
        counts.map(|count| (count as f64).into())
    }
}

/// A thread that reads the counters of all processes of a run folder.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counters>,
}

impl Watch {
    /// Begins to watch a run folder.
    pub fn begin(folder: &Path) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (folder, stopped) = (folder.to_owned(), stop.clone());
        Watch { stop, thread: std::thread::spawn(move || watch(&folder, &stopped)) }
    }

    /// The counters once all processes have ended, or some seconds later.
    pub fn end(self) -> Counters {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// A process, its counters, and the most QPs that it had.
struct Seen {
    held: Held,
    last: Option<Process>,
    qps: u64,
}

fn watch(folder: &Path, stop: &AtomicBool) -> Counters {
    let mut seen: BTreeMap<PathBuf, Seen> = BTreeMap::new();
    // A process of an earlier run that was killed has left its folder.
    let is_dead = |process: &PathBuf| Held::open(process).is_ok_and(|held| !held.is_alive());
    let dead: BTreeSet<PathBuf> = read::process_folders(folder).filter(is_dead).collect();
    let mut deadline = None;
    loop {
        if stop.load(Ordering::Relaxed) && deadline.is_none() {
            deadline = Some(Instant::now() + END);
        }
        for process in read::process_folders(folder) {
            if !seen.contains_key(&process)
                && !dead.contains(&process)
                && let Ok(held) = Held::open(&process)
            {
                seen.insert(process, Seen { held, last: None, qps: 0 });
            }
        }
        let mut runs = false;
        for each in seen.values_mut() {
            // Whether it runs comes first: what it counted before its end is then in the last reading.
            runs |= each.held.is_alive();
            if let Ok(process) = each.held.read() {
                each.qps = each.qps.max(process.devices.iter().map(|device| device.qps).sum());
                each.last = Some(process);
            }
        }
        if deadline.is_some_and(|end| !runs || Instant::now() > end) {
            break;
        }
        std::thread::sleep(TICK);
    }
    seen.values().fold(Counters::default(), add)
}

fn add(mut sum: Counters, seen: &Seen) -> Counters {
    let Some(process) = &seen.last else { return sum };
    sum.processes += 1;
    sum.qps += seen.qps;
    for device in &process.devices {
        let paging = |name: &str| device.paging.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
        sum.packets += device.packets_sent;
        sum.page_faults += paging("page_faults_handled");
        sum.ack_timeouts += device.ack_timeouts;
        sum.rnr_naks += device.rnr_naks;
        sum.sequence_naks += device.sequence_naks;
    }
    sum
}
