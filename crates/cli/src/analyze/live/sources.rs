//! The processes that are watched, and the packets that their adapters report, merged in the order of their times.

use crate::stat;
use anyhow::{Result, bail};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_analyze::{Analysis, Observed};
use weir_device::stat::read::Unreadable;
use weir_device::tap::ring::Reader;
use weir_device::tap::watch::{self, DeviceTap, INTERVAL, Record, Watched};

/// So long after its time stamp every packet can be read, ns: a thread may lose its core between the two.
const SETTLED: u64 = 30_000_000;

/// The processes and their taps.
pub struct Sources {
    /// The only process to watch.
    pid: Option<u32>,
    folders: Vec<PathBuf>,
    processes: Vec<Watched>,
    /// Folders of processes that cannot be watched.
    refused: Vec<PathBuf>,
    taps: Vec<Tap>,
    /// Of all taps so far, by their numbers.
    names: Vec<String>,
    asked: Option<Instant>,
    /// From CLOCK_MONOTONIC to the time since 1970, ns.
    epoch: u64,
    /// Packets that are not given to the analysis yet, with their taps.
    waiting: Vec<(u16, u64, Record)>,
}

struct Tap {
    number: u16,
    /// Its process.
    folder: PathBuf,
    device: String,
    reader: Reader,
    missed: u64,
}

