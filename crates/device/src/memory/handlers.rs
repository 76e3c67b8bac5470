//! Which code handles SIGSEGV and SIGBUS: the guarded copy first, then the program as if there were nothing before it.
//!
//! The kernel calls our handler with the mask and the flags of the program's own, so that whatever the kernel does for a
//! handler it does for the program's. What is left is done here: SA_RESETHAND, the default action, signals that were
//! sent. The program's action may change later (`change`): it is written down, and ours stays in the kernel.

use crate::memory::mask;
use crate::per_process::OnceInherited;
use libc::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

/// Deals with a fault of ours; false for any other.
pub type Claim = fn(&mut libc::ucontext_t) -> bool;

/// What the program wants to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Action {
    handler: usize,
    flags: c_int,
    mask: u64,
}

/// What the kernel does for a handler before it runs: ours gets it as the program's would.
const SHARED_FLAGS: c_int = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;

unsafe extern "C" {
    /// The C library's own name: the other one may lead back to us.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Puts the fault handler before those that the program has. Once per process.
pub fn install(claim: Claim) {
    static ONCE: OnceInherited = OnceInherited::new();
    CLAIM.store(claim as usize, Ordering::Release);
    ONCE.call_once(|| {
        for (signal, record) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
            let before = in_kernel(signal);
            // A child may come here again whose parent was in the middle of it.
            if before.handler != on_fault as *const () as usize {
                record.write(|_| before);
                set(signal, &ours(before));
            }
        }
        inherited();
        INSTALLED.store(true, Ordering::Release);
    });
}

/// In the child of a fork, which has its parent's handlers. Only atomics.
pub fn inherited() {
    WRITING.store(false, Ordering::Release);
    // SAFETY: asks for a number.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Release);
}

/// sigaction(2) where our handler is and stays; `None` where the call is none of our business. May be called in a signal
/// handler.
pub fn change(signal: c_int, new: Option<&libc::sigaction>, old: Option<&mut libc::sigaction>) -> Option<()> {
    let record = record(signal)?;
    // A child of vfork has handlers of its own, but writes into its parent's memory.
    // SAFETY: asks for a number.
    let here = INSTALLED.load(Ordering::Acquire) && OWNER.load(Ordering::Acquire) == unsafe { libc::getpid() };
    if !here || in_kernel(signal).handler != on_fault as *const () as usize {
        return None;
    }
    // Both may be the same structure.
    let new = new.map(Action::of);
    let before = record.write(|now| new.unwrap_or(now));
    if let Some(new) = new {
        set(signal, &ours(new));
    }
    if let Some(old) = old {
        *old = before.as_libc();
    }
    Some(())
}

impl Action {
    fn of(action: &libc::sigaction) -> Action {
        // SAFETY: the kernel's signals are the first 64 of the C library's larger set.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        Action { handler: action.sa_sigaction, flags: action.sa_flags, mask }
    }

    fn as_libc(self) -> libc::sigaction {
        // SAFETY: zero is a valid value of each member; the set has 64 bits at least.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (self.handler, self.flags);
            (&raw mut action.sa_mask).cast::<u64>().write(self.mask);
            action
        }
    }

    fn is_function(self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }
}

/// Our handler as the kernel is to call it before the program's `action`.
fn ours(action: Action) -> Action {
    let (shared, mask) = if action.is_function() {
        (action.flags & SHARED_FLAGS, action.mask)
    } else {
        (libc::SA_ONSTACK | libc::SA_NODEFER, 0)
    };
    Action { handler: on_fault as *const () as usize, flags: libc::SA_SIGINFO | shared, mask }
}

fn in_kernel(signal: c_int) -> Action {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: fills a structure of which zeros are valid.
    unsafe {
        __sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        Action::of(&action.assume_init())
    }
}

fn set(signal: c_int, action: &Action) {
    // SAFETY: a handler of the right signature for its flags.
    unsafe { __sigaction(signal, &action.as_libc(), std::ptr::null_mut()) };
}

static CLAIM: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
static OWNER: AtomicI32 = AtomicI32::new(0);
/// A thread writes into a record; all signals are blocked meanwhile.
static WRITING: AtomicBool = AtomicBool::new(false);
static SEGV: Record = Record::new();
static BUS: Record = Record::new();

