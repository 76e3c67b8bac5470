//! Which thread takes turns: the node's own, or those of the program that poll.

use crate::clock;
use crate::engine::Engine;
use crate::error::Error;
use crate::events::{eventfd, lower, raise};
use crate::meter::Part;
use crate::options::Mode;
use crate::process::Owner;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use weir_guarded::mask;
use weir_link::Carrier;
use weir_transport::Instant;

/// A program that has not polled for so long does not poll.
const STANDBY: Duration = Duration::from_millis(4);
/// How often the node's thread looks whether the program still polls.
const LOOK: Duration = Duration::from_millis(2);
/// Turns in vain after which a thread that polls offers its core to others.
const SPINS: u32 = 16;

/// A node, as its threads share it.
pub struct Shared {
    pub owner: Owner,
    pub port: u16,
    pub mode: Mode,
    engine: Mutex<Engine>,
    /// Something has happened that threads wait for.
    news: Condvar,
    /// Wakes the node's thread.
    wake: OwnedFd,
    /// When the program polled, ns.
    polled: AtomicU64,
    stops: AtomicBool,
    /// Threads of the program that wait for the lock.
    wanted: AtomicU32,
}

/// A node and its thread, which ends with it.
pub struct Driven {
    pub shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Driven {
    /// Starts the thread of a node.
    pub fn start(engine: Engine, owner: Owner) -> Result<Driven, Error> {
        let wake = eventfd().map_err(|error| Error::system("no event descriptor can be made", &error))?;
        let shared = Arc::new(Shared {
            owner,
            port: engine.carrier.port(),
            mode: engine.options.mode,
            engine: Mutex::new(engine),
            news: Condvar::new(),
            wake,
            polled: AtomicU64::new(0),
            stops: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
        });
        let other = shared.clone();
        let builder = std::thread::Builder::new().name("weir-edge".into());
        // The thread inherits that signals are blocked: they are for threads of the program.
        let thread = mask::with_others_blocked(|| builder.spawn(move || other.run_guarded()));
        let thread = thread.map_err(|error| Error::system("no thread can be started", &error))?;
        Ok(Driven { shared, thread: Some(thread) })
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        if self.shared.owner.is_inherited() {
            // This process has no such thread, and its lock may be held for ever.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stops.store(true, Ordering::Release);
        raise(&self.shared.wake);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.lock().close_all();
    }
}

impl Shared {
    /// Calls `work` with the node; then threads learn what has happened. `Forked` in a child of the node's process.
    pub fn with<T>(&self, work: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
        self.owner.check()?;
        let mut engine = self.take();
        let result = work(&mut engine);
        self.tell(&mut engine);
        result
    }

    /// The same; if the program polls and there is no result, a turn is taken, and `work` is called again.
    pub fn poll<T>(&self, mut work: impl FnMut(&mut Engine) -> Result<Option<T>, Error>) -> Result<Option<T>, Error> {
        self.with(|engine| match work(engine) {
            Ok(None) if self.mode == Mode::Polling => {
                self.take_turn(engine);
                work(engine)
            }
            result => result,
        })
    }

    /// The program takes a turn. Returns whether something has come.
    fn take_turn(&self, engine: &mut Engine) -> bool {
        self.polled.store(clock::now().0, Ordering::Relaxed);
        engine.turn()
    }

    /// Repeats that until there is a result; `None`: not before `timeout` (`None`: never) has passed.
    pub fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut work: impl FnMut(&mut Engine) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.owner.check()?;
        let end = timeout.map(|timeout| clock::now() + timeout);
        let mut spins = 0;
        loop {
            let mut engine = self.take();
            let mut result = work(&mut engine);
            if matches!(result, Ok(None)) && self.mode == Mode::Polling {
                spins = if self.take_turn(&mut engine) { 0 } else { spins + 1 };
                result = work(&mut engine);
            }
            let now = clock::now();
            if !matches!(result, Ok(None)) || end.is_some_and(|end| end <= now) {
                self.tell(&mut engine);
                return result;
            }
            self.tell(&mut engine);
            if self.mode == Mode::Polling {
                drop(engine);
                if spins > SPINS {
                    std::thread::yield_now();
                }
                continue;
            }
            let rest = end.map_or(Duration::from_secs(3600), |end| end - now);
            drop(self.news.wait_timeout(engine, rest).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, for a thread of the program: the node's thread lets it go before.
    fn take(&self) -> MutexGuard<'_, Engine> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let engine = self.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        engine
    }

    /// Threads learn what has happened, and the node's thread when it has to wake.
    fn tell(&self, engine: &mut Engine) {
        if std::mem::take(&mut engine.has_news) {
            self.news.notify_all();
        }
        let is_late = |next: Instant| engine.wakes.is_some_and(|wakes| next < wakes);
        if engine.next_turn().is_some_and(is_late) && !self.is_left_to_program(engine) {
            // It is awake from now on, and looks.
            engine.wakes = None;
            raise(&self.wake);
        }
    }

    /// Whether the program takes turns, and the node's thread looks soon whether it still does: then it need not wake.
    fn is_left_to_program(&self, engine: &Engine) -> bool {
        let now = clock::now();
        self.is_polled(now) && engine.wakes.is_some_and(|wakes| wakes <= now + LOOK)
    }

    /// Whether the program takes turns itself.
    fn is_polled(&self, now: Instant) -> bool {
        self.mode == Mode::Polling && now - Instant(self.polled.load(Ordering::Relaxed)) < STANDBY
    }

    /// The node's thread. If it panics, all connections end.
    fn run_guarded(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            let mut engine = self.lock();
            engine.fail_all(&Error::System { what: "a fault of libweir-edge; please report it", errno: libc::EIO });
            self.tell(&mut engine);
        }
    }

    fn run(&self) {
        mask::assume_unblocked();
        while !self.stops.load(Ordering::Acquire) {
            if self.wanted.load(Ordering::Relaxed) > 0 {
                std::thread::yield_now();
            }
            let mut engine = self.lock();
            let mut fds = vec![self.wake.as_raw_fd()];
            let now = clock::now();
            let until = if self.is_polled(now) {
                Some(now + LOOK)
            } else {
                let any = engine.turn();
                self.tell(&mut engine);
                if any {
                    continue;
                }
                fds.extend(engine.carrier.fds());
                engine.next_turn()
            };
            engine.wakes = Some(until.unwrap_or(Instant(u64::MAX)));
            engine.counters.sleeps += 1;
            let meter = engine.meter.clone();
            drop(engine);
            let before = if meter.is_enabled() { clock::thread_cpu() } else { 0 };
            sleep(&fds, until);
            if meter.is_enabled() {
                meter.add(Part::Poll, clock::thread_cpu() - before);
            }
            self.lock().wakes = None;
            lower(&self.wake);
        }
    }
}

/// Sleeps until a descriptor is readable, or until then.
fn sleep(fds: &[i32], until: Option<Instant>) {
    let mut polls: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let rest = until.map(|until| until - clock::now());
    let time =
        rest.map(|rest| libc::timespec { tv_sec: rest.as_secs() as libc::time_t, tv_nsec: rest.subsec_nanos().into() });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: descriptors and a time on the stack.
    unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, time, std::ptr::null()) };
}
