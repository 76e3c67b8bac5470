//! Which processes are holders of port 4791, and whether another process may become one.
//!
//! A process that is stopped (SIGSTOP, Ctrl-Z, a debugger at a breakpoint) keeps its name and sockets, but hands nothing
//! over. So there are several names: a process becomes a holder, too, while all others are stopped. The kernel gives a
//! packet to the socket that was bound last (SO_REUSEADDR). A holder that runs again finds a holder that was not there
//! before, gives up its name and port, and waits like other processes.

use super::connection::Connection;
use crate::os::seqpacket;
use crate::os::users;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use weir_transport::Instant;

/// Each name is exclusive, but any local user may be the first to claim it. So packets that are handed over count as
/// those of a foreign adapter, never of a Weir peer, and only from a user that
/// [`PortAuthority`](crate::relay::port_authority::PortAuthority) accepts. Of the names but the first, only those of the
/// own user and of root count: another user could claim one without the port.
const NAMES: [&str; 4] = ["weir/roce", "weir/roce/2", "weir/roce/3", "weir/roce/4"];
/// How often a process looks whether a holder is stopped, and for how long it must be so.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What this process knows of holders.
#[derive(Default)]
pub struct HolderNames {
    /// The other holders. If this process is one, those that were there before it.
    others: Vec<Other>,
    /// The index of the name of this process, if it is a holder.
    own: Option<usize>,
}

/// Another holder.
struct Other {
    /// The index of its name.
    name: usize,
    /// A connection to it, which ends with it. The holder never sends.
    socket: Connection,
    process: Option<Process>,
}

/// A process as this one sees it.
struct Process {
    id: i32,
    /// Since when it is stopped, and [`Status::switches`] then.
    stopped: Option<(Instant, u64)>,
    next_look: Option<Instant>,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    /// All of its threads are: a debugger may stop one only.
    is_stopped: bool,
    /// The number of times that its first thread went to sleep or stopped. A process that is traced (strace) stops and runs all the
    /// time.
    switches: u64,
}

impl HolderNames {
    /// Claims the first name. For a process that tries only once, and does not wait for a holder's end. Errors: as of
    /// [`HolderNames::claim`].
    pub fn claim_first(&mut self) -> io::Result<OwnedFd> {
        // Without a connection, which would stay in the queue of a holder that sleeps.
        NAMES[1..].iter().try_for_each(|name| seqpacket::reserve(name).map(drop))?;
        let claimed = seqpacket::claim(NAMES[0])?;
        (self.own, self.others) = (Some(0), Vec::new());
        Ok(claimed)
    }

    /// Claims a name, if there is no holder or if all are stopped; returns the process of one that is stopped, too.
    /// `AddrInUse` if there is a holder that runs. Other errors: no descriptor or memory is left.
    pub fn claim(&mut self, now: Instant) -> io::Result<(OwnedFd, Option<i32>)> {
        self.claim_by(now, Status::read)
    }

    fn claim_by(
        &mut self,
        now: Instant,
        mut read: impl FnMut(i32) -> Option<Status>,
    ) -> io::Result<(OwnedFd, Option<i32>)> {
        self.own = None;
        self.others.retain(|other| !other.socket.is_over());
        let mut processes = self.others.iter_mut().map(|other| other.process.as_mut());
        let all_stopped = processes.all(|process| process.is_some_and(|process| process.is_stopped(now, &mut read)));
        if !all_stopped || self.find_others()? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let stopped = self.others.first().and_then(|other| Some(other.process.as_ref()?.id));
        let free = (0..NAMES.len()).find(|name| !self.knows(*name)).ok_or(io::ErrorKind::AddrInUse)?;
        let claimed = seqpacket::claim(NAMES[free])?;
        self.own = Some(free);
        Ok((claimed, stopped))
    }

    /// Returns whether another process has become a holder after this one. Error: no descriptor or memory is left.
    pub fn is_replaced(&mut self) -> io::Result<bool> {
        self.others.retain(|other| !other.socket.is_over());
        self.find_others()
    }

    /// Looks for holders that this process does not know. Returns whether there are some.
    fn find_others(&mut self) -> io::Result<bool> {
        let known = self.others.len();
        for name in 0..NAMES.len() {
            if Some(name) != self.own
                && !self.knows(name)
                && let Some(other) = find(name)?
            {
                self.others.push(other);
            }
        }
        Ok(self.others.len() > known)
    }

    fn knows(&self, name: usize) -> bool {
        self.others.iter().any(|other| other.name == name)
    }
}

