//! Which processes may hand over packets of port 4791.
//!
//! The name of the handing-over socket is exclusive, but any user may be the first to take it; the kernel says which
//! user connected. This process's own user and root are believed: they could do more harm than forging packets.
//! Another user is believed if it has UDP port 4791: packets of foreign adapters arrive at its process, and no other
//! process could hand them over.

use std::net::IpAddr;
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Remembers which users have the port.
pub struct Trust {
    own: u32,
    /// One table for each IP family.
    tables: [Table; 2],
    reported: Option<Instant>,
}

/// The users that have the port on all addresses of one family.
#[derive(Default)]
struct Table {
    owners: Vec<u32>,
    read: Option<Instant>,
}

/// How long an entry is valid: the port may pass to another user.
const VALID_FOR: Duration = Duration::from_secs(1);
/// How soon the table is read again for a user that is not in it. The kernel's table is long on some machines, and any
/// user can cause it to be read.
const REREAD_AFTER: Duration = Duration::from_millis(50);
/// How often a user that is not believed is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The overflow UID, which the kernel shows for users without a UID here. Several users may share it, so it is never
/// believed.
const OVERFLOW_UID: u32 = 65534;

impl Trust {
    /// For this process's user.
    pub fn new() -> Self {
        // SAFETY: a call without arguments that cannot fail.
        Trust { own: unsafe { libc::getuid() }, tables: Default::default(), reported: None }
    }

    /// Whether a process of a user may connect at all.
    pub fn may_connect(&mut self, user: u32, now: Instant) -> bool {
        let may = self.is_own_or_root(user) || self.has_port(user, false, now) || self.has_port(user, true, now);
        if !may {
            self.report(user, now);
        }
        may
    }

    /// Whether packets from `from` are believed if `user` hands them over.
    pub fn believes(&mut self, user: u32, from: IpAddr, now: Instant) -> bool {
        let believed = self.is_own_or_root(user) || self.has_port(user, from.is_ipv6(), now);
        if !believed {
            self.report(user, now);
        }
        believed
    }

    fn is_own_or_root(&self, user: u32) -> bool {
        user == self.own || user == 0
    }

    fn has_port(&mut self, user: u32, v6: bool, now: Instant) -> bool {
        let table = &mut self.tables[usize::from(v6)];
        let found = table.owners.contains(&user);
        let holds = if found { VALID_FOR } else { REREAD_AFTER };
        if table.read.is_some_and(|read| now - read < holds) {
            return found && user != OVERFLOW_UID;
        }
        table.owners = port_owners(v6);
        table.read = Some(now);
        user != OVERFLOW_UID && table.owners.contains(&user)
    }

    fn report(&mut self, user: u32, now: Instant) {
        if self.reported.is_none_or(|reported| now - reported >= REPORT_INTERVAL) {
            self.reported = Some(now);
            tracing::warn!("user {user} hands over packets, but does not have UDP port {ROCE_PORT}: dropped");
        }
    }
}

/// The users that have port 4791 on all addresses of a family.
fn port_owners(v6: bool) -> Vec<u32> {
    // The threads of the process may be in several network namespaces.
    let table = if v6 { "/proc/thread-self/net/udp6" } else { "/proc/thread-self/net/udp" };
    std::fs::read_to_string(table).map_or(Vec::new(), |table| owners(&table, ROCE_PORT).collect())
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

    #[test]
    fn owners_of_a_port() {
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
