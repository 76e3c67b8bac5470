//! The run folder of a user, with a folder for each process: private, and cleared of the folders of dead processes.
//!
//! A process holds a lock on its sheet until it ends, in whatever way. The lock shows whether it is alive. A process
//! ID does not, because containers that share the folder may use the same ID for different processes.

use crate::os::process::gains_privileges;
use nix::unistd::geteuid;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Name of the sheet in a process's folder.
pub const SHEET: &str = "counters";

/// The environment variable that names the run folder.
pub const VARIABLE: &str = "WEIR_RUN_DIR";

/// A file in the run folder: as long as a watcher renews it, processes are watched from when they open a device.
const WATCHED: &str = "watched";
/// So long after its last renewal the file counts.
const RENEWED: Duration = Duration::from_secs(2);

/// A folder that is not complete after this time will never be.
const UNFINISHED: Duration = Duration::from_secs(60);

/// Candidates for this user's run folder, the best first: memory rather than a disk, because writeback to a disk
/// would stop the process now and then.
pub fn candidates() -> Vec<PathBuf> {
    let user = geteuid();
    let runtime = variable("XDG_RUNTIME_DIR").unwrap_or_else(|| format!("/run/user/{user}").into());
    let fixed = ["/dev/shm", "/tmp"].map(|folder| Path::new(folder).join(format!("weir-{user}")));
    let mut all: Vec<PathBuf> = variable(VARIABLE).into_iter().chain([runtime.join("weir")]).chain(fixed).collect();
    all.dedup();
    all
}

/// The run folder that `WEIR_RUN_DIR` names, if processes of this user can use it.
pub fn chosen() -> Option<PathBuf> {
    variable(VARIABLE).filter(|folder| is_private(folder).unwrap_or(false))
}

/// An environment variable with the path of a folder.
fn variable(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| Path::new(value).is_absolute() && !gains_privileges());
    value.map(PathBuf::from)
}

/// The run folder, created if necessary. Error: that of the last candidate.
pub fn prepare() -> io::Result<PathBuf> {
    let mut last = io::ErrorKind::NotFound.into();
    for folder in candidates() {
        match make_private(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Creates a folder that only this user can access. Its parent may be writable for all users, so that another user
/// may have created it before.
fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    if is_private(folder)? { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Returns whether a folder is this user's, and only this user can access it.
fn is_private(folder: &Path) -> io::Result<bool> {
    let found = fs::symlink_metadata(folder)?;
    Ok(found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0)
}

/// The folders of processes in a run folder, alive and dead.
pub fn processes(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| is_process(path.file_name()))
}

/// The process's ID, and a number if another container has the same ID.
fn is_process(name: Option<&OsStr>) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.and_then(OsStr::to_str).is_some_and(|name| name.splitn(2, '.').all(number))
}

/// A process's folder that is being created.
fn is_new(name: Option<&OsStr>) -> bool {
    name.and_then(OsStr::to_str).is_some_and(|name| name.starts_with(".new-"))
}

/// Returns whether a watcher wants to see new processes of a run folder from their start.
pub fn is_watched(run: &Path) -> bool {
    let renewed = fs::symlink_metadata(run.join(WATCHED)).and_then(|found| found.modified());
    renewed.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < RENEWED))
}

/// A watcher wants to see new processes of a run folder for two seconds.
pub fn watch(run: &Path) -> io::Result<()> {
    let mut how = OpenOptions::new();
    how.write(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    how.open(run.join(WATCHED))?.set_modified(SystemTime::now())
}

/// The watcher ends. Another watcher renews the file again.
pub fn end_watch(run: &Path) {
    let _ = fs::remove_file(run.join(WATCHED));
}

/// Returns whether the process that owns a sheet is alive.
pub fn is_alive(sheet: &File) -> bool {
    // SAFETY: zeros are a valid flock; it is filled in here and by the kernel.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        libc::fcntl(sheet.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) == 0
            && lock.l_type != libc::F_UNLCK as libc::c_short
    }
}

/// Locks a sheet until this process closes it or ends. EAGAIN if another process has the lock.
pub fn lock_sheet(sheet: &File) -> io::Result<()> {
    // SAFETY: as in `is_alive`.
    let result = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        libc::fcntl(sheet.as_raw_fd(), libc::F_OFD_SETLK, &lock)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Removes the folders of dead processes.
pub fn sweep(folder: &Path) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let (process, new) = (is_process(path.file_name()), is_new(path.file_name()));
        let dead = match File::open(path.join(SHEET)) {
            // WEIR_RUN_DIR may name a folder that has other folders too.
            _ if !process && !new => false,
            Ok(sheet) if process => !is_alive(&sheet),
            Ok(sheet) => !is_alive(&sheet) && is_old(&path),
            Err(_) => is_old(&path),
        };
        if dead {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// A folder that is being created is not locked yet.
fn is_old(path: &Path) -> bool {
    let age = fs::symlink_metadata(path).and_then(|found| found.modified()).map(|time| time.elapsed());
    age.is_ok_and(|age| age.is_ok_and(|age| age > UNFINISHED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn process(folder: &Path, name: &str) -> File {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        File::create(path.join(SHEET)).unwrap()
    }

    #[test]
    fn only_folders_of_dead_processes_are_removed() {
        let folder = scratch("sweep");
        let alive = process(&folder, "17");
        lock_sheet(&alive).unwrap();
        drop(process(&folder, "18"));
        process(&folder, ".new-19");
        let others = ["2024-11", "data", "17.x"].map(|name| folder.join(name));
        for other in &others {
            fs::create_dir(other).unwrap();
            let long_ago = File::open(other).unwrap();
            long_ago.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        assert!(is_alive(&File::open(folder.join("17").join(SHEET)).unwrap()));
        assert!(!is_alive(&File::open(folder.join("18").join(SHEET)).unwrap()));
        sweep(&folder);
        assert_eq!(processes(&folder).collect::<Vec<_>>(), [folder.join("17")]);
        assert!(folder.join(".new-19").exists(), "it may still be in creation");
        assert!(others.iter().all(|other| other.exists()), "not Weir's");
        drop(alive);
        sweep(&folder);
        assert_eq!(processes(&folder).count(), 0);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_other_users_may_access_is_not_used() {
        let folder = scratch("open");
        let inner = folder.join("run");
        make_private(&inner).unwrap();
        make_private(&inner).unwrap();
        fs::set_permissions(&inner, Permissions::from_mode(0o750)).unwrap();
        assert_eq!(make_private(&inner).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let link = folder.join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert_eq!(make_private(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn processes_are_watched_from_their_start_while_a_watcher_renews_its_file() {
        let folder = scratch("watched");
        assert!(!is_watched(&folder));
        watch(&folder).unwrap();
        assert!(is_watched(&folder));
        let file = OpenOptions::new().write(true).open(folder.join(WATCHED)).unwrap();
        file.set_modified(SystemTime::now() - RENEWED).unwrap();
        assert!(!is_watched(&folder), "its watcher has died");
        watch(&folder).unwrap();
        end_watch(&folder);
        assert!(!is_watched(&folder));
        std::os::unix::fs::symlink("/dev/null", folder.join(WATCHED)).unwrap();
        assert!(watch(&folder).is_err(), "a link is not followed");
        fs::remove_dir_all(folder).unwrap();
    }

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("weir-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }
}