/// The holder with the name of this index. Errors: no descriptor or memory is left; `AddrInUse` for one that takes no
/// connection.
fn find(name: usize) -> io::Result<Option<Other>> {
    match Connection::open(NAMES[name]) {
        Ok((socket, user)) if name == 0 || user == 0 || users::is_own(user) => {
            // Another device of this process is no reason: the process runs.
            let process = socket.process().filter(|id| *id as u32 != std::process::id());
            let process = process.map(|id| Process { id, stopped: None, next_look: None });
            Ok(Some(Other { name, socket, process }))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Err(error) if seqpacket::is_short(&error) => Err(error),
        Err(error) => match error.raw_os_error() {
            // Too many connections wait there.
            Some(libc::EAGAIN) => Err(io::ErrorKind::AddrInUse.into()),
            // The system forbids it: the process is one of others.
            _ if name == 0 => Err(io::ErrorKind::AddrInUse.into()),
            _ => Ok(None),
        },
    }
}

impl Process {
    /// Returns whether the process has been stopped for [`LOOK_INTERVAL`], as far as this process has looked.
    fn is_stopped(&mut self, now: Instant, mut read: impl FnMut(i32) -> Option<Status>) -> bool {
        if self.next_look.is_none_or(|due| due <= now) {
            self.next_look = Some(now + LOOK_INTERVAL);
            let switches = read(self.id).filter(|status| status.is_stopped).map(|status| status.switches);
            let before = self.stopped.filter(|(_, before)| Some(*before) == switches);
            self.stopped = before.or_else(|| Some((now, switches?)));
        }
        self.stopped.is_some_and(|(since, _)| now - since >= LOOK_INTERVAL)
    }
}

impl Status {
    /// `None` if there is no such process, or where the kernel does not say (no `/proc`).
    fn read(process: i32) -> Option<Status> {
        let first = Status::of_thread(process, process)?;
        let mut threads = std::fs::read_dir(format!("/proc/{process}/task"))
            .ok()?
            .filter_map(|thread| Status::of_thread(process, thread.ok()?.file_name().to_str()?.parse().ok()?));
        Some(Status { is_stopped: first.is_stopped && threads.all(|thread| thread.is_stopped), ..first })
    }

    fn of_thread(process: i32, thread: i32) -> Option<Status> {
        Status::parse(&std::fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).ok()?)
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

    const fn at(looks: u64) -> Instant {
        Instant(1_000_000_000 + looks * 100_000_000)
    }

    #[test]
    fn a_process_is_stopped_if_two_looks_find_it_so() {
        let stopped = |switches| Some(Status { is_stopped: true, switches });
        let runs = Some(Status { is_stopped: false, switches: 5 });
        let looks = |all: &[Option<Status>]| {
            let mut process = Process { id: 1, stopped: None, next_look: None };
            (0..).zip(all).map(|(n, status)| process.is_stopped(at(n), |_| *status)).collect::<Vec<_>>()
        };
        assert_eq!(looks(&[stopped(5), stopped(5), runs, stopped(5)]), [false, true, false, false]);
        assert_eq!(looks(&[stopped(5), stopped(6), stopped(7)]), [false; 3], "it is traced");
        assert_eq!(looks(&[runs, runs, None, None, stopped(5)]), [false; 5]);
        let mut process = Process { id: 1, stopped: None, next_look: None };
        assert!(!process.is_stopped(at(0), |_| stopped(5)));
        assert!(!process.is_stopped(Instant(at(1).0 - 1), |_| panic!("too early")));
        assert!(process.is_stopped(at(1), |_| stopped(5)));
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
            let (claimed, _) = first.claim(at(0)).unwrap();
            let is_refused = |claimed: io::Result<(OwnedFd, Option<i32>)>| {
                claimed.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
            };
            for n in 0..3 {
                assert!(is_refused(second.claim(at(n))));
            }
            assert!(second.claim_first().is_err());
            let stopped = |_| Some(Status { is_stopped: true, switches: 5 });
            assert!(is_refused(second.claim_by(at(5), stopped)), "it is this process");
            assert!(is_refused(second.claim_by(at(6), stopped)), "it is this process");
            // As if each was of another process.
            let claim_by = |names: &mut HolderNames, look| {
                let _ = names.find_others();
                for other in names.others.iter_mut().filter(|other| other.process.is_none()) {
                    other.process = Some(Process { id: 7, stopped: None, next_look: None });
                }
                names.claim_by(at(look), stopped)
            };
            assert!(is_refused(claim_by(&mut second, 5)), "it may be traced");
            let (successor, before) = claim_by(&mut second, 6).unwrap();
            assert_eq!(before, Some(7));
            // It runs again, and gives up.
            assert!(first.is_replaced().unwrap() && !second.is_replaced().unwrap());
            drop(claimed);
            assert!(is_refused(first.claim(at(7))));
            // Now the second is stopped, and then runs again. No number of such turns uses up the names.
            let mut holders = [(first, None), (second, Some(successor))];
            for turn in 0..10 {
                let [(next, claimed), (before, earlier)] = &mut holders;
                assert!(is_refused(claim_by(next, 10 + 3 * turn)));
                *claimed = Some(claim_by(next, 11 + 3 * turn).unwrap().0);
                assert!(before.is_replaced().unwrap() && !next.is_replaced().unwrap());
                *earlier = None;
                assert!(is_refused(before.claim(at(12 + 3 * turn))));
                holders.reverse();
            }
            let [(mut first, _), (_, claimed)] = holders;
            drop(claimed);
            let (_claimed, before) = first.claim(at(50)).unwrap();
            assert_eq!((first.own, before), (Some(0), None));
            // There are only so many.
            let _names: Vec<_> = NAMES[1..].iter().map(|name| seqpacket::claim(name).unwrap()).collect();
            let mut other = HolderNames::default();
            assert!((51..55).all(|n| is_refused(claim_by(&mut other, n))));
        });
    }
}