impl Sources {
    /// Begins to watch. Error: there is no process `pid` that can be watched.
    pub fn new(pid: Option<u32>) -> Result<Sources> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let mut sources = Sources {
            pid,
            folders: watch::folders(),
            processes: vec![],
            refused: vec![],
            taps: vec![],
            names: vec![],
            asked: None,
            epoch: since_1970.saturating_sub(weir_device::now().0),
            waiting: vec![],
        };
        if let Some(pid) = pid {
            let Some(process) = stat::find(Some(pid))?.into_iter().next() else {
                bail!("{}", stat::absence_reason(pid))
            };
            match Watched::open(&process.folder) {
                Ok(process) => sources.add(process),
                Err(error) => bail!("process {pid}: {error}"),
            }
        }
        Ok(sources)
    }

    /// Names of the taps, by number.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the only process to watch has ended and all its packets are analyzed.
    pub fn are_over(&self) -> bool {
        self.pid.is_some() && self.processes.is_empty() && self.taps.is_empty()
    }

    /// Gives the packets that have come to the analysis. Returns their number.
    pub fn poll(&mut self, analysis: &mut Analysis) -> usize {
        self.ask();
        if self.pid.is_none() {
            self.look_for_processes();
        }
        // What a process that has ended by now has written is read below.
        let ended: Vec<Watched> = self.processes.extract_if(.., |process| !process.is_alive()).collect();
        self.open_taps(analysis);
        let now = weir_device::now().0;
        self.read(analysis);
        let mut given = self.give(analysis, now.saturating_sub(SETTLED));
        for process in ended {
            eprintln!("weir: {} (process {}) has ended", process.program(), process.pid());
            given += self.end_taps(analysis, |tap| tap.folder == process.folder());
        }
        given
    }

    /// Ends the watch, and gives all packets to the analysis.
    pub fn finish(&mut self, analysis: &mut Analysis) {
        if self.pid.is_none() {
            watch::end(&self.folders);
        }
        self.read(analysis);
        self.give(analysis, u64::MAX);
    }

    fn ask(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < INTERVAL) {
            return;
        }
        self.asked = Some(Instant::now());
        self.processes.iter().for_each(Watched::ask);
        if self.pid.is_none() {
            self.folders = watch::folders();
            watch::ask_new(&self.folders);
        }
    }

    fn look_for_processes(&mut self) {
        let found = watch::processes(&self.folders);
        self.refused.retain(|folder| found.contains(folder));
        for folder in found {
            let known = self.processes.iter().any(|process| process.folder() == folder);
            if known || self.refused.contains(&folder) {
                continue;
            }
            match Watched::open(&folder) {
                Ok(process) => self.add(process),
                // A folder that is about to be removed.
                Err(Unreadable::Dead) => {}
                Err(error) => {
                    eprintln!("weir: {}: this process is not watched: {error}", folder.display());
                    self.refused.push(folder);
                }
            }
        }
    }

    fn add(&mut self, process: Watched) {
        eprintln!("weir: watching {} (process {})", process.program(), process.pid());
        self.processes.push(process);
    }

    fn open_taps(&mut self, analysis: &mut Analysis) {
        let mut opened = Vec::new();
        for process in &mut self.processes {
            for found in process.new_taps() {
                let name = format!("{} (process {})", process.program(), process.pid());
                match found {
                    Ok(tap) => opened.push((name, process.folder().to_owned(), tap)),
                    Err(error) => eprintln!("weir: {name} cannot be watched: {error}{}", advice(&error)),
                }
            }
        }
        for (name, folder, DeviceTap { device, reader }) in opened {
            // The device was opened again, or this watcher was stopped for so long that the tap was freed.
            if self.taps.iter().any(|tap| tap.folder == folder && tap.device == device) {
                self.read(analysis);
                self.end_taps(analysis, |tap| tap.folder == folder && tap.device == device);
            }
            let Ok(number) = u16::try_from(self.names.len()) else {
                eprintln!("weir: {name} is not watched: this watcher has seen 65536 devices; start another");
                continue;
            };
            self.names.push(format!("{name} on {device}"));
            self.taps.push(Tap { number, folder, device, reader, missed: 0 });
        }
    }

    /// Taps that get no more packets. Returns the number of packets that were given to the analysis.
    fn end_taps(&mut self, analysis: &mut Analysis, ended: impl Fn(&Tap) -> bool) -> usize {
        // Their packets come before those that their peers report from now on.
        let given = self.give(analysis, u64::MAX);
        self.taps.extract_if(.., |tap| ended(tap)).for_each(|tap| analysis.source_ended(tap.number));
        given
    }

    fn read(&mut self, analysis: &mut Analysis) {
        // No adapter writes times to come, and a packet with such a time would wait for ever.
        let latest = weir_device::now().0 + SETTLED;
        for tap in &mut self.taps {
            tap.reader.read(|number, record| {
                let time = record.time.min(latest);
                self.waiting.push((tap.number, number, Record { time, ..record }));
            });
            analysis.missed(tap.reader.missed() - tap.missed);
            tap.missed = tap.reader.missed();
        }
    }

    /// Gives the packets of this time or before to the analysis. Returns their number.
    fn give(&mut self, analysis: &mut Analysis, until: u64) -> usize {
        // Stable: packets of one tap keep their order.
        self.waiting.sort_by_key(|(_, _, record)| record.time);
        let count = self.waiting.partition_point(|(_, _, record)| record.time <= until);
        for (tap, number, record) in self.waiting.drain(..count) {
            analysis.observed(tap, &observed(number, &record, self.epoch));
        }
        count
    }
}

fn observed(number: u64, record: &Record, epoch: u64) -> Observed<'_> {
    let (own, other) = ((record.local, record.own_qp), (record.remote, record.other_qp));
    let ((from, from_qp), (to, _)) = if record.sent { (own, other) } else { (other, own) };
    Observed {
        time: record.time.saturating_add(epoch),
        number,
        sent: record.sent,
        from: from.into(),
        to: to.into(),
        from_qp,
        headers: &record.headers,
        payload: record.payload,
        over_links: record.over_links,
    }
}

/// What to do about a tap that cannot be opened.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ". Run this command as the user of the process, or as root",
        // The process ID in the folder is that of another process here.
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData => {
            ". If the process is in a container, run this command in it"
        }
        _ if error.raw_os_error() == Some(libc::EMFILE) => {
            ". The process needs a free descriptor: raise its `ulimit -n`"
        }
        _ => "",
    }
}

/// How long the watcher may sleep after a poll: less than a tap takes to overflow while packets come.
pub fn pause(packets: usize) -> Duration {
    Duration::from_millis(if packets > 0 { 5 } else { 20 })
}
