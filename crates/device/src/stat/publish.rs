//! This process's own folder: created when it first opens a device, updated, and removed at its end.
//!
//! If no folder can be created, everything is counted in private memory.

use crate::Errno;
use crate::memory::pin;
use crate::os::cancel::Uncancelled;
use crate::os::descriptors;
use crate::os::locks::{RankedGuard, RankedMutex, rank};
use crate::os::panics::catch_panic;
use crate::os::per_process::{OnceInherited, PerProcess};
use crate::os::process;
use crate::os::threads::spawn_unwatched;
use crate::paging::counters::{self, Values};
use crate::paging::invalidate;
use crate::stat::sheet::{self, MAGIC, Region, Sheet, Word};
use crate::stat::{folder, published, vendor};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// The interval at which the counters of paging are copied, once there has been an on-demand region.
const PERIOD: Duration = Duration::from_millis(100);

/// The statistics of this process.
struct Own {
    sheet: &'static Sheet,
    folder: Option<PathBuf>,
    /// Device and number of the folder: after chroot the path may be that of another.
    identity: Option<(u64, u64)>,
    files: Vec<(String, vendor::Files)>,
}

/// A forked child creates its own.
static OWN: PerProcess<RankedMutex<Option<Own>, { rank::STATISTICS }>> = PerProcess::new();

fn own() -> RankedGuard<'static, Option<Own>, { rank::STATISTICS }> {
    OWN.get().lock()
}

/// The entry of a device that is being opened, number `index` of the devices that programs see. Errors: EMFILE,
/// ENFILE.
pub fn device(name: &str, index: u64) -> Result<&'static sheet::Device, Errno> {
    let mut guard = own();
    let own = made(&mut guard)?;
    Ok(own.sheet.device(name).map_or_else(private_zeros, |device| {
        own.add_files(name, index);
        device.index.set(index);
        device.state.set(sheet::state::OPEN);
        device
    }))
}

/// The entries of the interfaces of an open device that joins several; empty if no other process can see them.
pub fn links<'a>(device: &str, interfaces: impl Iterator<Item = &'a str>) -> Vec<Option<&'static sheet::Link>> {
    let guard = own();
    let Some(Own { sheet, folder: Some(_), .. }) = guard.as_ref() else { return vec![] };
    sheet.device(device).map_or_else(Vec::new, |device| interfaces.map(|name| sheet.link(device, name)).collect())
}

/// The folder of this process, created if necessary; `None` if it cannot be created.
pub fn own_folder() -> Option<PathBuf> {
    let mut guard = own();
    made(&mut guard).ok()?.folder.clone()
}

/// Whether a watcher wants to see this process from its start.
pub fn is_watched() -> bool {
    own_folder().is_some_and(|folder| folder.parent().is_some_and(folder::is_watched))
}

/// The statistics of this process, created if necessary.
fn made(own: &mut Option<Own>) -> Result<&mut Own, Errno> {
    match own {
        Some(own) => Ok(own),
        empty => Ok(empty.insert(Own::new()?)),
    }
}

/// Counters of a device that no other process sees.
#[cfg(any(test, feature = "testing"))]
pub fn private_device() -> &'static sheet::Device {
    private_zeros()
}

/// A sheet that no other process sees.
#[cfg(test)]
pub fn private_sheet() -> &'static Sheet {
    private_zeros()
}

/// Entries of interfaces that no other process sees.
#[cfg(test)]
pub fn private_links(count: usize) -> Vec<Option<&'static sheet::Link>> {
    (0..count).map(|_| Some(private_zeros())).collect()
}

/// This process has on-demand regions: starts a thread that publishes their counters.
pub fn paging() {
    static STARTED_IN: AtomicU32 = AtomicU32::new(u32::MAX);
    let generation = process::generation();
    if STARTED_IN.swap(generation, Ordering::AcqRel) != generation
        && let Err(error) = spawn_unwatched(c"weir-stat", 128 << 10, keep_current)
    {
        tracing::warn!(errno = error.0, "counters of paging are not published");
    }
}

fn keep_current() {
    let mut last = vec![];
    loop {
        let shown = catch_panic(|| publish(&mut last));
        if !shown {
            // Nothing depends on the published counters.
            tracing::error!("counters of paging are not published any more after a panic, a bug of Weir");
            return;
        }
        std::thread::sleep(PERIOD);
    }
}

fn publish(last: &mut Vec<Values>) {
    let now: Vec<Values> = counters::devices().iter().map(|device| device.counters.read()).collect();
    let regions = invalidate::regions().iter().map(|region| region.describe()).collect::<Vec<_>>();
    if let Some(own) = own().as_mut() {
        own.show(&regions);
        if now != *last {
            own.write_files();
        }
    }
    *last = now;
}

