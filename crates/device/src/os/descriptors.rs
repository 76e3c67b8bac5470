//! The descriptors of Weir. A forked child closes them, so that slots and ports are free when this process ends. The
//! program cannot close them by the C library's functions, which ask [`is_spared`]. It can by system calls: then the
//! numbers may stand for files of the program, which lack the mark that each file of Weir has ([`is_marked`]).

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Descriptors of open adapters, a bit for each number. Of fixed size, because the child of a fork may not allocate,
/// and for all numbers that a process can have unless fs.nr_open is raised. Pages of it that hold no bit take no
/// memory.
static DESCRIPTORS: Numbers = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];
/// Descriptors that the program reads, and that a child keeps: those of events and open devices.
static LENT: Numbers = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];
type Numbers = [AtomicU64; MAX_DESCRIPTORS / 64];
/// The default of fs.nr_open.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// No descriptor with a number above this was ever registered.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// The process that has these descriptors: a child of vfork shares the memory, but has a table of its own.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The kernel does not keep marks, or a sandbox forbids them.
static UNMARKED: AtomicBool = AtomicBool::new(false);
/// How often this process has found that the program has closed descriptors of Weir.
static LOSSES: AtomicU32 = AtomicU32::new(0);

/// The signal that marks a file (F_SETSIG). It is never sent, because no file of Weir has O_ASYNC.
const MARK: i32 = 62;
const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;

/// While a thread holds it, a fork waits up to 50 ms: some open descriptors are not registered yet, or some
/// registered descriptors are already closed. A child would keep the former, and close files that reuse the numbers
/// of the latter.
pub struct DescriptorGuard(());

/// How long a fork waits for a [`DescriptorGuard`] to end, and a [`DescriptorGuard`] for a fork. Bounded, because the
/// forking thread may hold what the other thread waits for.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Threads that hold a [`DescriptorGuard`].
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// Threads inside fork().
static FORKING: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Number of nested [`DescriptorGuard`]s of this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl DescriptorGuard {
    /// Begins a section that opens or closes descriptors.
    pub fn begin() -> DescriptorGuard {
        if DEPTH.replace(DEPTH.get() + 1) == 0 {
            let end = Instant::now() + LONGEST_WAIT;
            loop {
                CHANGING.fetch_add(1, Ordering::SeqCst);
                if FORKING.load(Ordering::SeqCst) == 0 || Instant::now() > end {
                    break;
                }
                CHANGING.fetch_sub(1, Ordering::SeqCst);
                std::thread::yield_now();
            }
        }
        DescriptorGuard(())
    }
}