fn record(signal: c_int) -> Option<&'static Record> {
    match signal {
        libc::SIGSEGV => Some(&SEGV),
        libc::SIGBUS => Some(&BUS),
        _ => None,
    }
}

/// An action that a signal handler reads while another thread writes: writers go round in the places, and a reader
/// looks again if they came all the way round meanwhile.
struct Record {
    version: AtomicU64,
    places: [Place; PLACES],
}

const PLACES: usize = 16;

struct Place {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Place {
    const fn new() -> Place {
        Place { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
    }
}

impl Record {
    const fn new() -> Record {
        Record { version: AtomicU64::new(0), places: [const { Place::new() }; PLACES] }
    }

    fn read(&self) -> Action {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let place = &self.places[version as usize % PLACES];
            let action = Action {
                handler: place.handler.load(Ordering::Relaxed),
                flags: place.flags.load(Ordering::Relaxed),
                mask: place.mask.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) < version + PLACES as u64 - 1 {
                return action;
            }
        }
    }

    /// Puts what `change` makes of it in its place; what it was before.
    fn write(&self, change: impl FnOnce(Action) -> Action) -> Action {
        mask::with_all_blocked(|| {
            while WRITING.swap(true, Ordering::Acquire) {
                std::thread::yield_now();
            }
            let before = self.read();
            let after = change(before);
            let version = self.version.load(Ordering::Relaxed) + 1;
            let place = &self.places[version as usize % PLACES];
            place.handler.store(after.handler, Ordering::Relaxed);
            place.flags.store(after.flags, Ordering::Relaxed);
            place.mask.store(after.mask, Ordering::Relaxed);
            self.version.store(version, Ordering::Release);
            WRITING.store(false, Ordering::Release);
            before
        })
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `install` has put a `Claim` there before this handler.
    let claim: Claim = unsafe { std::mem::transmute(CLAIM.load(Ordering::Acquire)) };
    // SAFETY: the kernel hands a ucontext_t to an SA_SIGINFO handler.
    if claim(unsafe { &mut *context.cast::<libc::ucontext_t>() }) {
        return;
    }
    let Some(record) = record(signal) else { return };
    let action = record.read();
    // SAFETY: the kernel hands over what tells a fault from a signal that was sent.
    let sent = unsafe { (*info).si_code } <= 0;
    if action.handler == libc::SIG_IGN && sent {
        return;
    }
    if !action.is_function() {
        // A fault cannot be ignored: back to the default, and the instruction faults again.
        set(signal, &Action { handler: libc::SIG_DFL, flags: 0, mask: 0 });
        if sent {
            // SAFETY: the same signal for this thread, with what came with it.
            unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info) };
        }
        return;
    }
    if action.flags & libc::SA_RESETHAND != 0 {
        let after = Action { handler: libc::SIG_DFL, ..action };
        record.write(|now| if now == action { after } else { now });
        set(signal, &ours(after));
    }
    // SAFETY: the program registered this address as a handler; one without SA_SIGINFO looks at its first argument only.
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(action.handler) };
    handler(signal, info, context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_whole_actions() {
        static RECORD: Record = Record::new();
        static OVER: AtomicBool = AtomicBool::new(false);
        let action = |n: u64| Action { handler: n as usize, flags: n as c_int, mask: n };
        let readers: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(move || {
                    while !OVER.load(Ordering::Relaxed) {
                        let seen = RECORD.read();
                        assert_eq!(seen, action(seen.mask));
                    }
                })
            })
            .collect();
        for n in 1..20_000 {
            assert_eq!(RECORD.write(|_| action(n)), action(n - 1));
        }
        OVER.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }

    #[test]
    fn ours_is_called_as_the_programs_would_be() {
        let program =
            Action { handler: 4711, flags: libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_RESTART, mask: 5 };
        let before = ours(program);
        assert_eq!((before.mask, before.flags), (5, libc::SA_SIGINFO | libc::SA_RESTART));
        let default = Action { handler: libc::SIG_DFL, ..program };
        assert_eq!((ours(default).mask, ours(default).flags & libc::SA_ONSTACK), (0, libc::SA_ONSTACK));
        assert_eq!(Action::of(&program.as_libc()), program);
    }
}
