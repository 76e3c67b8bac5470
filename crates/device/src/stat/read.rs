//! Reading the statistics of processes.

use crate::memory::totals::Totals;
use crate::stat::folder::{self, SHEET};
use crate::stat::sheet::{Link as LinkEntry, MAGIC, Published, Region, Sheet, Text, VALUES, Word, state};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The current state of a process.
#[derive(Clone, Debug)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    pub program: String,
    pub started: SystemTime,
    /// Inode of its network namespace.
    pub namespace: u64,
    /// Its folder.
    pub folder: PathBuf,
    pub devices: Vec<Device>,
    /// Its on-demand regions, or the first of them.
    pub regions: Vec<OnDemand>,
    /// Number of its on-demand regions.
    pub region_count: u64,
    pub memory: Totals,
    /// The groups of counters that other libraries of the process publish: their names, and counters by name.
    pub published: Vec<(String, Vec<(String, u64)>)>,
}

/// A device that it has opened.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    /// Whether it is still open.
    pub open: bool,
    /// Its number in the vendor's names.
    pub index: u64,
    pub qps: u64,
    pub packets_sent: u64,
    /// Bytes of RoCE packets, without UDP and IP headers.
    pub bytes_sent: u64,
    pub packets_received: u64,
    pub bytes_received: u64,
    /// How often requests were retransmitted because of an ACK timeout.
    pub ack_timeouts: u64,
    /// How often because of a sequence NAK: the responder missed a packet.
    pub sequence_naks: u64,
    /// How often because a response was missing.
    pub implied_naks: u64,
    /// How often because of an RNR NAK: the receiver was not ready.
    pub rnr_naks: u64,
    /// Packets that the adapter itself lost, as its profile describes.
    pub packets_lost: u64,
    /// Messages of UC through shared memory that were dropped because no receive was posted in time.
    pub without_receive: u64,
    /// Packets that were lost because the shared memory to their peer was full.
    pub ring_full: u64,
    /// Packets with a wrong ICRC, which were dropped.
    pub wrong_icrc: u64,
    /// Packets for a connected QP from another address than its peer's, which were dropped.
    pub wrong_sender: u64,
    /// Counters of paging by name; times are in nanoseconds, and their names end in `_ns`.
    pub paging: Vec<(String, u64)>,
    /// Its interfaces if it joins several, otherwise empty.
    pub links: Vec<Link>,
}

/// An interface of a device that joins several.
#[derive(Clone, Debug)]
pub struct Link {
    pub interface: String,
    /// Peers that packets can go to over it.
    pub peers: u64,
    /// Those of them to which it is used.
    pub peers_up: u64,
    /// Bytes on the wire, with packets that went again, without acknowledgements.
    pub bytes_sent: u64,
    /// Bytes per second: the largest rate to a peer.
    pub rate: u64,
    /// Share of packets that were lost lately: the largest to a peer.
    pub loss: f64,
    /// The mean round trip of all peers, if it is known.
    pub round_trip: Option<Duration>,
}

/// An on-demand region.
#[derive(Clone, Debug)]
pub struct OnDemand {
    pub device: String,
    pub lkey: u32,
    pub addr: u64,
    /// Length in bytes; `u64::MAX` if it is the whole address space.
    pub len: u64,
    pub paging: Vec<(String, u64)>,
}

/// Why a process cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It ended without removing its folder.
    #[error("the process has ended")]
    Dead,
    #[error("its counters were written by another version of Weir")]
    Version,
    #[error("its counters kept changing while they were read; try again")]
    Busy,
}

/// Folders to search: that of `WEIR_RUN_DIR` alone if there is one; else those of this user; for root those of all users.
pub fn folders() -> Vec<PathBuf> {
    if let Some(chosen) = folder::chosen() {
        return vec![chosen];
    }
    let mut all = folder::candidates();
    if nix::unistd::geteuid().is_root() {
        let inside = |folder: &str| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let shared = ["/dev/shm", "/tmp"].into_iter().flat_map(inside);
        let named = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.strip_prefix("weir-").is_some_and(|user| user.parse::<u32>().is_ok())
        };
        all.extend(shared.filter(named));
        all.extend(inside("/run/user").map(|path| path.join("weir")));
    }
    let mut seen = vec![];
    all.retain(|folder| folder.is_dir() && !seen.contains(folder) && (seen.push(folder.clone()), true).1);
    all
}

/// All live processes in these run folders that this user may read, sorted by ID.
pub fn processes(folders: &[PathBuf]) -> Vec<Process> {
    let all = folders.iter().flat_map(|run| folder::processes(run)).filter_map(|folder| process(&folder).ok());
    let mut all: Vec<Process> = all.collect();
    all.sort_by_key(|process| process.pid);
    all
}

/// The current contents of a process's folder.
pub fn process(folder: &Path) -> Result<Process, Unreadable> {
    let held = Held::open(folder)?;
    if held.is_alive() { held.read() } else { Err(Unreadable::Dead) }
}

/// A process's counters, which stay readable when the process has ended and its folder is gone.
#[derive(Debug)]
pub struct Held {
    sheet: File,
    folder: PathBuf,
    owner: u32,
}

