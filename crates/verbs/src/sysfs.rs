//! The path of sysfs, and reading its files.

use crate::ffi::{EINVAL, guard, number, text};
use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;
use weir_device::{Errno, PerProcess};

/// `/sys`, or `SYSFS_PATH` in a process without special rights.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: PerProcess<OnceLock<CString>> = PerProcess::new();
    guard(c"/sys".as_ptr(), || {
        PATH.get()
            .get_or_init(|| {
                // SAFETY: four system calls without memory arguments.
                let own_rights = unsafe { libc::getuid() == libc::geteuid() && libc::getgid() == libc::getegid() };
                std::env::var("SYSFS_PATH")
                    .ok()
                    .filter(|path| own_rights && !path.is_empty())
                    .and_then(|path| CString::new(path.trim_end_matches('/')).ok())
                    .unwrap_or_else(|| c"/sys".into())
            })
            .as_ptr()
    })
}

/// Reads `dir/file` without its last newline, NUL-terminated if there is room. Returns the number of bytes, or -1.
///
/// # Safety
/// `dir` and `file` are strings, `buf` has `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        // SAFETY: guaranteed by the caller.
        let (dir, file) = unsafe { (text(dir), text(file)) };
        let (dir, file) = (dir.ok_or(EINVAL)?, file.ok_or(EINVAL)?);
        let mut content = vec![0; size];
        let mut len = File::open(format!("{dir}/{file}"))
            .and_then(|mut file| file.read(&mut content))
            .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        if len > 0 && content[len - 1] == b'\n' {
            len -= 1;
            content[len] = 0;
        }
        let written = size.min(len + 1);
        // SAFETY: `written` is at most `size`.
        unsafe { buf.cast::<u8>().copy_from_nonoverlapping(content.as_ptr(), written) };
        Ok(len as c_int)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_without_its_last_newline() {
        let mut buf = [0x55 as c_char; 8];
        // SAFETY: C strings, and a buffer of at least `size` bytes.
        let read = |buf: &mut [c_char], size| unsafe {
            ibv_read_sysfs_file(c"/sys/class/net/lo".as_ptr(), c"address".as_ptr(), buf.as_mut_ptr(), size)
        };
        assert_eq!(read(&mut buf, 8), 8);
        assert_eq!(&buf.map(|c| c as u8), b"00:00:00");
        let mut long = [0x55 as c_char; 32];
        assert_eq!(read(&mut long, 32), 17);
        assert_eq!(long[17], 0);
        // SAFETY: as above.
        let missing = unsafe { ibv_read_sysfs_file(c"/sys".as_ptr(), c"no".as_ptr(), buf.as_mut_ptr(), 8) };
        assert_eq!(missing, -1);
    }
}
