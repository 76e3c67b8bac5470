//! The rdma_cm files of this process. A forked child has none of its parent's: its commands fail with EACCES, as the
//! kernel refuses those of a process that has not opened the file.

use crate::agent;
use crate::descriptor::{self, Readable};
use crate::kick::{Kick, kick};
use crate::live::{self, LiveHost, Token};
use crate::manager::{Done, Manager, Program};
use crate::process::{File, Live, Process};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;
use weir_device::{Errno, MadSocket, PerProcess, Uncancelled, descriptors, epoll};

/// The stack of the agent.
const STACK: usize = 512 << 10;
/// How long the end of a process waits until peers are told, if no MAD leaves meanwhile. A thread that a signal handler
/// interrupted may hold the lock, or the engine.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// How long all calls together wait while MADs leave: those of ten thousand connections take part of a second.
const LONGEST_END: Duration = Duration::from_secs(5);
/// Time between two checks.
const LOOK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };

static PROCESS: PerProcess<Process> = PerProcess::new();
/// The process that has opened a file. A child of vfork shares this memory but has another pid.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// This many bytes.
    Done(usize),
    /// There is no event: the caller waits until the descriptor is readable, and writes again.
    Wait,
}

/// Opens an rdma_cm file. `flags`: those of open(2).
pub fn open(flags: i32) -> Result<RawFd, Errno> {
    let process = PROCESS.get();
    let mut guard = process.lock();
    if guard.is_none() {
        *guard = Some(start(process)?);
    }
    let live = guard.as_mut().ok_or(Errno(libc::EIO))?;
    let (descriptor, inode, own) = descriptor::open(flags)?;
    let raw = own.as_raw_fd();
    let number = live.manager.open(Box::new(Readable::new(own, descriptor, inode)));
    live.files.insert(inode, File { number, own: raw });
    // Without events: a hang-up is always reported.
    if let Err(error) = epoll::add(&live.epoll, raw, 0, Token::File(number).number()) {
        live.close(inode);
        // SAFETY: just made, and unknown to the program.
        unsafe { libc::close(descriptor) };
        return Err(error.into());
    }
    Ok(descriptor)
}

/// Writes a command to a descriptor; `inode` is that of its file. Errors: those of the kernel; EACCES in a forked child.
///
/// # Safety
/// `bytes` has `len` readable bytes, and the command's addresses are valid, as for write(2).
pub unsafe fn write(descriptor: RawFd, inode: u64, bytes: *const u8, len: usize) -> Result<Written, Errno> {
    let process = PROCESS.existing().ok_or(Errno(libc::EACCES))?;
    if bytes.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: guaranteed by the caller.
    let command = unsafe { std::slice::from_raw_parts(bytes, len) };
    let mut guard = process.lock();
    let live = guard.as_mut().ok_or(Errno(libc::EACCES))?;
    let file = live.files.get(&inode).map(|file| file.number).ok_or(Errno(libc::EACCES))?;
    live.manager.used_by(file, descriptor);
    let done = live.manager.command(weir_device::now(), file, command, &Memory { files: &live.files });
    // A command that fails may have sent MADs too.
    live.wake_agent();
    drop(guard);
    match done? {
        Done::Nothing => {}
        Done::Wait => return Ok(Written::Wait),
        Done::Response(0, _) => return Err(Errno(libc::EFAULT)),
        // SAFETY: the program says that it has room there.
        Done::Response(to, response) => unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(to as usize)
                .copy_from_nonoverlapping(response.as_ptr(), response.len());
        },
    }
    Ok(Written::Done(len))
}

/// A descriptor of a file was closed: the file ends if it was the last one, before this call returns.
pub fn closed(inode: u64) {
    let Some(process) = PROCESS.existing() else { return };
    let mut guard = process.lock();
    if let Some(live) = guard.as_mut()
        && live.files.get(&inode).is_some_and(|file| descriptor::is_closed(file.own))
    {
        live.close(inode);
        live.wake_agent();
    }
}

/// The process ends: its peers are told, as if it had closed its files. A signal handler may call it. Allocates nothing.
pub fn end() {
    // SAFETY: a call without arguments that cannot fail.
    if OWNER.load(Ordering::Relaxed) != unsafe { libc::getpid() } {
        return;
    }
    let Some(process) = PROCESS.existing() else { return };
    let _uncancelled = Uncancelled::new();
    let called = weir_device::now();
    let Some(began) = process.begin_end(called) else { return };
    kick(process.kick.load(Ordering::Acquire));
    let (mut sent, mut last) = (live::sent(), called);
    while !process.is_told() {
        let (now, count) = (weir_device::now(), live::sent());
        if count != sent {
            (sent, last) = (count, now);
        }
        if now - last >= LONGEST_WAIT || now - began >= LONGEST_END {
            break;
        }
        // SAFETY: reads one timespec.
        unsafe { libc::nanosleep(&LOOK, std::ptr::null_mut()) };
    }
}

/// Starts the manager and the agent.
fn start(process: &'static Process) -> Result<Live, Errno> {
    let _opening = descriptors::DescriptorGuard::begin();
    let epoll = Arc::new(epoll::create()?);
    descriptors::register(&[epoll.as_raw_fd()]);
    let kick = Kick::new()?;
    epoll::add(&epoll, kick.descriptor(), libc::EPOLLIN, Token::Kick.number())?;
    let (prefix, own) = MadSocket::of_process(&epoll, Token::Process.number())?;
    let host = LiveHost::new(epoll.clone(), own);
    let manager = Manager::new(Box::new(host), prefix, MadSocket::COMMUNICATION_BITS);
    process.kick.store(kick.descriptor(), Ordering::Release);
    let polled = epoll.as_raw_fd();
    weir_device::spawn(c"weir-rdmacm", STACK, move || agent::run(process, polled))?;
    // SAFETY: a call without arguments that cannot fail.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    at_exit();
    Ok(Live { manager, files: HashMap::new(), epoll, kick, sleeps_until: None })
}

/// At `exit`, and where the library's destructor for threads runs: peers are told while the agent still runs.
fn at_exit() {
    extern "C" fn at_exit() {
        end();
    }
    static ONCE: weir_device::OnceInherited = weir_device::OnceInherited::new();
    // SAFETY: the function may be called at exit.
    ONCE.call_once(|| unsafe {
        weir_device::at_exit();
        libc::atexit(at_exit);
    });
}

/// The program, as commands see it.
struct Memory<'a> {
    files: &'a HashMap<u64, File>,
}

impl Program for Memory<'_> {
    fn file_of(&self, descriptor: i32) -> Option<u64> {
        self.files.get(&descriptor::inode_of(descriptor)?).map(|file| file.number)
    }

    fn read(&self, address: u64, len: usize) -> Vec<u8> {
        if address == 0 {
            return vec![0; len];
        }
        // SAFETY: the program says that the bytes are there.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address as usize), len).to_vec() }
    }
}
