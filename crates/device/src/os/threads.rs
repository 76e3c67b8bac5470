//! Threads of the library.

use crate::Errno;
use crate::os::mask;
use crate::os::panics::{catch_panic, watched};
use std::cell::Cell;
use std::ffi::CStr;

/// The calling thread's next timed waits may end up to `wait` nanoseconds late, together with another timer of the
/// core. 0: as the kernel does by default, 50 µs or what the process has set.
pub fn let_timers_wait(wait: u64) {
    thread_local! {
        static SET: Cell<u64> = const { Cell::new(0) };
    }
    // A system call for each eighth is enough.
    let slack = if wait == 0 { 0 } else { wait - wait % (1 << wait.ilog2().saturating_sub(3)) };
    if SET.replace(slack) != slack {
        // It cannot fail, and changes this thread only.
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack, 0, 0, 0) };
    }
}

/// The calling thread gets its core in slices of 100 µs, the shortest that there are, instead of milliseconds, or again
/// as the kernel does by default. When a thread with short slices wakes, the kernel (since Linux 6.12) takes the core
/// from a thread with longer ones that computes, at once; otherwise it mostly does so at its next tick. Older kernels
/// and other policies, such as SCHED_FIFO, go on as they do.
pub fn take_short_slices(short: bool) {
    const SHORTEST: u64 = 100_000;
    thread_local! {
        static SHORT: Cell<bool> = const { Cell::new(false) };
    }
    if SHORT.replace(short) == short {
        return;
    }
    // Where a sandbox forbids these calls, nothing changes.
    if let Some(mut attributes) = scheduling().filter(|own| own.sched_policy == libc::SCHED_OTHER as u32) {
        attributes.sched_runtime = if short { SHORTEST } else { 0 };
        // SAFETY: a structure on the stack, with its size. 0 stands for the calling thread.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// How the calling thread is scheduled.
fn scheduling() -> Option<libc::sched_attr> {
    // SAFETY: plain integers, for which zero is valid; then a structure on the stack, with its size. 0 stands for the
    // calling thread.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let size = size_of_val(&attributes);
        (libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0).then_some(attributes)
    }
}

/// Starts a thread of the library with `stack` bytes of stack at least, in which no signal handler of the program runs.
/// A panic of `body` makes all adapters of the process fail. Error: EAGAIN.
pub fn spawn(name: &'static CStr, stack: usize, body: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    spawn_unwatched(name, stack, move || watched(body))
}

/// As [`spawn`], for a `body` that handles its panics itself: one that escapes ends the thread, and nothing else.
///
/// It does not use `std::thread`, which registers destructors of thread-local variables in the calling and in the new
/// thread: glibc ends the process if there is no memory for such an entry.
pub fn spawn_unwatched<F: FnOnce() + Send + 'static>(name: &'static CStr, stack: usize, body: F) -> Result<(), Errno> {
    extern "C" fn run<F: FnOnce()>(start: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: `Box::into_raw` below made it, and the function that created this thread has left it to this thread.
        let (name, body) = *unsafe { Box::from_raw(start.cast::<(&'static CStr, F)>()) };
        // SAFETY: the calling thread, and a terminated text.
        unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
        mask::assume_unblocked();
        catch_panic(body);
        std::ptr::null_mut()
    }
    let start = Box::into_raw(Box::new((name, body)));
    if !with_signals_blocked(|| create(stack, run::<F>, start.cast())) {
        // SAFETY: `Box::into_raw` made it, and no thread has it.
        drop(unsafe { Box::from_raw(start) });
        return Err(Errno(libc::EAGAIN));
    }
    Ok(())
}

/// Creates a detached thread; false if the system refuses.
fn create(stack: usize, run: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void, start: *mut libc::c_void) -> bool {
    // SAFETY: attributes on the stack, initialised before they are used and destroyed after; `run` takes `start`.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(&mut attributes, stack + minimum_stack(&attributes));
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let error = libc::pthread_create(&mut thread, &attributes, run, start);
        libc::pthread_attr_destroy(&mut attributes);
        error == 0
    }
}

/// What glibc takes of a thread's stack for itself and for thread-local variables, bytes. 0 if it does not say it.
fn minimum_stack(attributes: &libc::pthread_attr_t) -> usize {
    type Minimum = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    // SAFETY: a terminated text. The symbol is private to glibc, and std relies on its type, too.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
        if symbol.is_null() {
            return 0;
        }
        std::mem::transmute::<*mut libc::c_void, Minimum>(symbol)(attributes)
    }
}

/// Runs `work` with signals blocked; threads that it creates inherit the mask.
pub fn with_signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: masks on the stack. SIGSEGV and SIGBUS stay unblocked, because the guarded copy needs them.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
            libc::sigdelset(&mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_are_those_of_the_calling_thread_only() {
        let version = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
        let before = scheduling().unwrap().sched_runtime;
        let own = std::thread::spawn(|| {
            let of = |short| {
                take_short_slices(short);
                scheduling().unwrap()
            };
            [of(true), of(false)]
        });
        let [short, long] = own.join().unwrap();
        // Older kernels have one length for all threads, and say 0.
        let expected = if numbers[..2] >= [6, 12][..] { 100_000 } else { before };
        assert_eq!((short.sched_runtime, short.sched_nice), (expected, scheduling().unwrap().sched_nice));
        assert_eq!([long.sched_runtime, scheduling().unwrap().sched_runtime], [before; 2]);
    }

    fn slack() -> i32 {
        // SAFETY: no pointers.
        unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) }
    }

    #[test]
    fn timers_wait_in_the_calling_thread_only() {
        let before = slack();
        std::thread::spawn(move || {
            let_timers_wait(4_000_000);
            assert!((3_500_000..=4_000_000).contains(&slack()), "{}", slack());
            let_timers_wait(0);
            assert_eq!(slack(), before);
            let_timers_wait(4_000_000);
        })
        .join()
        .unwrap();
        assert_eq!(slack(), before);
    }
}
