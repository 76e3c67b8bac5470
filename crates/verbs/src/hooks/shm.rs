//! The length of an attached System V shared memory segment, which the arguments of shmdt(2) do not include.

use libc::c_int;

/// Bytes of the segment attached at `addr`; 0 if there is none. Allocates nothing.
pub fn segment(addr: u64) -> u64 {
    // SAFETY: a NUL-terminated path.
    let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if maps < 0 {
        return 0;
    }
    let mut search = Search { addr, end: addr };
    let mut line = [0u8; 512];
    let mut used = 0;
    let mut buffer = [0u8; 4096];
    loop {
        let read = read(maps, &mut buffer);
        if read == 0 {
            break;
        }
        for byte in &buffer[..read] {
            if *byte == b'\n' {
                search.read_line(&line[..used]);
                used = 0;
            } else if used < line.len() {
                line[used] = *byte;
                used += 1;
            }
        }
    }
    // SAFETY: the descriptor opened above.
    unsafe { libc::close(maps) };
    search.end - addr
}

fn read(fd: c_int, into: &mut [u8]) -> usize {
    // SAFETY: writes at most `into.len()` bytes.
    let read = unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(read).unwrap_or(0)
}

/// Finds the lines of /proc/self/maps that belong to the segment. There are several if mprotect has split it.
struct Search {
    addr: u64,
    end: u64,
}

impl Search {
    fn read_line(&mut self, line: &[u8]) {
        let Some((start, rest)) = hexadecimal(line) else { return };
        let Some((end, rest)) = rest.strip_prefix(b"-").and_then(hexadecimal) else { return };
        let mut words = rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let offset = words.nth(1).and_then(hexadecimal).map_or(u64::MAX, |(offset, _)| offset);
        let is_segment = words.nth(2).is_some_and(|name| name.starts_with(b"/SYSV"));
        if is_segment && start == self.end && offset == start - self.addr {
            self.end = end;
        }
    }
}

fn hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let number = u64::from_str_radix(str::from_utf8(&text[..digits]).ok()?, 16).ok()?;
    Some((number, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_segment_is_measured_as_a_whole() {
        let mut search = Search { addr: 0x7f0000001000, end: 0x7f0000001000 };
        for line in [
            "7f0000000000-7f0000001000 rw-s 00000000 00:01 5                          /SYSV00000000 (deleted)",
            "7f0000001000-7f0000003000 rw-s 00000000 00:01 6                          /SYSV00000000 (deleted)",
            "7f0000003000-7f0000004000 r--s 00002000 00:01 6                          /SYSV00000000 (deleted)",
            "7f0000004000-7f0000005000 rw-s 00000000 00:01 7                          /SYSV00000000 (deleted)",
            "7f0000005000-7f0000006000 rw-p 00004000 00:01 7                          /usr/lib/x",
        ] {
            search.read_line(line.as_bytes());
        }
        assert_eq!(search.end, 0x7f0000004000);
    }

    #[test]
    fn an_attached_segment_is_measured() {
        // SAFETY: a new segment, which the kernel removes when it is detached.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, 20_000, 0o600);
            let at = libc::shmat(id, std::ptr::null(), 0);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            assert_eq!(segment(at as u64), 20_480);
            assert_eq!(libc::shmdt(at), 0);
            assert_eq!(segment(at as u64), 0);
        }
    }
}