impl Own {
    fn new() -> Result<Own, Errno> {
        remove_at_exit();
        let made = folder::prepare().and_then(|run| {
            folder::sweep(&run);
            make(&run)
        });
        let (sheet, folder) = match made {
            Ok((sheet, folder)) => (sheet, Some(folder)),
            // The device cannot be opened without descriptors. The next attempt may succeed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                return Err(error.into());
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "no folder for this process: programs that look for /sys/class/infiniband see no device, and \
                     `weir stat` does not see this process. Set {} to a folder that this user owns, with mode 0700",
                    folder::VARIABLE
                );
                (private_zeros(), None)
            }
        };
        pin::show(&sheet.memory);
        published::show(&sheet.published);
        let identity = folder.as_deref().and_then(identity);
        Ok(Own { sheet, folder, identity, files: vec![] })
    }

    fn add_files(&mut self, name: &str, index: u64) {
        let Some(folder) = &self.folder else { return };
        if !self.files.iter().any(|(known, _)| known == name) {
            match vendor::Files::make(folder, name, index) {
                Ok(files) => self.files.push((name.to_owned(), files)),
                Err(error) => tracing::info!(%error, "no files by the vendor's names"),
            }
        }
    }

    /// Copies the counters of paging into the sheet.
    fn show(&self, regions: &[counters::OfRegion]) {
        let sheet = self.sheet;
        sheet.change(|| {
            for device in counters::devices() {
                if let Some(entry) = sheet.device(device.name) {
                    copy(&entry.paging, &device.counters.read());
                }
            }
            sheet.header.regions.set(regions.len() as u64);
            for (entry, region) in sheet.regions.iter().zip(regions.iter().map(Some).chain(std::iter::repeat(None))) {
                match region {
                    Some(region) => show_region(sheet, entry, region),
                    None if entry.device.get() == 0 => break,
                    None => entry.device.set(0),
                }
            }
        });
    }

    fn write_files(&mut self) {
        for device in counters::devices() {
            let files = self.files.iter_mut().find(|(name, _)| name == device.name);
            if let Some((_, files)) = files {
                files.update(&device.counters.read());
            }
        }
    }
}

fn show_region(sheet: &Sheet, entry: &Region, region: &counters::OfRegion) {
    let device = sheet.devices.iter().position(|device| device.name.get() == region.device);
    entry.device.set(device.map_or(0, |device| device as u64 + 1));
    entry.lkey.set(region.lkey.into());
    entry.addr.set(region.addr);
    entry.len.set(region.len);
    copy(&entry.paging, &region.values);
}

fn copy(entries: &[Word], values: &Values) {
    for (entry, (_, value)) in entries.iter().zip(values.iter()) {
        entry.set(value);
    }
}

/// Private memory, all zeros.
fn private_zeros<T>() -> &'static T {
    // SAFETY: used for a sheet and a part of it, of which all zeros are valid; never freed.
    unsafe {
        let layout = std::alloc::Layout::new::<T>();
        let zeros = std::alloc::alloc_zeroed(layout).cast::<T>();
        if zeros.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        &*zeros
    }
}

fn identity(folder: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(folder).ok().map(|found| (found.dev(), found.ino()))
}

/// Creates this process's folder in the run folder, under a temporary name until it is complete.
fn make(run: &Path) -> io::Result<(&'static Sheet, PathBuf)> {
    let pid = std::process::id();
    let making = run.join(format!(".new-{pid}-{:08x}", getrandom::u32().unwrap_or_default()));
    DirBuilder::new().mode(0o700).create(&making)?;
    let done = (|| {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(making.join(folder::SHEET))?;
        folder::lock_sheet(&file)?;
        let sheet = map(&file)?;
        fill_header(sheet);
        let folder = rename_folder(&making, run, pid)?;
        // The lock is held until the process ends; a forked child closes the descriptor.
        descriptors::register(&[file.as_raw_fd()]);
        let _ = file.into_raw_fd();
        Ok((sheet, folder))
    })();
    if done.is_err() {
        let _ = fs::remove_dir_all(&making);
    }
    done
}

