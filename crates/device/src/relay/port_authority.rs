//! Which processes may hand over packets of port 4791.
//!
//! The name of the handing-over socket is exclusive, but any user may be the first to take it; the kernel says which
//! user connected. Packets of this process's own user and of root are accepted: they could do more harm than forging
//! packets. Packets of another user are accepted if it has UDP port 4791: packets of foreign adapters arrive at its
//! process, and no other process could hand them over.

use crate::os::users::{self, OVERFLOW_UID};
use std::net::IpAddr;
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Caches which users have the port. The kernel's table of sockets is long on some machines: the engine's thread
/// reads it, outside of the engine, when another user's connection or message needs it.
pub struct PortAuthority {
    /// This process's user, if the kernel shows no other one under its UID.
    own: Option<u32>,
    owners: PortOwners,
    /// When the last reading of the owners began and ended.
    read: Option<(Instant, Instant)>,
    /// The owners must be read.
    read_requested: bool,
    reported: Option<Instant>,
}

/// The users that have the port on all addresses of an IP family.
#[derive(Debug, Default)]
pub struct PortOwners {
    v4: Vec<u32>,
    v6: Vec<u32>,
}

/// How long a reading that a user has the port is valid: the port may pass to another user.
const VALID_FOR: Duration = Duration::from_secs(1);
/// How long a reading that a user does not have the port is valid. The kernel's table is long on some machines, and any
/// user can cause it to be read.
const REREAD_AFTER: Duration = Duration::from_millis(50);
/// How often a user that is refused is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl PortAuthority {
    /// For this process's user.
    pub fn new() -> Self {
        // SAFETY: a call without arguments that cannot fail.
        let own = unsafe { libc::geteuid() };
        PortAuthority {
            own: users::is_own(own).then_some(own),
            owners: PortOwners::default(),
            read: None,
            read_requested: false,
            reported: None,
        }
    }

    /// Returns whether it is decided now if a user's packets are accepted; a connection or a message waits for that
    /// since `since`. If it is not decided, the owners of the port must be read. A reading that began after `since`
    /// decides however long it took: on a busy machine, a reading may take longer than its result is valid.
    pub fn is_decided(&mut self, user: u32, since: Instant, now: Instant) -> bool {
        if self.is_own_or_root(user) {
            return true;
        }
        let found = self.has_port(user, false) || self.has_port(user, true);
        let decided = self.read.is_some_and(|(began, ended)| {
            let valid = if found { now - ended < VALID_FOR } else { now - began < REREAD_AFTER };
            valid || began >= since
        });
        self.read_requested |= !decided;
        decided
    }

    /// Returns whether the owners of the port must be read, since the last call.
    pub fn take_read_request(&mut self) -> bool {
        std::mem::take(&mut self.read_requested)
    }

    /// Takes the owners; reading them began at `began` and has ended. Returns the earlier owners in `owners`.
    pub fn renew(&mut self, owners: &mut PortOwners, began: Instant, now: Instant) {
        std::mem::swap(&mut self.owners, owners);
        self.read = Some((began, now));
    }

    /// Returns whether a process of a user may connect at all. Only for users that are [decided](Self::is_decided).
    pub fn may_connect(&mut self, user: u32, now: Instant) -> bool {
        let may = self.is_own_or_root(user) || self.has_port(user, false) || self.has_port(user, true);
        if !may {
            self.report(user, now);
        }
        may
    }

    /// Returns whether packets from `from` are accepted if `user` hands them over. Only for users that are
    /// [decided](Self::is_decided).
    pub fn accepts_from(&mut self, user: u32, from: IpAddr, now: Instant) -> bool {
        let accepted = self.is_own_or_root(user) || self.has_port(user, from.is_ipv6());
        if !accepted {
            self.report(user, now);
        }
        accepted
    }

    fn is_own_or_root(&self, user: u32) -> bool {
        user == 0 || Some(user) == self.own
    }

    fn has_port(&self, user: u32, v6: bool) -> bool {
        let owners = if v6 { &self.owners.v6 } else { &self.owners.v4 };
        user != OVERFLOW_UID && owners.contains(&user)
    }

    fn report(&mut self, user: u32, now: Instant) {
        if self.reported.is_none_or(|reported| now - reported >= REPORT_INTERVAL) {
            self.reported = Some(now);
            tracing::warn!("user {user} hands over packets, but does not have UDP port {ROCE_PORT}: dropped");
        }
    }
}

