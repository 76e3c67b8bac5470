//! The process's file of observations, mapped into memory (`weir_doctor::layout`).
//!
//! All of its blocks are allocated at once: a write to a mapped hole of a full file system would end the process.

use crate::clock::{self, Moment};
use crate::quiet::observe;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering::*};
use weir_doctor::layout::{
    Header, LENGTH, MAGIC, QPS, QPS_AT, Qp, REQUESTS, REQUESTS_AT, Request, SOURCES, SOURCES_AT, SUFFIX, Source,
    VARIABLE,
};

/// The mapping; NULL as long as there is no file.
static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
/// The file could not be made: control calls do not try again.
static FAILED: AtomicBool = AtomicBool::new(false);
/// Entries of QPs from here on were never in use.
static NEVER_USED: AtomicU64 = AtomicU64::new(0);
/// Where the search for an entry of a destroyed QP begins.
static NEXT_OLD: AtomicU64 = AtomicU64::new(0);
/// The time is noted at this interval at least while the program polls, ns.
const NOTE_EVERY: u64 = 10_000_000;
/// When to note it next.
static NOTE_NEXT: AtomicU64 = AtomicU64::new(0);
/// When the file was made, by the clock's ticks.
static MADE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// A counter of the header.
#[derive(Clone, Copy)]
pub enum Counter {
    QpsLeftOut,
    Unmatched,
    Pinned,
    PinnedBytes,
}

/// The folder in which `weir doctor` expects files; `None`: this program is not observed.
fn folder() -> Option<CString> {
    unsafe extern "C" {
        // NULL for a program that has gained privileges: it writes no file for its caller.
        fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
    }
    let name = CString::new(VARIABLE).ok()?;
    // SAFETY: a NUL-terminated name; the value is copied before the program can change the environment.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        (!value.is_null() && *value != 0).then(|| CStr::from_ptr(value).to_owned())
    }
}

/// Makes the file, unless it exists. The caller holds the lock of the control calls. False: there is none.
pub fn make() -> bool {
    if exists() {
        return true;
    }
    if FAILED.load(Relaxed) {
        return false;
    }
    let Some(folder) = folder() else { return false };
    let Some(base) = map(&folder) else {
        FAILED.store(true, Relaxed);
        return false;
    };
    clock::start();
    let now = clock::moment();
    // SAFETY: the mapping is as long as the layout, page-aligned and zeroed; no other thread uses it yet.
    unsafe {
        let header = &mut *base.cast::<Header>();
        header.pid = std::process::id();
        (header.start_ticks, header.start_ns) = (now.ticks, now.ns);
        (header.last_ticks, header.last_ns) = (now.ticks, now.ns);
        header.start_unix_ns = clock::unix_ns();
        fill(&mut header.program, &std::fs::read("/proc/self/comm").unwrap_or_default());
        header.magic = MAGIC;
    }
    MADE[0].store(now.ticks, Relaxed);
    MADE[1].store(now.ns, Relaxed);
    BASE.store(base, Release);
    true
}

/// Whether `weir doctor` runs this program.
pub fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| folder().is_some())
}

/// Whether this process has a file.
#[inline]
pub fn exists() -> bool {
    !BASE.load(Acquire).is_null()
}

/// In a forked child: the parent's file is out of reach. What the child still writes goes to memory of its own.
pub fn leave() {
    let base = BASE.load(Acquire);
    if !base.is_null() {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: replaces this library's own mapping, by one of the same length.
        unsafe { libc::mmap(base.cast(), LENGTH, prot, flags | libc::MAP_FIXED, -1, 0) };
    }
    BASE.store(std::ptr::null_mut(), Release);
    FAILED.store(false, Relaxed);
    NEVER_USED.store(0, Relaxed);
}

/// Notes the time on both clocks, and corrects the length of a tick.
pub fn note_time() {
    let Some(header) = header() else { return };
    clock::calibrate(Moment { ticks: MADE[0].load(Relaxed), ns: MADE[1].load(Relaxed) });
    let now = clock::moment();
    NOTE_NEXT.store(now.ticks + clock::to_ticks(NOTE_EVERY), Relaxed);
    // SAFETY: aligned members of the mapping. A reader of the file reads it after this process.
    unsafe {
        (&raw mut (*header).last_ticks).write_volatile(now.ticks);
        (&raw mut (*header).last_ns).write_volatile(now.ns);
    }
}

/// Notes the time if that was not done lately: the file tells until when the process was seen alive.
#[inline]
pub fn note_time_at(ticks: u64) {
    if ticks > NOTE_NEXT.load(Relaxed) {
        note_time();
    }
}

/// Adds to a counter of the header.
pub fn count(counter: Counter, by: u64) {
    let Some(header) = header() else { return };
    // SAFETY: members of the mapping, which is never unmapped; all threads change them as atomics.
    let member = unsafe {
        match counter {
            Counter::QpsLeftOut => &raw mut (*header).qps_left_out,
            Counter::Unmatched => &raw mut (*header).unmatched,
            Counter::Pinned => &raw mut (*header).pinned,
            Counter::PinnedBytes => &raw mut (*header).pinned_bytes,
        }
    };
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(member) }.fetch_add(by, Relaxed);
}