/// Renames the folder to the process ID, with a suffix if another container uses the same ID.
fn rename_folder(making: &Path, run: &Path, pid: u32) -> io::Result<PathBuf> {
    let names = std::iter::once(pid.to_string()).chain((2..100).map(|more| format!("{pid}.{more}")));
    let mut last = io::ErrorKind::AlreadyExists.into();
    for name in names {
        let folder = run.join(name);
        match fs::rename(making, &folder) {
            Ok(()) => return Ok(folder),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Maps a sheet. The file's blocks are allocated before, because a full file system must not stop the process later.
fn map(file: &File) -> io::Result<&'static Sheet> {
    let size = size_of::<Sheet>();
    // SAFETY: a valid descriptor.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, size as libc::off_t) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let how = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    // SAFETY: a new mapping, never unmapped, of a file of that length. No other process truncates the file: it is in
    // a private folder of this user. A page-aligned address is aligned well enough, and any bytes are a valid sheet.
    unsafe {
        let address = libc::mmap(std::ptr::null_mut(), size, how.0, how.1, file.as_raw_fd(), 0);
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(&*address.cast::<Sheet>())
    }
}

fn fill_header(sheet: &Sheet) {
    let header = &sheet.header;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    header.pid.set(std::process::id().into());
    header.uid.set(nix::unistd::geteuid().as_raw().into());
    header.started.set(since_1970.as_nanos() as u64);
    header.namespace.set(fs::metadata("/proc/self/ns/net").map_or(0, |found| found.ino()));
    header.program.set(&program());
    for (entry, (name, _)) in header.names.iter().zip(Values::default().iter()) {
        entry.set(name);
    }
    header.magic.publish(MAGIC);
}

/// Name of the program, without its folder.
fn program() -> String {
    let named = std::env::args_os().next().map(PathBuf::from);
    let name = named.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.or_else(|| fs::read_to_string("/proc/self/comm").ok()).unwrap_or_default().trim().to_owned()
}

fn remove_at_exit() {
    static ONCE: OnceInherited = OnceInherited::new();
    extern "C" fn remove() {
        let _uncancelled = Uncancelled::new();
        catch_panic(remove_folder);
    }
    fn remove_folder() {
        static DONE: AtomicBool = AtomicBool::new(false);
        /// The thread may hold the lock for a moment. A thread that was killed with the lock is not waited for.
        const LONGEST_WAIT: Duration = Duration::from_millis(100);
        let Some(own) = OWN.existing().and_then(|own| own.try_lock_within(LONGEST_WAIT)) else { return };
        // A child of vfork that calls exit runs this, too.
        if let Some(own) = own.as_ref().filter(|own| own.sheet.header.pid.get() == u64::from(std::process::id()))
            && let Some(folder) = &own.folder
            && own.identity.is_some()
            && identity(folder) == own.identity
            && !DONE.swap(true, Ordering::Relaxed)
        {
            let _ = fs::remove_dir_all(folder);
        }
    }
    // SAFETY: registers a function of the right type.
    ONCE.call_once(|| unsafe {
        libc::atexit(remove);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::read;

    #[test]
    fn counters_are_readable_while_the_process_runs() {
        let run = std::env::temp_dir().join(format!("weir-test-publish-{}", std::process::id()));
        let _ = fs::remove_dir_all(&run);
        DirBuilder::new().mode(0o700).create(&run).unwrap();
        let (sheet, folder) = make(&run).unwrap();
        let device = sheet.device("weir_test").unwrap();
        device.state.set(sheet::state::OPEN);
        device.traffic.packets_sent.bump(5);
        let paging = Values { page_faults: 3, page_fault_ns: 4000, ..Values::default() };
        sheet.change(|| copy(&device.paging, &paging));
        let found = read::processes(std::slice::from_ref(&run));
        assert_eq!((found.len(), found[0].pid, &found[0].folder), (1, std::process::id(), &folder));
        let shown = &found[0].devices[0];
        assert_eq!((shown.name.as_str(), shown.packets_sent), ("weir_test", 5));
        let value = |name: &str| shown.paging.iter().find(|(known, _)| known == name).unwrap().1;
        assert_eq!((value("page_faults"), value("page_fault_ns"), value("page_prefetch")), (3, 4000, 0));
        device.traffic.packets_sent.bump(1);
        assert_eq!(read::processes(std::slice::from_ref(&run))[0].devices[0].packets_sent, 6);
        assert!(shown.links.is_empty());
        sheet.memory.pinned_bytes.set(8192);
        sheet.memory.registrations.set(3);
        sheet.published[1].name.set("library");
        sheet.published[1].names[0].set("calls");
        sheet.published[1].count.set(1);
        let process = read::processes(std::slice::from_ref(&run)).remove(0);
        assert_eq!((process.memory.pinned_bytes, process.memory.registrations), (8192, 3));
        assert_eq!(process.published, [("library".to_owned(), vec![("calls".to_owned(), 0)])]);
        let [first, second] = ["eth1", "a-name-of-15-by"].map(|name| sheet.link(device, name).unwrap());
        first.peers.set(3);
        first.bytes_sent.set(1 << 40);
        second.loss.set(2500);
        second.round_trip.set(17_000);
        let shown = read::processes(std::slice::from_ref(&run)).remove(0).devices.remove(0).links;
        assert_eq!((shown[0].interface.as_str(), shown[0].peers, shown[0].bytes_sent), ("eth1", 3, 1 << 40));
        assert_eq!((shown[0].round_trip, shown[1].loss), (None, 0.0025));
        assert_eq!(shown[1].round_trip, Some(Duration::from_micros(17)));
        assert_eq!((shown[1].interface.as_str(), shown.len()), ("a-name-of-15-by", 2));
        // The same process ID again, as from another container.
        let (_, second) = make(&run).unwrap();
        assert_eq!(second.file_name().unwrap().to_string_lossy(), format!("{}.2", std::process::id()));
        fs::remove_dir_all(run).unwrap();
    }
}