impl PortOwners {
    /// Reads the kernel's tables.
    pub fn read() -> PortOwners {
        let users = |table: &str| -> Vec<u32> {
            std::fs::read_to_string(table).map_or(Vec::new(), |table| owners(&table, ROCE_PORT).collect())
        };
        // The threads of the process may be in several network namespaces.
        PortOwners { v4: users("/proc/thread-self/net/udp"), v6: users("/proc/thread-self/net/udp6") }
    }
}

/// The users of sockets that have a port on all addresses, from the kernel's table.
fn owners(table: &str, port: u16) -> impl Iterator<Item = u32> {
    table.lines().skip(1).filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let (address, local_port) = fields.nth(1)?.split_once(':')?;
        let wildcard = address.bytes().all(|digit| digit == b'0');
        let owner = fields.nth(5)?.parse().ok()?;
        (wildcard && u16::from_str_radix(local_port, 16) == Ok(port)).then_some(owner)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 12_345;

    fn of_another_user() -> PortAuthority {
        PortAuthority { own: Some(USER + 1), ..PortAuthority::new() }
    }

    fn at(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn a_slow_reading_decides_about_users_that_waited_before_it_began() {
        for owners in [Vec::new(), vec![USER]] {
            let (mut authority, may) = (of_another_user(), !owners.is_empty());
            assert!(!authority.is_decided(USER, at(1), at(1)));
            assert!(authority.take_read_request() && !authority.take_read_request());
            authority.renew(&mut PortOwners { v4: owners, v6: Vec::new() }, at(2), at(9_000));
            assert!(authority.is_decided(USER, at(1), at(9_001)), "a connection from before the reading");
            assert_eq!(authority.may_connect(USER, at(9_001)), may);
            // That the user lacks the port is no evidence for a connection that came during the reading: the user may
            // have got the port meanwhile.
            assert_eq!(authority.is_decided(USER, at(3), at(9_001)), may, "a connection from after its begin");
            assert_eq!(authority.take_read_request(), !may);
        }
    }

    #[test]
    fn a_reading_is_valid_for_a_limited_time() {
        for (owners, valid) in [(Vec::new(), REREAD_AFTER), (vec![USER], VALID_FOR)] {
            let mut authority = of_another_user();
            authority.renew(&mut PortOwners { v4: Vec::new(), v6: owners }, at(1), at(1));
            let end = at(1) + valid;
            let before = Instant(end.0 - 1);
            assert!(authority.is_decided(USER, before, before) && !authority.take_read_request());
            assert!(!authority.is_decided(USER, end, end) && authority.take_read_request());
        }
        let mut authority = of_another_user();
        assert!(
            authority.is_decided(0, at(1), at(1)) && authority.is_decided(USER + 1, at(1), at(1)),
            "root and the own user"
        );
    }

    #[test]
    fn owners_are_users_that_have_the_port_on_all_addresses() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode \
                     ref pointer drops\n\
                     100: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 42 2 0 0\n\
                     101: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 43 2 0 0\n\
                     102: 00000000:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000  1002        0 44 2 0 0\n\
                     damaged";
        assert_eq!(owners(table, 4791).collect::<Vec<_>>(), [1000]);
        let v6 =
            "head\n1: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 0:0 00:0 0 7 0 1";
        assert_eq!(owners(v6, 4791).collect::<Vec<_>>(), [7]);
    }
}