impl Drop for DescriptorGuard {
    fn drop(&mut self) {
        let depth = DEPTH.get().saturating_sub(1);
        DEPTH.set(depth);
        if depth == 0 {
            CHANGING.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A fork begins: waits until no thread of the program opens or closes descriptors, up to 50 ms.
pub fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    // A memory hook of the program may fork while this thread holds a [`DescriptorGuard`], which the fork must not wait
    // for.
    let own = u32::from(DEPTH.get() > 0);
    let end = Instant::now() + LONGEST_WAIT;
    while CHANGING.load(Ordering::SeqCst) > own && Instant::now() < end {
        std::thread::yield_now();
    }
}

/// A fork has ended in the parent.
pub fn after_fork() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// Registers descriptors that a child must close, so that slot and ports are free when this process ends. Allocates
/// nothing.
pub fn register(descriptors: &[RawFd]) {
    for descriptor in descriptors {
        if !enter(&DESCRIPTORS, *descriptor) {
            tracing::error!(
                "a forked child of this process keeps descriptor {descriptor} of Weir open, because only numbers below \
                 {MAX_DESCRIPTORS} are recorded: the child keeps the UDP ports of this process. Lower `ulimit -n`"
            );
        }
    }
}

/// Unregisters descriptors that this process closes. It must do so before: see [`is_spared`].
pub fn forget(descriptors: &[RawFd]) {
    for (word, bit) in descriptors.iter().filter_map(|descriptor| bit_of(&DESCRIPTORS, *descriptor)) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// The program gets a descriptor, and a child keeps it.
pub fn lend(descriptor: RawFd) {
    enter(&LENT, descriptor);
}

/// Ends [`lend`], before the descriptor is closed. Returns whether it must be closed: not if its number stands for a file
/// of the program.
pub fn take_back(descriptor: RawFd) -> bool {
    if let Some((word, bit)) = bit_of(&LENT, descriptor) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
    is_marked(descriptor)
}

/// Returns whether the program must not close a number, because it stands for a file of Weir.
#[inline]
pub fn is_spared(descriptor: RawFd) -> bool {
    let in_list =
        |numbers| bit_of(numbers, descriptor).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0);
    (in_list(&DESCRIPTORS) || in_list(&LENT)) && is_own_table() && is_marked(descriptor)
}

/// The lowest number from `first` on that [`is_spared`].
pub fn next_spared(first: u32) -> Option<u32> {
    let highest = HIGHEST.load(Ordering::Acquire);
    let mut number = first as usize;
    while number <= highest {
        let word = number / 64;
        let bits = (DESCRIPTORS[word].load(Ordering::Relaxed) | LENT[word].load(Ordering::Relaxed)) >> (number % 64);
        if bits == 0 {
            number = (word + 1) * 64;
            continue;
        }
        number += bits.trailing_zeros() as usize;
        if is_spared(number as RawFd) {
            return Some(number as u32);
        }
        number += 1;
    }
    None
}

/// Returns whether a descriptor of Weir still stands for the file that it stood for when it was registered. One short
/// system call; errno is not kept. A program may change the mark of a file that it was lent, but does not remove it.
pub fn is_marked(descriptor: RawFd) -> bool {
    is_mark(signal_of(descriptor), UNMARKED.load(Ordering::Relaxed))
}

/// Marks a file of Weir that is registered later, or never: for [`is_marked`].
pub fn mark(descriptor: RawFd) {
    // SAFETY: sets a number.
    unsafe { libc::syscall(libc::SYS_fcntl, descriptor, F_SETSIG, MARK) };
    // A closed descriptor says nothing about marks.
    if !matches!(signal_of(descriptor), Ok(1..) | Err(libc::EBADF)) {
        UNMARKED.store(true, Ordering::Relaxed);
    }
}

/// The signal of a file, 0 if it has none; or the errno of the kernel or a sandbox.
fn signal_of(descriptor: RawFd) -> Result<i64, i32> {
    // SAFETY: asks for a number, and reads errno of this thread.
    unsafe {
        let signal = libc::syscall(libc::SYS_fcntl, descriptor, F_GETSIG, 0);
        if signal < 0 { Err(*libc::__errno_location()) } else { Ok(signal) }
    }
}

/// Returns whether a file with this signal counts as one of Weir. Where F_GETSIG is refused (by seccomp, say), an open
/// descriptor must count: otherwise each device would fail at once.
fn is_mark(signal: Result<i64, i32>, unmarked: bool) -> bool {
    match signal {
        Ok(signal) => signal > 0 || unmarked,
        Err(error) => error != libc::EBADF,
    }
}

/// The program has closed descriptors of Weir. Their numbers may stand for its own files, which stay open from now on
/// when Weir's objects are dropped and when the process forks.
pub fn lose() {
    LOSSES.fetch_add(1, Ordering::SeqCst);
    for (number, word, bit) in registered() {
        if !is_marked(number) {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }
}

/// How often [`lose`] was called.
pub fn losses() -> u32 {
    LOSSES.load(Ordering::SeqCst)
}

fn registered() -> impl Iterator<Item = (RawFd, &'static AtomicU64, u64)> {
    let words = DESCRIPTORS.iter().enumerate().take(HIGHEST.load(Ordering::Acquire) / 64 + 1);
    words.flat_map(|(at, word)| {
        let mut bits = word.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let bit = bits & bits.wrapping_neg();
            bits &= !bit;
            (bit != 0).then(|| ((at * 64) as RawFd + bit.trailing_zeros() as RawFd, word, bit))
        })
    })
}

/// Returns false if the number is too large.
fn enter(numbers: &'static Numbers, descriptor: RawFd) -> bool {
    let Some((word, bit)) = bit_of(numbers, descriptor) else { return false };
    mark(descriptor);
    OWNER.store(process_id(), Ordering::Relaxed);
    HIGHEST.fetch_max(descriptor as usize, Ordering::AcqRel);
    word.fetch_or(bit, Ordering::AcqRel);
    true
}

fn is_own_table() -> bool {
    OWNER.load(Ordering::Relaxed) == process_id()
}

/// A raw system call: the C library may remember the number.
fn process_id() -> i32 {
    // SAFETY: returns a number.
    unsafe { libc::syscall(libc::SYS_getpid) as i32 }
}

/// Where a descriptor is registered; `None` for a number that is too large.
fn bit_of(numbers: &'static Numbers, descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((numbers.get(number / 64)?, 1 << (number % 64)))
}

/// Closes all of them in the child of a fork. Uses atomics, fcntl and close only.
pub fn close_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    CHANGING.store(u32::from(DEPTH.get() > 0), Ordering::SeqCst);
    for (descriptor, word, bit) in registered() {
        word.fetch_and(!bit, Ordering::AcqRel);
        // The parent may have closed it without Weir's knowledge: the number then stands for a file of the program.
        if is_marked(descriptor) {
            // SAFETY: a descriptor of the library; every later use of it in this process is refused.
            unsafe { libc::close(descriptor) };
        }
    }
    LENT.iter().take(HIGHEST.load(Ordering::Acquire) / 64 + 1).for_each(|word| word.store(0, Ordering::Release));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::fork::install_handlers;

