//! The C library's functions that take a path. For the paths of RDMA devices they get the path of the file that Weir
//! shows in their place ([`crate::files`]).
//!
//! A program that lists, opens or examines `/sys/class/infiniband` or `/dev/infiniband` calls one of these, in
//! whatever library: the loader takes this library's definition for all of them if `LD_PRELOAD` names this library.
//! Other paths cost a look at their first bytes. Functions that other functions of the C library call inside of it
//! (glob, nftw) are not reached.

use super::errno::{fail_enosys, keeping_errno};
use super::guarded::{caught, with_signals_blocked};
use super::next::Next;
use super::rdma_cm;
use crate::files;
use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use weir_device::Uncancelled;

type Text = *const c_char;
type Out = *mut c_void;

/// The result of a call for which the C library has no function.
trait Failed {
    fn failed() -> Self;
}

impl Failed for c_int {
    fn failed() -> c_int {
        fail_enosys()
    }
}

impl Failed for ssize_t {
    fn failed() -> ssize_t {
        fail_enosys() as ssize_t
    }
}

impl<T> Failed for *mut T {
    fn failed() -> *mut T {
        fail_enosys();
        std::ptr::null_mut()
    }
}

/// Defines functions that pass on their arguments, with another path: `NEXT: name([before] path [after]) -> result`,
/// whether they open the file, and what to do if the C library has no such function.
macro_rules! with_path {
    ($($next:ident: $name:ident([$($before:ident: $b:ty),*] $path:ident [$($after:ident: $a:ty),*]) -> $result:ty
        $(, opens $flags:ident)? $(, else $otherwise:expr)?;)*) => {
        $(static $next: Next<unsafe extern "C-unwind" fn($($b,)* Text $(, $a)*) -> $result> =
            // SAFETY: ends with its only NUL.
            Next::new(unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) });)*

        fn look_up_all() {
            $($next.look_up();)*
        }

        $(
            /// As the function of this name in the C library.
            ///
            /// # Safety
            /// As the function of this name in the C library.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($before: $b,)* $path: Text $(, $after: $a)*) -> $result {
                // SAFETY: the caller's own call.
                let call = |$path: Text| unsafe {
                    match $next.found_or_look_up() {
                        Some(next) => next($($before,)* $path $(, $after)*),
                        None => with_path!(@otherwise $($otherwise)?),
                    }
                };
                // SAFETY: guaranteed by the caller.
                match unsafe { shown($path) } {
                    None => call($path),
                    $(Some(shown) if files::is_rdma_cm(&shown) => {
                        drop(shown);
                        rdma_cm::open($flags)
                    })?
                    Some(shown) => instead(shown, call),
                }
            }
        )*
    };
    (@otherwise) => { Failed::failed() };
    (@otherwise $otherwise:expr) => { $otherwise };
}

