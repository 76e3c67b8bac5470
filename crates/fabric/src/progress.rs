//! What queues and counters ask of the endpoints that report to them: progress is made by the program's calls.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// While a program waits, connections and their timers go on at least so often.
const SLICE: Duration = Duration::from_millis(20);

/// When a wait of so many ms ends. `None`, for a negative number: never.
pub fn deadline(millis: c_int) -> Option<Instant> {
    u64::try_from(millis).ok().map(|millis| Instant::now() + Duration::from_millis(millis))
}

/// How much of a wait is left.
pub fn left_until(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// An endpoint, as queues and counters see it.
pub trait Progress: Send + Sync {
    /// Does what there is to do. Completions go to the queues.
    fn progress(&self);

    /// Asks for descriptors to become readable when there is something to do. False: there is something now.
    fn may_block(&self) -> bool;

    /// Descriptors that are readable when there is something to do.
    fn descriptors(&self) -> Vec<RawFd>;

    /// The program has waited until now.
    fn waited(&self);
}

/// The endpoints that report to a queue or counter.
#[derive(Default)]
pub struct Endpoints(Mutex<Vec<Weak<dyn Progress>>>);

impl Endpoints {
    /// Adds an endpoint. False: it is there already.
    pub fn add(&self, endpoint: &Arc<dyn Progress>) -> bool {
        let Ok(mut endpoints) = self.0.lock() else { return false };
        endpoints.retain(|known| known.strong_count() > 0);
        let weak = Arc::downgrade(endpoint);
        if endpoints.iter().any(|known| known.ptr_eq(&weak)) {
            return false;
        }
        endpoints.push(weak);
        true
    }

    /// All of them make progress.
    pub fn progress(&self) {
        // An endpoint reports to queues meanwhile, so the list is not locked.
        match self.only() {
            Some(endpoint) => endpoint.progress(),
            None => self.all().iter().for_each(|endpoint| endpoint.progress()),
        }
    }

    /// Whether a program may block until a descriptor is readable.
    pub fn may_block(&self) -> bool {
        // All are asked, so that the descriptor of each becomes readable.
        let answers: Vec<bool> = self.all().iter().map(|endpoint| endpoint.may_block()).collect();
        answers.into_iter().all(|may| may)
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Blocks until a descriptor of an endpoint or `wake` is readable, at most until the program's time is over, and at most
    /// [`SLICE`].
    pub fn wait(&self, wake: Option<RawFd>, left: Option<Duration>) {
        let all = self.all();
        let fds: Vec<RawFd> = all.iter().flat_map(|endpoint| endpoint.descriptors()).chain(wake).collect();
        wait_any(&fds, left.unwrap_or(SLICE).min(SLICE));
        all.iter().for_each(|endpoint| endpoint.waited());
    }

    fn only(&self) -> Option<Arc<dyn Progress>> {
        let endpoints = self.0.lock().ok()?;
        match &endpoints[..] {
            [only] => only.upgrade(),
            _ => None,
        }
    }

    fn all(&self) -> Vec<Arc<dyn Progress>> {
        self.0.lock().map(|all| all.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }
}

/// Blocks until a descriptor is readable, at most so long. A signal ends it earlier.
pub fn wait_any(fds: &[RawFd], most: Duration) {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let millis = most.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: the list is as long as is said.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
}
