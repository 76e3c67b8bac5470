//! Waking a thread without `std::thread`: its handles register destructors of thread-local variables, and glibc ends
//! the process if there is no memory for such an entry. A wake-up is a byte through a pair of sockets, so none is
//! lost, and a signal handler may wake.

use crate::kept::{Descriptors, Kept};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

/// Wakes the thread that has the [`Sleeper`].
pub struct Waker(Kept<UnixDatagram>);

/// Lets its thread sleep.
pub struct Sleeper {
    socket: Kept<UnixDatagram>,
    timeout: Option<Duration>,
}

/// Both ends. Error: there are no free descriptors.
pub fn pair(descriptors: Descriptors) -> io::Result<(Waker, Sleeper)> {
    let (waker, sleeper) = UnixDatagram::pair()?;
    waker.set_nonblocking(true)?;
    let [waker, socket] = [waker, sleeper].map(|socket| Kept::new(socket, descriptors));
    Ok((Waker(waker), Sleeper { socket, timeout: None }))
}

impl Waker {
    /// The present or next sleep ends. If so many wake-ups wait that there is no room, one more changes nothing.
    pub fn wake(&self) {
        if self.0.is_own() {
            let _ = self.0.send(&[0]);
        }
    }
}

impl Sleeper {
    /// Sleeps until the thread is woken, or until so much time has passed.
    pub fn sleep(&mut self, most: Option<Duration>) {
        let outcome = self.receive(most);
        let is_usual = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted);
        if outcome.is_err_and(|error| !is_usual(error.kind())) {
            // The program may have closed the descriptor: the thread must not spin.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn receive(&mut self, most: Option<Duration>) -> io::Result<usize> {
        self.socket.check()?;
        if self.timeout != most && self.socket.set_read_timeout(most).is_ok() {
            self.timeout = most;
        }
        self.socket.recv(&mut [0; 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_wake_up_before_the_sleep_counts() {
        let (waker, mut sleeper) = pair(Descriptors::default()).unwrap();
        waker.wake();
        sleeper.sleep(None);
        let began = Instant::now();
        sleeper.sleep(Some(Duration::from_millis(20)));
        assert!(began.elapsed() >= Duration::from_millis(15), "the first sleep has used the wake-up");
    }

    #[test]
    fn more_wake_ups_than_fit_do_not_block() {
        let (waker, mut sleeper) = pair(Descriptors::default()).unwrap();
        for _ in 0..100_000 {
            waker.wake();
        }
        sleeper.sleep(None);
    }
}