// Some are cancellation points: a cancelled thread unwinds through their frames, which own nothing then. The arguments
// of the variadic functions are read even if the caller has not passed them, which is safe.
with_path! {
    STAT: stat([] path [to: Out]) -> c_int, else examine(path, to, 0);
    STAT64: stat64([] path [to: Out]) -> c_int, else examine(path, to, 0);
    LSTAT: lstat([] path [to: Out]) -> c_int, else examine(path, to, libc::AT_SYMLINK_NOFOLLOW);
    LSTAT64: lstat64([] path [to: Out]) -> c_int, else examine(path, to, libc::AT_SYMLINK_NOFOLLOW);
    FSTATAT: fstatat([folder: c_int] path [to: Out, flags: c_int]) -> c_int, else examine_at(folder, path, to, flags);
    FSTATAT64: fstatat64([folder: c_int] path [to: Out, flags: c_int]) -> c_int,
        else examine_at(folder, path, to, flags);
    XSTAT: __xstat([version: c_int] path [to: Out]) -> c_int;
    XSTAT64: __xstat64([version: c_int] path [to: Out]) -> c_int;
    LXSTAT: __lxstat([version: c_int] path [to: Out]) -> c_int;
    LXSTAT64: __lxstat64([version: c_int] path [to: Out]) -> c_int;
    FXSTATAT: __fxstatat([version: c_int, folder: c_int] path [to: Out, flags: c_int]) -> c_int;
    FXSTATAT64: __fxstatat64([version: c_int, folder: c_int] path [to: Out, flags: c_int]) -> c_int;
    STATX: statx([folder: c_int] path [flags: c_int, mask: c_uint, to: Out]) -> c_int;
    ACCESS: access([] path [mode: c_int]) -> c_int;
    FACCESSAT: faccessat([folder: c_int] path [mode: c_int, flags: c_int]) -> c_int;
    EACCESS: eaccess([] path [mode: c_int]) -> c_int;
    EUIDACCESS: euidaccess([] path [mode: c_int]) -> c_int;
    OPEN: open([] path [flags: c_int, mode: c_uint]) -> c_int, opens flags;
    OPEN64: open64([] path [flags: c_int, mode: c_uint]) -> c_int, opens flags;
    OPENAT: openat([folder: c_int] path [flags: c_int, mode: c_uint]) -> c_int, opens flags;
    OPENAT64: openat64([folder: c_int] path [flags: c_int, mode: c_uint]) -> c_int, opens flags;
    OPEN_2: __open_2([] path [flags: c_int]) -> c_int, opens flags;
    OPEN64_2: __open64_2([] path [flags: c_int]) -> c_int, opens flags;
    OPENAT_2: __openat_2([folder: c_int] path [flags: c_int]) -> c_int, opens flags;
    OPENAT64_2: __openat64_2([folder: c_int] path [flags: c_int]) -> c_int, opens flags;
    FOPEN: fopen([] path [mode: Text]) -> Out;
    FOPEN64: fopen64([] path [mode: Text]) -> Out;
    OPENDIR: opendir([] path []) -> Out;
    SCANDIR: scandir([] path [list: Out, select: Out, compare: Out]) -> c_int;
    SCANDIR64: scandir64([] path [list: Out, select: Out, compare: Out]) -> c_int;
    READLINK: readlink([] path [to: *mut c_char, size: size_t]) -> ssize_t;
    READLINK_CHK: __readlink_chk([] path [to: *mut c_char, size: size_t, room: size_t]) -> ssize_t;
    READLINKAT: readlinkat([folder: c_int] path [to: *mut c_char, size: size_t]) -> ssize_t;
    READLINKAT_CHK: __readlinkat_chk([folder: c_int] path [to: *mut c_char, size: size_t, room: size_t]) -> ssize_t;
}

static REALPATH: Next<unsafe extern "C" fn(Text, *mut c_char) -> *mut c_char> = Next::new(c"realpath");

/// Looks up the next definitions.
pub(super) fn look_up() {
    look_up_all();
    REALPATH.look_up();
}

/// As realpath(3).
///
/// # Safety
/// As realpath(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: Text, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's own call. `own` is from malloc, as the caller's result must be.
    unsafe {
        let Some(next) = REALPATH.found_or_look_up() else { return Failed::failed() };
        let Some(shown) = shown(path) else { return next(path, resolved) };
        let own = instead(shown, |shown| next(shown, std::ptr::null_mut()));
        if own.is_null() {
            return own;
        }
        keeping_errno(|| {
            let found = CStr::from_ptr(own);
            let known = caught(|| files::known_as(found.to_bytes())).flatten();
            let known = known.and_then(|path| CString::new(path.as_os_str().as_bytes()).ok());
            let name = known.as_deref().unwrap_or(found);
            let result = if resolved.is_null() {
                libc::strdup(name.as_ptr())
            } else if name.count_bytes() < libc::PATH_MAX as usize {
                libc::strcpy(resolved, name.as_ptr())
            } else {
                std::ptr::null_mut()
            };
            libc::free(own.cast());
            result
        })
    }
}