    fn is_open(descriptor: RawFd) -> bool {
        // SAFETY: asks for flags.
        unsafe { libc::fcntl(descriptor, libc::F_GETFD) >= 0 }
    }

    /// A descriptor with a number of at least `least`.
    fn null(least: RawFd) -> RawFd {
        // SAFETY: opens a file, and gives it another number.
        unsafe {
            let file = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let moved = libc::fcntl(file, libc::F_DUPFD_CLOEXEC, least);
            libc::close(file);
            assert!(moved >= least, "{}", std::io::Error::last_os_error());
            moved
        }
    }

    #[test]
    fn a_child_closes_every_registered_descriptor() {
        const COUNT: usize = 1500;
        install_handlers();
        // SAFETY: the limits are on the stack.
        let most = unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
            limit.rlim_cur = limit.rlim_max;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
            limit.rlim_max.min(MAX_DESCRIPTORS as u64) as RawFd
        };
        let mut registered: Vec<RawFd> = (0..COUNT).map(|_| null(100)).collect();
        registered.push(null(most - 1));
        register(&registered);
        let [kept, forgotten] = [null(100), registered.swap_remove(700)];
        forget(&[forgotten]);
        // SAFETY: the child only asks for flags, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let left = registered.iter().filter(|descriptor| is_open(**descriptor)).count();
            let right = left == 0 && is_open(kept) && is_open(forgotten);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and an integer on the stack.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        assert!(registered.iter().all(|descriptor| is_open(*descriptor)), "they are open in the parent");
        forget(&registered);
        registered.extend([kept, forgotten]);
        // SAFETY: descriptors of this test.
        registered.iter().for_each(|descriptor| unsafe { assert_eq!(libc::close(*descriptor), 0) });
        assert!(bit_of(&DESCRIPTORS, -1).is_none() && bit_of(&DESCRIPTORS, MAX_DESCRIPTORS as RawFd).is_none());
    }

    #[test]
    fn only_a_closed_descriptor_or_a_file_without_the_mark_is_lost() {
        for refused in [libc::EINVAL, libc::EPERM, libc::ENOSYS] {
            assert!(is_mark(Err(refused), true) && is_mark(Err(refused), false), "errno {refused}");
        }
        assert!(!is_mark(Err(libc::EBADF), true) && !is_mark(Err(libc::EBADF), false));
        assert!(is_mark(Ok(i64::from(MARK)), false) && !is_mark(Ok(0), false) && is_mark(Ok(0), true));
        assert_eq!(signal_of(-1), Err(libc::EBADF));
        let file = null(200);
        assert_eq!(signal_of(file), Ok(0));
        mark(file);
        assert_eq!(signal_of(file), Ok(i64::from(MARK)));
        // SAFETY: a descriptor of this test.
        unsafe { assert_eq!(libc::close(file), 0) };
    }

    #[test]
    fn a_number_that_stands_for_another_file_is_neither_spared_nor_closed_in_a_child() {
        install_handlers();
        let [own, lent] = [null(200), null(200)];
        register(&[own]);
        lend(lent);
        assert!(is_spared(own) && is_spared(lent) && !is_spared(0));
        assert_eq!(next_spared(own as u32), Some(own as u32));
        let other = null(200);
        // SAFETY: descriptors of this test, by system calls that no hook sees.
        unsafe {
            assert!(libc::syscall(libc::SYS_dup3, other, own, 0) >= 0);
            assert!(libc::syscall(libc::SYS_dup3, other, lent, 0) >= 0);
        }
        assert!(!is_spared(own) && !is_spared(lent) && !take_back(lent));
        // SAFETY: the child only asks for flags, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!is_open(own))) };
        }
        let mut status = 0;
        // SAFETY: a child of this process, and an integer on the stack.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the file of the program is open in the child");
        forget(&[own]);
        // SAFETY: descriptors of this test.
        [own, lent, other].iter().for_each(|descriptor| unsafe { assert_eq!(libc::close(*descriptor), 0) });
    }
}
