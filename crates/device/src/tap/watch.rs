//! The watcher's side: asks processes for taps, and reads them.

use crate::os::clock;
use crate::stat::folder::{self, SHEET};
use crate::stat::read::Unreadable;
use crate::stat::sheet::{MAGIC, Sheet, Tap, state};
use crate::tap::ring::Reader;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::time::Duration;

pub use crate::tap::record::Record;

/// How often a watcher calls [`Watched::ask`] and [`ask_new`] at least.
pub const INTERVAL: Duration = Duration::from_nanos(Tap::AHEAD / 4);

/// A process that is watched.
pub struct Watched {
    folder: PathBuf,
    sheet: Mapped,
    file: File,
    /// The nonces of the taps that [`new_taps`](Self::new_taps) has returned, one for each device at most.
    known: Vec<u64>,
}

/// A tap of a device.
pub struct DeviceTap {
    pub device: String,
    pub reader: Reader,
}

/// Asks processes that open a device in these run folders within two seconds for a tap from their first packet on.
pub fn ask_new(folders: &[PathBuf]) {
    for run in folders {
        // A folder that only its owner can write to has processes all the same.
        let _ = folder::watch(run);
    }
}

/// The watcher ends: processes that start from now on are not watched.
pub fn end(folders: &[PathBuf]) {
    folders.iter().for_each(|run| folder::end_watch(run));
}

/// The run folders to watch; this user's own is created if there is none.
pub fn folders() -> Vec<PathBuf> {
    let _ = folder::prepare();
    crate::stat::read::folders()
}

/// The folders of processes in run folders, alive and dead.
pub fn processes(folders: &[PathBuf]) -> Vec<PathBuf> {
    folders.iter().flat_map(|run| folder::processes(run)).collect()
}

impl Watched {
    /// Begins to watch the process with this folder.
    pub fn open(folder: &Path) -> Result<Watched, Unreadable> {
        // Links of other users are not followed, and a pipe does not block.
        let mut how = OpenOptions::new();
        how.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = how.open(folder.join(SHEET))?;
        if !folder::is_alive(&file) {
            return Err(Unreadable::Dead);
        }
        let sheet = Mapped::new(&file)?;
        if sheet.get().header.magic.acquire() != MAGIC {
            return Err(Unreadable::Version);
        }
        let watched = Watched { folder: folder.to_owned(), sheet, file, known: vec![] };
        watched.ask();
        Ok(watched)
    }

    pub fn pid(&self) -> u32 {
        self.sheet.get().header.pid.get() as u32
    }

    /// Name of its program.
    pub fn program(&self) -> String {
        self.sheet.get().header.program.get()
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it runs. What its taps have got before its end stays readable.
    pub fn is_alive(&self) -> bool {
        folder::is_alive(&self.file)
    }

    /// Asks for taps of all open devices, for two seconds.
    pub fn ask(&self) {
        let now = clock::now().0;
        for device in self.sheet.get().devices.iter().filter(|device| device.state.get() == state::OPEN) {
            device.tap.watch(now);
        }
    }

    /// Taps that were not there at the last call. A tap that cannot be opened is an error, once; so is a process that
    /// cannot make one.
    pub fn new_taps(&mut self) -> Vec<io::Result<DeviceTap>> {
        let mut found = Vec::new();
        let sheet = self.sheet.get();
        for device in sheet.devices.iter().filter(|device| device.state.get() != state::FREE) {
            // An errno is below every nonce.
            let key = match device.tap.announced() {
                None => continue,
                Some(Ok((nonce, _))) => nonce,
                Some(Err(errno)) => errno as u64,
            };
            if self.known.contains(&key) {
                continue;
            }
            self.known.push(key);
            found.push(match device.tap.announced() {
                Some(Ok((nonce, file))) => self.open_tap(nonce, file).map(|reader| {
                    let device = device.name.get();
                    DeviceTap { device, reader }
                }),
                Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
                None => continue,
            });
        }
        found
    }

    fn open_tap(&self, nonce: u64, descriptor: i32) -> io::Result<Reader> {
        let path = format!("/proc/{}/fd/{descriptor}", self.pid());
        // Whatever else this number is by now, it neither blocks nor becomes the terminal.
        let how = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(how).open(path)?;
        Reader::open(&file, nonce)
    }
}

/// A mapped sheet of another process.
struct Mapped(NonNull<Sheet>);

// SAFETY: the mapping belongs to no thread; a sheet consists of atomics.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(file: &File) -> Result<Mapped, Unreadable> {
        let size = size_of::<Sheet>();
        if file.metadata()?.len() < size as u64 {
            return Err(Unreadable::Version);
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file that is long enough. Its owner never shortens it: that would end the watcher,
        // and nothing else.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }
        Ok(Mapped(NonNull::new(at.cast()).ok_or(io::ErrorKind::InvalidData).map_err(io::Error::from)?))
    }

    fn get(&self) -> &Sheet {
        // SAFETY: mapped for as long as this value exists; any bytes are a valid sheet.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value; nothing refers to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Sheet>()) };
    }
}
