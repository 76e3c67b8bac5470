//! The C library's functions that end a process or replace its program. They first send the packets that are owed to
//! peers.
//!
//! A signal handler and a child of `vfork` may call them; [`weir_device::process_exit`] handles both cases. `exit` is
//! not among them, because it runs functions registered with `atexit`. `execl`, `execlp` and `execle` have variable
//! argument lists, which `ends.c` collects.

use super::errno::{fail_enosys, keeping_errno};
use super::next::Next;
use libc::{c_char, c_int};
use weir_device::process_exit;

type Text = *const c_char;
type Texts = *const Text;

static EXIT: Next<unsafe extern "C" fn(c_int) -> !> = Next::new(c"_exit");
static QUICK_EXIT: Next<unsafe extern "C" fn(c_int) -> !> = Next::new(c"quick_exit");
static EXECVE: Next<unsafe extern "C" fn(Text, Texts, Texts) -> c_int> = Next::new(c"execve");
static EXECV: Next<unsafe extern "C" fn(Text, Texts) -> c_int> = Next::new(c"execv");
static EXECVP: Next<unsafe extern "C" fn(Text, Texts) -> c_int> = Next::new(c"execvp");
static EXECVPE: Next<unsafe extern "C" fn(Text, Texts, Texts) -> c_int> = Next::new(c"execvpe");
static FEXECVE: Next<unsafe extern "C" fn(c_int, Texts, Texts) -> c_int> = Next::new(c"fexecve");
static EXECVEAT: Next<unsafe extern "C" fn(c_int, Text, Texts, Texts, c_int) -> c_int> = Next::new(c"execveat");

/// Looks up the next definition of each function.
pub(super) fn look_up() {
    EXIT.look_up();
    QUICK_EXIT.look_up();
    EXECVE.look_up();
    EXECV.look_up();
    EXECVP.look_up();
    EXECVPE.look_up();
    FEXECVE.look_up();
    EXECVEAT.look_up();
}

/// As _exit(2).
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    tell();
    end(status)
}

/// As _Exit(3).
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    tell();
    end(status)
}

/// As quick_exit(3).
///
/// # Safety
/// As quick_exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    tell();
    match QUICK_EXIT.found() {
        // SAFETY: the caller's own call.
        Some(next) => unsafe { next(status) },
        None => end(status),
    }
}

/// As execve(2).
///
/// # Safety
/// As execve(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: Text, arguments: Texts, environment: Texts) -> c_int {
    flush_keeping_errno();
    // SAFETY: the caller's own call.
    unsafe {
        match EXECVE.found() {
            Some(next) => next(path, arguments, environment),
            None => libc::syscall(libc::SYS_execve, path, arguments, environment) as c_int,
        }
    }
}

/// As execv(3).
///
/// # Safety
/// As execv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: Text, arguments: Texts) -> c_int {
    flush_keeping_errno();
    // SAFETY: the caller's own call.
    EXECV.found().map_or_else(fail_enosys, |next| unsafe { next(path, arguments) })
}

/// As execvp(3).
///
/// # Safety
/// As execvp(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: Text, arguments: Texts) -> c_int {
    flush_keeping_errno();
    // SAFETY: the caller's own call.
    EXECVP.found().map_or_else(fail_enosys, |next| unsafe { next(file, arguments) })
}

/// As execvpe(3).
///
/// # Safety
/// As execvpe(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: Text, arguments: Texts, environment: Texts) -> c_int {
    flush_keeping_errno();
    // SAFETY: the caller's own call.
    EXECVPE.found().map_or_else(fail_enosys, |next| unsafe { next(file, arguments, environment) })
}

/// As fexecve(3).
///
/// # Safety
/// As fexecve(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(file: c_int, arguments: Texts, environment: Texts) -> c_int {
    flush_keeping_errno();
    // SAFETY: the caller's own call.
    FEXECVE.found().map_or_else(fail_enosys, |next| unsafe { next(file, arguments, environment) })
}

/// As execveat(2), which older C libraries lack.
///
/// # Safety
/// As execveat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: Text,
    arguments: Texts,
    environment: Texts,
    flags: c_int,
) -> c_int {
    flush_keeping_errno();
    // SAFETY: the caller's own call.
    unsafe {
        match EXECVEAT.found() {
            Some(next) => next(folder, path, arguments, environment, flags),
            None => libc::syscall(libc::SYS_execveat, folder, path, arguments, environment, flags) as c_int,
        }
    }
}

/// Peers of connections are told, and owed ACKs leave.
fn tell() {
    weir_rdmacm::end();
    process_exit::flush();
}

/// The program may continue after a failed exec, and then reads the errno of exec.
fn flush_keeping_errno() {
    keeping_errno(process_exit::flush);
}

fn end(status: c_int) -> ! {
    if let Some(next) = EXIT.found() {
        // SAFETY: the function of that name; it accepts any number.
        unsafe { next(status) }
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}
