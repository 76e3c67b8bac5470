//! Slots: which process of a network namespace a QPN belongs to.
//!
//! A QPN is a slot (10 bits) and an index (14 bits). A process claims a slot by binding the abstract unix socket
//! `@weir/slot/N`, which is exclusive within the network namespace, across users, and vanishes with the process. Slot
//! N listens on UDP port 20480 + N. The holder of port 4791 hands packets over by the same unix socket (`relay`).

use crate::Errno;
use crate::os::name::Name;
use crate::relay::incoming::Incoming;
use std::io;
use weir_link::{Allowed, DisabledFeatures, Ports};

/// Bits of a QPN that count QPs within a process.
pub const INDEX_BITS: u32 = 14;
/// Number of slots in a network namespace.
pub const SLOTS: u16 = 1 << (24 - INDEX_BITS);
/// UDP port of slot 0.
pub const FIRST_PORT: u16 = 20480;

/// The slot in a QPN.
pub fn slot_of(qpn: u32) -> u16 {
    (qpn >> INDEX_BITS) as u16
}

/// Returns whether a process can have this slot. QPNs 0, 1 (GSI) and 0xffffff are reserved, so the first and the last
/// slot stay free. QPNs of other adapters often lie there.
pub fn is_used(slot: u16) -> bool {
    slot != 0 && slot < SLOTS - 1
}

/// Returns whether a UDP port is that of a slot.
pub fn is_slot_port(port: u16) -> bool {
    port.checked_sub(FIRST_PORT).is_some_and(is_used)
}

/// Returns whether a process of this network namespace has the slot of a QPN. Error: as of [`Slot::claim`].
pub fn is_claimed(qpn: u32) -> io::Result<bool> {
    let slot = slot_of(qpn);
    if !is_used(slot) {
        return Ok(false);
    }
    match Incoming::claim(&name(slot)) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(true),
        other => other.map(|_| false),
    }
}

/// The name of a slot's socket in the abstract namespace.
pub fn name(slot: u16) -> Name {
    Name::new(format_args!("weir/slot/{slot}"))
}

/// The name of the socket by which the process of a slot is asked for shared memory.
pub fn local_name(slot: u16) -> Name {
    Name::new(format_args!("weir/local/{slot}"))
}

/// A claimed slot; dropping it releases it.
pub struct Slot {
    number: u16,
    /// The socket by which packets are handed over.
    pub incoming: Incoming,
}

/// Why a process has no slot, and so no device.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Every slot is taken: its name by a Weir process, or its UDP port by another program.
    #[error(
        "all {} slots of this network namespace are taken: {names} by processes that have a Weir device open, {ports} \
         because another program has the UDP port (one of {FIRST_PORT} to {}). End some of them, or run this program in \
         a network namespace of its own; `ss -xlp | grep @weir/slot` and `ss -ulpn` show them",
        SLOTS - 2,
        FIRST_PORT + SLOTS - 1
    )]
    Exhausted { names: usize, ports: usize },
    /// The system gives no socket.
    #[error("cannot open the sockets of a slot: {0}{advice}", advice = advice(.0))]
    System(#[from] io::Error),
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => ". Close files, or raise `ulimit -n`",
        Some(libc::EPERM | libc::EACCES) => ". A sandbox of this process forbids them (seccomp, AppArmor or SELinux)",
        _ => "",
    }
}

impl From<ClaimError> for Errno {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Exhausted { .. } => Errno(libc::EADDRINUSE),
            ClaimError::System(error) => error.into(),
        }
    }
}

impl Slot {
    /// Claims a free slot and its UDP port.
    #[cfg(test)]
    pub fn claim(disabled: DisabledFeatures) -> Result<(Slot, Ports), ClaimError> {
        Self::claim_for(disabled, &Allowed::default())
    }

    /// Claims a free slot and its UDP port, for packets of these addresses only.
    pub fn claim_for(disabled: DisabledFeatures, allowed: &Allowed) -> Result<(Slot, Ports), ClaimError> {
        // A random start keeps a new process from receiving packets for one that has just ended.
        let start = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))? as u16;
        Self::claim_one_of((0..SLOTS).map(|step| start.wrapping_add(step) % SLOTS), disabled, allowed)
    }

    fn claim_one_of(
        slots: impl Iterator<Item = u16>,
        disabled: DisabledFeatures,
        allowed: &Allowed,
    ) -> Result<(Slot, Ports), ClaimError> {
        let taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let (mut names, mut ports) = (0, 0);
        for number in slots.filter(|slot| is_used(*slot)) {
            let incoming = match Incoming::claim(&name(number)) {
                Ok(incoming) => incoming,
                Err(error) if taken(&error) => {
                    names += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match Ports::bind_for(FIRST_PORT + number, disabled, allowed.clone()) {
                Ok(ports) => return Ok((Slot::of(number, incoming), ports)),
                Err(error) if taken(&error) => ports += 1,
                Err(error) => return Err(error.into()),
            }
        }
        Err(ClaimError::Exhausted { names, ports })
    }

    /// The slot of this number, with the socket that claims it.
    pub fn of(number: u16, incoming: Incoming) -> Slot {
        Slot { number, incoming }
    }

    /// Its number, below [`SLOTS`].
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_exclusive_and_come_back() {
        let (a, _ports) = Slot::claim(DisabledFeatures::empty()).unwrap();
        let (b, _more) = Slot::claim(DisabledFeatures::empty()).unwrap();
        assert_ne!(a.number(), b.number());
        let number = a.number();
        assert!(is_claimed(u32::from(number) << INDEX_BITS | 5).unwrap() && !is_claimed(5).unwrap());
        assert!(Incoming::claim(&name(number)).is_err());
        drop(a);
        assert!(Incoming::claim(&name(number)).is_ok());
    }

    #[test]
    fn without_a_free_slot_the_error_says_what_to_do() {
        let (a, _ports) = Slot::claim(DisabledFeatures::empty()).unwrap();
        let (b, more) = Slot::claim(DisabledFeatures::empty()).unwrap();
        let slots = [0, a.number(), b.number(), SLOTS - 1];
        // The name of slot `b` is free, its port is not.
        drop(b);
        let error = Slot::claim_one_of(slots.into_iter(), DisabledFeatures::empty(), &Allowed::default())
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, ClaimError::Exhausted { names: 1, ports: 1 }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("1 by processes that have a Weir device open, 1 because") && text.contains("20480 to 21503")
        );
        assert_eq!(Errno::from(error), Errno(libc::EADDRINUSE));
        drop(more);
    }

    /// In a child process, because the limit applies to the whole process.
    #[test]
    fn emfile_is_not_reported_as_a_taken_slot() {
        use nix::sys::resource::{Resource, setrlimit};
        use nix::sys::wait::{WaitStatus, waitpid};
        // SAFETY: the child makes a few system calls and ends without running anything else of this process.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                let limited = setrlimit(Resource::RLIMIT_NOFILE, 0, 0).is_ok();
                let claimed = Slot::claim(DisabledFeatures::empty()).map(|_| ());
                let right = matches!(&claimed, Err(error @ ClaimError::System(e))
                    if e.raw_os_error() == Some(libc::EMFILE) && error.to_string().contains("ulimit -n"));
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!(limited && right))) };
            }
            nix::unistd::ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
    }
}