/// Keeps a request that took long.
pub fn keep(mut request: Request) {
    let Some(header) = header() else { return };
    // SAFETY: as in `count`.
    let at = unsafe { AtomicU64::from_ptr(&raw mut (*header).requests) }.fetch_add(1, Relaxed);
    if at >= REQUESTS as u64 {
        return;
    }
    request.used = 0;
    // SAFETY: an entry of the mapping, which only this thread writes. `used` is written last: the process may end at
    // any time.
    unsafe {
        let entry = header.cast::<u8>().add(REQUESTS_AT).cast::<Request>().add(at as usize);
        entry.write_volatile(request);
        (&raw mut (*entry).used).write_volatile(1);
    }
}

/// An entry for a QP, zeroed; `None` if all are in use or there is no file. Entries of destroyed QPs without a request
/// in the file are used again when there is no other. The caller holds the lock of the control calls.
pub fn take_qp() -> Option<*mut Qp> {
    let base = BASE.load(Acquire);
    if base.is_null() {
        return None;
    }
    let entry = |at: u64| base.wrapping_add(QPS_AT).cast::<Qp>().wrapping_add(at as usize);
    let never_used = NEVER_USED.load(Relaxed);
    let found = if never_used < QPS as u64 {
        NEVER_USED.store(never_used + 1, Relaxed);
        Some(entry(never_used))
    } else {
        // SAFETY: entries of the mapping.
        let is_over = |qp: &*mut Qp| unsafe { (**qp).destroyed != 0 && (**qp).bits & Qp::KEPT == 0 };
        let first = NEXT_OLD.load(Relaxed);
        let at = (first..first + QPS as u64).find(|at| is_over(&entry(at % QPS as u64)));
        at.inspect(|at| NEXT_OLD.store(at + 1, Relaxed)).map(|at| entry(at % QPS as u64))
    };
    match found {
        // SAFETY: an entry of the mapping that no QP uses.
        Some(entry) => unsafe {
            entry.write_bytes(0, 1);
            (&raw mut (*entry).bits).write_volatile(Qp::USED);
        },
        None => count(Counter::QpsLeftOut, 1),
    }
    found
}

/// The index of a QP's entry.
pub fn index_of(qp: *const Qp) -> u32 {
    let first = BASE.load(Acquire).wrapping_add(QPS_AT);
    ((qp as usize).wrapping_sub(first as usize) / size_of::<Qp>()) as u32
}

/// When the process ends by itself.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    observe(note_time);
}

/// Counts a region with ODP for the library that registered it. The caller holds the lock of the control calls.
pub fn count_source(path: &[u8], bytes: u64, implicit: bool) {
    let Some(header) = header() else { return };
    let mut kept = [0; 224];
    fill(&mut kept, path);
    for at in 0..SOURCES {
        // SAFETY: an entry of the mapping; the lock is held.
        let source = unsafe { &mut *header.cast::<u8>().add(SOURCES_AT).cast::<Source>().add(at) };
        if source.used == 0 {
            source.path = kept;
        } else if source.path != kept {
            continue;
        }
        source.used = 1;
        source.bits |= if implicit { Source::IMPLICIT } else { 0 };
        source.regions += 1;
        source.bytes += if implicit { 0 } else { bytes };
        source.largest = source.largest.max(if implicit { 0 } else { bytes });
        return;
    }
}

/// Copies as much of a text as fits before a NUL; without the newline at its end.
pub fn fill<const N: usize>(to: &mut [u8; N], text: &[u8]) {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let len = text.len().min(N - 1);
    to[..len].copy_from_slice(&text[..len]);
    to[len..].fill(0);
}

fn header() -> Option<*mut Header> {
    let base = BASE.load(Acquire);
    (!base.is_null()).then_some(base.cast())
}

/// Makes a file of a new name and maps it. If there is no room for it, the empty file stays: it tells so.
fn map(folder: &CStr) -> Option<*mut u8> {
    let file = create(folder)?;
    let base = map_whole(&file);
    if base.is_none() {
        // SAFETY: no memory is concerned.
        unsafe { libc::ftruncate(file.as_raw_fd(), 0) };
    }
    base
}

/// A process ID can come again, so that a name is in use.
fn create(folder: &CStr) -> Option<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    for n in 0..1000 {
        let name = format!("{}/{}-{n}{SUFFIX}", folder.to_string_lossy(), std::process::id());
        let name = CString::new(name).ok()?;
        // SAFETY: a NUL-terminated name; the new descriptor has no other owner.
        let fd = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
        if fd >= 0 {
            // SAFETY: as above.
            return Some(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EEXIST) {
            break;
        }
    }
    None
}

/// Allocates all blocks of a new file, and maps it.
fn map_whole(file: &OwnedFd) -> Option<*mut u8> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the file is the caller's, and the limit a local variable.
    unsafe {
        // To exceed the limit is to get SIGXFSZ, which ends the process.
        if libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) != 0 || limit.rlim_cur < LENGTH as libc::rlim_t {
            return None;
        }
        if libc::posix_fallocate(file.as_raw_fd(), 0, LENGTH as libc::off_t) != 0 {
            return None;
        }
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let base = libc::mmap(std::ptr::null_mut(), LENGTH, prot, libc::MAP_SHARED, file.as_raw_fd(), 0);
        (base != libc::MAP_FAILED).then_some(base.cast())
    }
}
