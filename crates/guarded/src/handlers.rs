//! Handlers of SIGSEGV and SIGBUS: the guarded copy first, then the program's action as without Weir.
//!
//! Weir's handler is installed with the mask and the flags of the program's handler, so that the kernel prepares the
//! call as it would for the program. The rest is emulated here: SA_RESETHAND, the default action, and signals that
//! were sent. When the program changes its action later (`change`), the change is recorded and Weir's handler stays
//! installed.

use crate::mask;
use crate::per_process::OnceInherited;
use libc::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering, fence};

/// Handles a fault of the guarded copy; returns false for any other fault.
pub type Claim = fn(&mut libc::ucontext_t) -> bool;

/// An action that the program has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Action {
    handler: usize,
    flags: c_int,
    mask: u64,
}

/// Flags by which the kernel prepares the call of a handler; Weir's handler gets them from the program's.
const SHARED_FLAGS: c_int = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;

unsafe extern "C" {
    /// The C library's internal name: `sigaction` may be interposed and lead back to [`change`].
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Installs the fault handler in front of the program's handlers, once per process.
pub fn install(claim: Claim) {
    static ONCE: OnceInherited = OnceInherited::new();
    CLAIM.store(claim as usize, Ordering::Release);
    ONCE.call_once(|| {
        for (signal, record) in [(libc::SIGSEGV, &SEGV), (libc::SIGBUS, &BUS)] {
            let before = in_kernel(signal);
            // A fork may have happened during `install` in the parent; then the child runs this again.
            if before.handler != on_fault as *const () as usize {
                record.write(|_| before);
                set(signal, &weir_handler_for(before));
            }
        }
        inherited();
        INSTALLED.store(true, Ordering::Release);
    });
}

/// Sets what runs before a fault ends the process. It may be called in a signal handler.
pub fn before_death(work: fn()) {
    BEFORE_DEATH.store(work as usize, Ordering::Release);
}

fn run_before_death() {
    let work = BEFORE_DEATH.load(Ordering::Acquire);
    if work != 0 {
        // SAFETY: `before_death` has stored a function of this type.
        let work: fn() = unsafe { std::mem::transmute(work) };
        work();
    }
}

/// Called in the child of a fork, which inherits the handlers of its parent. Uses atomics only.
pub fn inherited() {
    WRITING.store(false, Ordering::Release);
    // SAFETY: getpid has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Release);
}

/// sigaction(2) where Weir's handler stays installed; `None` where the caller must make the system call itself. May
/// be called in a signal handler.
pub fn change(signal: c_int, new: Option<&libc::sigaction>, old: Option<&mut libc::sigaction>) -> Option<()> {
    let record = record(signal)?;
    // A child of vfork has its own handlers but shares its parent's memory: it must not write the record.
    // SAFETY: getpid has no preconditions.
    let here = INSTALLED.load(Ordering::Acquire) && OWNER.load(Ordering::Acquire) == unsafe { libc::getpid() };
    if !here || in_kernel(signal).handler != on_fault as *const () as usize {
        return None;
    }
    // `new` and `old` may be the same structure.
    let new = new.map(Action::of);
    let before = record.write(|now| new.unwrap_or(now));
    if let Some(new) = new {
        set(signal, &weir_handler_for(new));
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

/// Weir's handler as installed in the kernel when the program's action is `action`.
fn weir_handler_for(action: Action) -> Action {
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
    // SAFETY: the handler has the signature that its flags require.
    unsafe { __sigaction(signal, &action.as_libc(), std::ptr::null_mut()) };
}

static CLAIM: AtomicUsize = AtomicUsize::new(0);
static BEFORE_DEATH: AtomicUsize = AtomicUsize::new(0);
static INSTALLED: AtomicBool = AtomicBool::new(false);
static OWNER: AtomicI32 = AtomicI32::new(0);
/// A thread is writing a record. All its signals are blocked meanwhile.
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

/// An action that a signal handler reads while another thread writes. Writers fill the entries in turn. A reader
/// repeats its read if the writers have reached its entry again meanwhile.
struct Record {
    version: AtomicU64,
    entries: [Entry; ENTRIES],
}

const ENTRIES: usize = 16;

struct Entry {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Entry {
    const fn new() -> Entry {
        Entry { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
    }
}

impl Record {
    const fn new() -> Record {
        Record { version: AtomicU64::new(0), entries: [const { Entry::new() }; ENTRIES] }
    }

    fn read(&self) -> Action {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let entry = &self.entries[version as usize % ENTRIES];
            let action = Action {
                handler: entry.handler.load(Ordering::Relaxed),
                flags: entry.flags.load(Ordering::Relaxed),
                mask: entry.mask.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) < version + ENTRIES as u64 - 1 {
                return action;
            }
        }
    }

    /// Stores what `change` makes of the action; returns the action before.
    fn write(&self, change: impl FnOnce(Action) -> Action) -> Action {
        mask::with_all_blocked(|| {
            while WRITING.swap(true, Ordering::Acquire) {
                std::thread::yield_now();
            }
            let before = self.read();
            let after = change(before);
            let version = self.version.load(Ordering::Relaxed) + 1;
            let entry = &self.entries[version as usize % ENTRIES];
            entry.handler.store(after.handler, Ordering::Relaxed);
            entry.flags.store(after.flags, Ordering::Relaxed);
            entry.mask.store(after.mask, Ordering::Relaxed);
            self.version.store(version, Ordering::Release);
            WRITING.store(false, Ordering::Release);
            before
        })
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `install` stores a `Claim` before it installs this handler.
    let claim: Claim = unsafe { std::mem::transmute(CLAIM.load(Ordering::Acquire)) };
    // SAFETY: the kernel passes a ucontext_t to an SA_SIGINFO handler.
    if claim(unsafe { &mut *context.cast::<libc::ucontext_t>() }) {
        return;
    }
    let Some(record) = record(signal) else { return };
    let action = record.read();
    // SAFETY: the kernel passes a siginfo_t, by which a fault is distinguished from a signal that was sent.
    let sent = unsafe { (*info).si_code } <= 0;
    if action.handler == libc::SIG_IGN && sent {
        return;
    }
    if !action.is_function() {
        run_before_death();
        // A fault cannot be ignored: the default action is restored, and the instruction faults again.
        set(signal, &Action { handler: libc::SIG_DFL, flags: 0, mask: 0 });
        if sent {
            // SAFETY: sends the same signal with the same siginfo to this thread.
            unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), libc::gettid(), signal, info) };
        }
        return;
    }
    if action.flags & libc::SA_RESETHAND != 0 {
        let after = Action { handler: libc::SIG_DFL, ..action };
        record.write(|now| if now == action { after } else { now });
        set(signal, &weir_handler_for(after));
    }
    // SAFETY: the program registered this address as a handler. A handler without SA_SIGINFO uses its first argument
    // only.
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(action.handler) };
    handler(signal, info, context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_never_sees_a_torn_action() {
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
    fn the_handler_has_the_mask_and_flags_of_the_programs_handler() {
        let program =
            Action { handler: 4711, flags: libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_RESTART, mask: 5 };
        let before = weir_handler_for(program);
        assert_eq!((before.mask, before.flags), (5, libc::SA_SIGINFO | libc::SA_RESTART));
        let default = Action { handler: libc::SIG_DFL, ..program };
        assert_eq!(
            (weir_handler_for(default).mask, weir_handler_for(default).flags & libc::SA_ONSTACK),
            (0, libc::SA_ONSTACK)
        );
        assert_eq!(Action::of(&program.as_libc()), program);
    }
}
