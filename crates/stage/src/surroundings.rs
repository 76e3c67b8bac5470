//! Poor surroundings for programs: what containers, sandboxes and administrators take away.
//!
//! Each function makes a command start in such surroundings. They act between fork and exec, after what the stage does.

use crate::seccomp::{self, Rule};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use std::ffi::CStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program sees no `/proc`. Needs root.
pub fn without_proc(command: &mut Command) {
    // SAFETY: only system calls between fork and exec: no allocation, no lock.
    unsafe {
        command.pre_exec(|| {
            own_mounts()?;
            Ok(umount2(c"/proc", MntFlags::MNT_DETACH)?)
        });
    }
}

/// All file systems are read-only, `/tmp` and `/dev/shm` too. Needs root, and Linux 5.12.
pub fn read_only(command: &mut Command) {
    // SAFETY: as above.
    unsafe {
        command.pre_exec(|| {
            own_mounts()?;
            let attributes =
                libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
            let root: &CStr = c"/";
            let (all, size) = (libc::AT_RECURSIVE, size_of::<libc::mount_attr>());
            match libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                root.as_ptr(),
                all,
                &raw const attributes,
                size,
            ) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}

/// The program may have descriptors up to this number only (RLIMIT_NOFILE).
pub fn few_descriptors(command: &mut Command, count: u64) {
    // SAFETY: as above.
    unsafe {
        command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_NOFILE, count, count)?));
    }
}

/// The program is an ordinary user without capabilities in a user namespace of its own, in which it sees its files as its
/// own. Needs the right to make user namespaces.
pub fn without_capabilities(command: &mut Command) {
    let map = format!("1000 {} 1\n", nix::unistd::geteuid());
    // SAFETY: as above; the map is allocated before.
    unsafe {
        command.pre_exec(move || {
            unshare(CloneFlags::CLONE_NEWUSER)?;
            let file = libc::open(c"/proc/self/uid_map".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 || libc::write(file, map.as_ptr().cast(), map.len()) != map.len() as isize {
                return Err(io::Error::last_os_error());
            }
            libc::close(file);
            // The change of capabilities has cleared it.
            Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)
        });
    }
}

/// The system calls that containers refuse by default: Docker's filter, as its documentation describes it, for a container
/// without more capabilities.
pub fn in_container(command: &mut Command) {
    let refused = REFUSED.map(|call| Rule::every(call, libc::EPERM));
    let filter = seccomp::filter(u32::MAX, &refused);
    // SAFETY: as above; the filter is allocated before.
    unsafe {
        command.pre_exec(move || seccomp::set(&filter));
    }
}

const REFUSED: [libc::c_long; 48] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_get_mempolicy,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_uselib,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// A mount namespace, of which changes stay in it.
fn own_mounts() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing: Option<&CStr> = None;
    Ok(mount(nothing, c"/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a shell prints in these surroundings.
    fn shell(script: &str, prepare: impl Fn(&mut Command)) -> String {
        let mut command = Command::new("sh");
        prepare(command.args(["-c", script]));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn descriptors_are_few_and_calls_are_refused() {
        assert_eq!(shell("ulimit -n", |command| few_descriptors(command, 20)), "20\n");
        assert_eq!(shell("unshare -r true 2>/dev/null || echo refused", in_container), "refused\n");
    }
}
