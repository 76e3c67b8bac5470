//! Which process is the holder of port 4791, and whether another process may take its place.
//!
//! A process that is stopped (SIGSTOP, a debugger at a breakpoint, a frozen terminal) keeps its names and sockets, but
//! hands nothing over. So there are several names, one for each holder: the next name is free to claim while the holder
//! of the last one is stopped. The kernel gives a packet to the socket that was bound last (SO_REUSEADDR), which is that
//! of the last name. A holder that runs again gets packets again when those after it have ended.

use super::holder::Socket;
use crate::os::seqpacket;
use std::io;
use std::os::fd::OwnedFd;

/// Each name is exclusive, but any local user may be the first to claim it. So packets that are handed over count as
/// those of a foreign adapter, never of a Weir peer, and only from a user that
/// [`PortAuthority`](crate::relay::port_authority::PortAuthority) accepts.
const NAMES: [&str; 4] = ["weir/roce", "weir/roce/2", "weir/roce/3", "weir/roce/4"];

/// What this process knows of other holders.
#[derive(Default)]
pub struct HolderNames {
    last: Option<Last>,
}

/// The last holder.
struct Last {
    /// The index of its name.
    name: usize,
    /// A connection to it, which ends with it. The holder never sends.
    socket: Socket,
    process: Option<Process>,
}

/// A process as this one sees it.
struct Process {
    id: i32,
    /// What was seen at the last look.
    status: Option<Status>,
}

/// The state of a process's first thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    is_stopped: bool,
    /// The number of times that it went to sleep or stopped. A process that is traced (strace) stops and runs all the
    /// time.
    switches: u64,
}

impl HolderNames {
    /// Claims the name after that of the last holder, if there is none or if it was stopped at this call and at the one
    /// before. `AddrInUse` if there is another holder. Other errors: no descriptor or memory is left.
    pub fn claim(&mut self) -> io::Result<OwnedFd> {
        self.claim_by(Status::read)
    }

    fn claim_by(&mut self, read: impl FnOnce(i32) -> Option<Status>) -> io::Result<OwnedFd> {
        self.find_last()?;
        let next = self.last.as_mut().map_or(0, |last| {
            let is_stopped = last.process.as_mut().is_some_and(|process| process.look(read));
            if is_stopped { last.name + 1 } else { NAMES.len() }
        });
        let name = NAMES.get(next).ok_or(io::ErrorKind::AddrInUse)?;
        let claimed = seqpacket::claim(name)?;
        if let Some(Last { process: Some(process), .. }) = self.last.take() {
            tracing::info!(
                "process {} is stopped, which takes the packets of foreign adapters for all processes: this process takes \
                 its place",
                process.id
            );
        }
        Ok(claimed)
    }

    /// Forgets what is known of other holders, and closes the connection: there is no further call soon.
    pub fn forget(&mut self) {
        self.last = None;
    }

    fn find_last(&mut self) -> io::Result<()> {
        for (name, text) in NAMES.iter().enumerate().rev() {
            if self.last.as_ref().is_some_and(|last| last.name == name && !last.socket.is_over()) {
                return Ok(());
            }
            match Socket::connect_to(text) {
                Ok(socket) => {
                    let process = socket.process().map(|id| Process { id, status: None });
                    self.last = Some(Last { name, socket, process });
                    return Ok(());
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::ConnectionRefused => {}
                    // Too many connections wait there.
                    io::ErrorKind::WouldBlock => return Err(io::ErrorKind::AddrInUse.into()),
                    _ => return Err(error),
                },
            }
        }
        self.last = None;
        Ok(())
    }
}

impl Process {
    /// Returns whether the process is stopped and has been so since the last look.
    fn look(&mut self, read: impl FnOnce(i32) -> Option<Status>) -> bool {
        let status = read(self.id);
        let before = std::mem::replace(&mut self.status, status);
        status.is_some_and(|status| status.is_stopped && before == Some(status))
    }
}

impl Status {
    /// `None` if there is no such process, or where the kernel does not say (no `/proc`).
    fn read(process: i32) -> Option<Status> {
        Status::parse(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)
    }

    fn parse(text: &str) -> Option<Status> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let is_stopped = field("State")?.trim_start().starts_with(['T', 't']);
        Some(Status { is_stopped, switches: field("voluntary_ctxt_switches")?.trim().parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    #[test]
    fn a_process_is_stopped_if_two_looks_find_it_so() {
        let stopped = |switches| Some(Status { is_stopped: true, switches });
        let runs = Some(Status { is_stopped: false, switches: 5 });
        let looks = |all: &[Option<Status>]| {
            let mut process = Process { id: 1, status: None };
            all.iter().map(|status| process.look(|_| *status)).collect::<Vec<_>>()
        };
        assert_eq!(looks(&[stopped(5), stopped(5), runs, stopped(5)]), [false, true, false, false]);
        assert_eq!(looks(&[stopped(5), stopped(6), stopped(7)]), [false; 3], "it is traced");
        assert_eq!(looks(&[runs, runs, None, None, stopped(5)]), [false; 5]);
    }

    #[test]
    fn the_kernel_says_that_a_process_is_stopped() {
        struct Sleeper(Child);
        impl Drop for Sleeper {
            fn drop(&mut self) {
                let _ = self.0.kill();
                let _ = self.0.wait();
            }
        }
        let sleeper = Sleeper(Command::new("sleep").arg("60").spawn().unwrap());
        let id = sleeper.0.id() as i32;
        let becomes = |is_stopped| {
            let reads = || Status::read(id).unwrap().is_stopped == is_stopped;
            (0..1000).any(|_| reads() || (std::thread::sleep(std::time::Duration::from_millis(1)), false).1)
        };
        assert!(becomes(false));
        for (signal, is_stopped) in [(libc::SIGSTOP, true), (libc::SIGCONT, false)] {
            // SAFETY: a signal for a child that has not been waited for.
            assert_eq!(unsafe { libc::kill(id, signal) }, 0);
            assert!(becomes(is_stopped));
        }
        drop(sleeper);
        assert_eq!(Status::read(id), None);
        assert_eq!(Status::parse("Name:\tState: T\nState:\tt (tracing stop)\nvoluntary_ctxt_switches:\tx\n"), None);
        assert_eq!(Status::parse(""), None);
    }

    #[test]
    #[ignore = "needs root"]
    fn one_process_is_the_holder_and_another_one_while_it_is_stopped() {
        crate::relay::holder::in_own_namespace(|| {
            let (mut first, mut second) = (HolderNames::default(), HolderNames::default());
            let claimed = first.claim().unwrap();
            let is_refused =
                |claimed: io::Result<OwnedFd>| claimed.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse);
            for _ in 0..3 {
                assert!(is_refused(second.claim()));
            }
            let stopped = |process| {
                assert_eq!(process as u32, std::process::id());
                Some(Status { is_stopped: true, switches: 5 })
            };
            assert!(is_refused(second.claim_by(stopped)), "it may be traced");
            let successor = second.claim_by(stopped).unwrap();
            assert!(is_refused(first.claim()), "it runs again, and is not the last");
            // Both end.
            drop(claimed);
            assert!(is_refused(first.claim()));
            drop(successor);
            let claimed = second.claim().unwrap();
            // There are only so many.
            let _last = seqpacket::claim(NAMES[3]).unwrap();
            drop(claimed);
            assert!((0..4).all(|_| is_refused(first.claim_by(stopped))));
        });
    }
}
