//! The descriptors that a forked child closes, so that slots and ports are free when this process ends.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Descriptors of open adapters, a bit for each number. Of fixed size, because the child of a fork may not allocate,
/// and for all numbers that a process can have unless fs.nr_open is raised. Pages of it that hold no bit take no
/// memory.
static DESCRIPTORS: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];
/// The default of fs.nr_open.
const MAX_DESCRIPTORS: usize = 1 << 20;
/// No descriptor with a number above this was ever registered.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

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
        let Some((word, bit)) = bit_of(*descriptor) else {
            tracing::error!(
                "a forked child of this process keeps descriptor {descriptor} of Weir open, because only numbers below \
                 {MAX_DESCRIPTORS} are recorded: the child keeps the UDP ports of this process. Lower `ulimit -n`"
            );
            continue;
        };
        HIGHEST.fetch_max(*descriptor as usize, Ordering::AcqRel);
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

/// Unregisters descriptors that this process has closed.
pub fn forget(descriptors: &[RawFd]) {
    for (word, bit) in descriptors.iter().filter_map(|descriptor| bit_of(*descriptor)) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// Where a descriptor is registered; `None` for a number that is too large.
fn bit_of(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(descriptor).ok()?;
    Some((DESCRIPTORS.get(number / 64)?, 1 << (number % 64)))
}

/// Closes all of them in the child of a fork. Uses atomics and close only.
pub fn close_in_child() {
    FORKING.store(0, Ordering::SeqCst);
    CHANGING.store(u32::from(DEPTH.get() > 0), Ordering::SeqCst);
    for (at, word) in DESCRIPTORS.iter().enumerate().take(HIGHEST.load(Ordering::Acquire) / 64 + 1) {
        let mut bits = word.swap(0, Ordering::AcqRel);
        while bits != 0 {
            let descriptor = at * 64 + bits.trailing_zeros() as usize;
            // SAFETY: a descriptor of the library; every later use of it in this process is refused.
            unsafe { libc::close(descriptor as RawFd) };
            bits &= bits - 1;
        }
    }
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
        assert!(bit_of(-1).is_none() && bit_of(MAX_DESCRIPTORS as RawFd).is_none());
    }
}