impl Held {
    /// Opens the counters of the process with this folder.
    pub fn open(folder: &Path) -> Result<Held, Unreadable> {
        // Links of other users are not followed, and a pipe does not block.
        let how = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let sheet = OpenOptions::new().read(true).custom_flags(how).open(folder.join(SHEET))?;
        let owner = sheet.metadata()?.uid();
        Ok(Held { sheet, folder: folder.to_owned(), owner })
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        folder::is_alive(&self.sheet)
    }

    /// The counters: those of now, or the last ones of a process that has ended.
    pub fn read(&self) -> Result<Process, Unreadable> {
        Ok(describe(&*read_whole(&self.sheet)?, &self.folder, self.owner))
    }
}

/// The folders of processes in a run folder, alive and dead.
pub fn process_folders(run: &Path) -> impl Iterator<Item = PathBuf> {
    folder::processes(run)
}

/// A copy that was not written to while it was made.
fn read_whole(file: &File) -> Result<Box<Sheet>, Unreadable> {
    for _ in 0..100 {
        let sheet = read(file)?;
        if sheet.header.magic.get() != MAGIC {
            return Err(Unreadable::Version);
        }
        let sequences = sheet.sequences();
        if sequences.iter().all(|sequence| sequence.is_multiple_of(2)) && read(file)?.sequences() == sequences {
            return Ok(sheet);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Err(Unreadable::Busy)
}

fn read(file: &File) -> Result<Box<Sheet>, Unreadable> {
    let mut sheet = Box::<Sheet>::new_uninit();
    // SAFETY: zeroed, so that it may be accessed as bytes; any bytes are a valid sheet.
    let sheet = unsafe {
        sheet.as_mut_ptr().write_bytes(0, 1);
        let bytes = std::slice::from_raw_parts_mut(sheet.as_mut_ptr().cast::<u8>(), size_of::<Sheet>());
        file.read_exact_at(bytes, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Unreadable::Version,
            _ => error.into(),
        })?;
        sheet.assume_init()
    };
    Ok(sheet)
}

fn describe(sheet: &Sheet, folder: &Path, owner: u32) -> Process {
    let names: Vec<String> = sheet.header.names.iter().map(Text::get).take_while(|name| !name.is_empty()).collect();
    let paging = |values: &[Word; VALUES]| -> Vec<(String, u64)> {
        names.iter().cloned().zip(values.iter().map(Word::get)).collect()
    };
    let links = |device: usize| {
        let of_device = sheet.links.iter().filter(move |link| link.device.get() == device as u64 + 1);
        of_device.map(Link::from).collect()
    };
    let used = sheet.devices.iter().enumerate().filter(|(_, device)| device.state.get() != state::FREE);
    let devices = used.map(|(number, device)| {
        let traffic = &device.traffic;
        Device {
            name: device.name.get(),
            open: device.state.get() == state::OPEN,
            index: device.index.get(),
            qps: device.qps.get(),
            packets_sent: traffic.packets_sent.get(),
            bytes_sent: traffic.bytes_sent.get(),
            packets_received: traffic.packets_received.get(),
            bytes_received: traffic.bytes_received.get(),
            ack_timeouts: traffic.ack_timeouts.get(),
            sequence_naks: traffic.sequence_naks.get(),
            implied_naks: traffic.implied_naks.get(),
            rnr_naks: traffic.rnr_naks.get(),
            packets_lost: traffic.packets_lost.get(),
            without_receive: traffic.without_receive.get(),
            ring_full: traffic.ring_full.get(),
            wrong_icrc: traffic.wrong_icrc.get(),
            wrong_sender: traffic.wrong_sender.get(),
            paging: paging(&device.paging),
            links: links(number),
        }
    });
    let region = |region: &Region| {
        let device = sheet.devices.get((region.device.get() as usize).checked_sub(1)?)?;
        Some(OnDemand {
            device: device.name.get(),
            lkey: region.lkey.get() as u32,
            addr: region.addr.get(),
            len: region.len.get(),
            paging: paging(&region.paging),
        })
    };
    let header = &sheet.header;
    Process {
        pid: header.pid.get() as u32,
        uid: owner,
        program: header.program.get(),
        started: SystemTime::UNIX_EPOCH + Duration::from_nanos(header.started.get()),
        namespace: header.namespace.get(),
        folder: folder.to_owned(),
        devices: devices.collect(),
        regions: sheet.regions.iter().map_while(region).collect(),
        region_count: header.regions.get(),
        memory: Totals {
            pinned_bytes: sheet.memory.pinned_bytes.get(),
            pinned_peak: sheet.memory.pinned_peak.get(),
            registrations: sheet.memory.registrations.get(),
            registrations_on_demand: sheet.memory.registrations_on_demand.get(),
        },
        published: sheet.published.iter().filter_map(Published::counters).collect(),
    }
}

impl From<&LinkEntry> for Link {
    fn from(link: &LinkEntry) -> Self {
        let round_trip = link.round_trip.get();
        Link {
            interface: link.name.get(),
            peers: link.peers.get(),
            peers_up: link.peers_up.get(),
            bytes_sent: link.bytes_sent.get(),
            rate: link.rate.get(),
            loss: link.loss.get() as f64 / 1e6,
            round_trip: (round_trip > 0).then(|| Duration::from_nanos(round_trip)),
        }
    }
}