/// As realpath(3), with a check of the caller's compiler that `resolved` has room for any path.
///
/// # Safety
/// As realpath(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(path: Text, resolved: *mut c_char, room: size_t) -> *mut c_char {
    if room < libc::PATH_MAX as size_t {
        std::process::abort(); // As the C library does.
    }
    // SAFETY: the caller's own call.
    unsafe { realpath(path, resolved) }
}

/// As canonicalize_file_name(3).
///
/// # Safety
/// As canonicalize_file_name(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: Text) -> *mut c_char {
    // SAFETY: the caller's own call.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// The path of the file that Weir shows in place of this one, if there is one.
///
/// # Safety
/// `path` is NULL or a string.
#[inline]
unsafe fn shown(path: Text) -> Option<CString> {
    // SAFETY: a string has a NUL; the second byte is read only if the first is not the NUL.
    unsafe {
        if path.is_null() || *path == 0 || !files::may_be_shown([*path as u8, *path.add(1) as u8]) {
            return None;
        }
        of_device(path)
    }
}

/// # Safety
/// `path` is a string.
unsafe fn of_device(path: Text) -> Option<CString> {
    // Before anything that allocates: a signal handler may open other files of these folders.
    // SAFETY: guaranteed by the caller.
    let named = unsafe {
        !libc::strstr(path, c"infiniband".as_ptr()).is_null() || !libc::strstr(path, c"rdma_cm".as_ptr()).is_null()
    };
    if !named {
        return None;
    }
    // The functions of this file are no cancellation points for these paths.
    let _uncancelled = Uncancelled::new();
    // SAFETY: guaranteed by the caller.
    let path = unsafe { CStr::from_ptr(path) };
    keeping_errno(|| with_signals_blocked(|| caught(|| files::shown(path.to_bytes())).flatten()))
}

/// Makes a call with another path. The path is freed afterwards, so the call is no cancellation point.
#[cold]
fn instead<T>(shown: CString, call: impl FnOnce(Text) -> T) -> T {
    let _uncancelled = Uncancelled::new();
    let result = call(shown.as_ptr());
    keeping_errno(|| drop(shown));
    result
}

/// As stat(2) and lstat(2), on a C library that has no functions of these names: its header calls `__xstat`.
///
/// # Safety
/// As stat(2).
unsafe fn examine(path: Text, to: Out, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { examine_at(libc::AT_FDCWD, path, to, flags) }
}

/// # Safety
/// As fstatat(2).
unsafe fn examine_at(folder: c_int, path: Text, to: Out, flags: c_int) -> c_int {
    // SAFETY: guaranteed by the caller; the kernel's structure is that of the C library on 64-bit machines.
    unsafe { libc::syscall(libc::SYS_newfstatat, folder, path, to, flags) as c_int }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_program_finds_the_files_of_its_devices() {
        let devices = weir_device::devices().unwrap();
        let device = devices.first().expect("a device");
        let folder = std::path::Path::new("/sys/class/infiniband").join(&device.name);
        let names: Vec<String> = std::fs::read_dir("/sys/class/infiniband")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.contains(&device.name), "{names:?}");
        assert_eq!(std::fs::read_to_string(folder.join("ports/1/link_layer")).unwrap(), "Ethernet\n");
        assert_eq!(std::fs::canonicalize(folder.join("ports/../ports/1")).unwrap(), folder.join("ports/1"));
        assert_eq!(std::fs::canonicalize(folder.join("../..")).unwrap(), std::path::Path::new("/sys/devices/virtual"));
        assert!(std::fs::read_to_string(folder.join("ports/1/counters/port_xmit_data")).is_ok());
        let missing = std::fs::metadata(folder.join("no")).unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
        use std::os::unix::fs::FileTypeExt;
        let number = crate::device::number_of(device);
        let verbs = std::fs::metadata(format!("/dev/infiniband/uverbs{number}")).unwrap();
        assert!(verbs.file_type().is_char_device());
        // Other paths are the kernel's.
        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
