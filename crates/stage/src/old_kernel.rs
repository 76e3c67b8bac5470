//! Runs programs as on an old kernel: a seccomp filter refuses all features newer than Linux 4.18, with the errors of a
//! kernel that does not have them.

use crate::seccomp::{self, Rule};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes a program start as on an old kernel, with or without IPv6.
pub fn run_on_old_kernel(command: &mut Command, ipv6: bool) {
    // SAFETY: it makes two system calls between fork and exec; the filter is allocated before.
    unsafe {
        let filter = filter(ipv6);
        command.pre_exec(move || seccomp::set(&filter));
    }
}

/// Installs the filter for the calling thread and all threads and processes that it starts later. It cannot be removed.
pub fn install(ipv6: bool) -> io::Result<()> {
    seccomp::set(&filter(ipv6))
}

/// The last system call of Linux 4.18 on x86-64 (rseq).
const LAST_CALL: u32 = 334;
/// `<linux/userfaultfd.h>`: registers a range. Weir uses it only in write-protect mode (Linux 5.7), so all are refused.
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
/// `<linux/userfaultfd.h>`: the ioctl of `/dev/userfaultfd` (Linux 6.1).
const USERFAULTFD_IOC_NEW: u32 = 0xaa00;
const UFFD_USER_MODE_ONLY: u32 = 1;
/// `<linux/in6.h>`, Linux 4.20.
const IPV6_MULTICAST_ALL: u32 = 29;
/// COLD, PAGEOUT (5.4), POPULATE_READ, POPULATE_WRITE (5.14), DONTNEED_LOCKED (5.18), COLLAPSE (6.1).
const NEW_ADVICE: [u32; 6] = [20, 21, 22, 23, 24, 25];

fn filter(ipv6: bool) -> Vec<libc::sock_filter> {
    let mut rules = vec![
        Rule { call: libc::SYS_ioctl, wanted: vec![(1, UFFDIO_REGISTER)], errno: libc::EINVAL },
        Rule { call: libc::SYS_ioctl, wanted: vec![(1, USERFAULTFD_IOC_NEW)], errno: libc::ENOTTY },
        Rule {
            call: libc::SYS_userfaultfd,
            wanted: vec![(0, UFFD_USER_MODE_ONLY | (libc::O_CLOEXEC | libc::O_NONBLOCK) as u32)],
            errno: libc::EINVAL,
        },
        Rule {
            call: libc::SYS_setsockopt,
            wanted: vec![(1, libc::SOL_UDP as u32), (2, libc::UDP_GRO as u32)],
            errno: libc::ENOPROTOOPT,
        },
        Rule {
            call: libc::SYS_setsockopt,
            wanted: vec![(1, libc::IPPROTO_IPV6 as u32), (2, IPV6_MULTICAST_ALL)],
            errno: libc::ENOPROTOOPT,
        },
    ];
    rules.extend(NEW_ADVICE.map(|advice| Rule {
        call: libc::SYS_madvise,
        wanted: vec![(2, advice)],
        errno: libc::EINVAL,
    }));
    if !ipv6 {
        let wanted = vec![(0, libc::AF_INET6 as u32)];
        rules.push(Rule { call: libc::SYS_socket, wanted, errno: libc::EAFNOSUPPORT });
    }
    seccomp::filter(LAST_CALL, &rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: libc::c_long) -> Option<i32> {
        (result < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    #[test]
    fn new_features_are_refused_and_old_ones_work() {
        std::thread::spawn(|| {
            install(false).unwrap();
            let madvise = |advice: i32| {
                // SAFETY: the range has no bytes.
                errno(unsafe { libc::syscall(libc::SYS_madvise, 4096, 0, advice) })
            };
            assert_eq!(madvise(libc::MADV_POPULATE_READ), Some(libc::EINVAL));
            assert_eq!(madvise(libc::MADV_DONTNEED), None);
            // SAFETY: the filter refuses this call before the kernel uses its arguments.
            let closed = errno(unsafe { libc::syscall(libc::SYS_close_range, 1 << 20, 1 << 20, 0) });
            assert_eq!(closed, Some(libc::ENOSYS));
            let v6 = std::net::UdpSocket::bind("[::1]:0").unwrap_err();
            assert_eq!(v6.raw_os_error(), Some(libc::EAFNOSUPPORT));
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        })
        .join()
        .unwrap();
        let mut command = Command::new("sh");
        run_on_old_kernel(&mut command, true);
        let status = command.args(["-c", "grep -q 'Seccomp:.2' /proc/self/status"]).status().unwrap();
        assert!(status.success());
    }
}
