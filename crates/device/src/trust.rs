//! Whose packets of port 4791 are believed.
//!
//! The name of the socket that hands packets over is exclusive, but any user may be the first to take it; the kernel
//! says who really sent. Our own user and root could do worse than forge packets. Another user is believed if he has
//! UDP port 4791: then packets of foreign adapters do arrive at his process, and nobody else could hand them over.

use std::net::IpAddr;
use std::time::Duration;
use weir_transport::Instant;
use weir_wire::ROCE_PORT;

/// Remembers what was found out of the user who hands over.
pub struct Trust {
    own: u32,
    /// By family.
    found: [Option<Found>; 2],
}

struct Found {
    user: u32,
    believed: bool,
    at: Instant,
}

/// How long a finding holds: the port may become another's.
const HOLDS: Duration = Duration::from_secs(1);
/// Whom the kernel shows for users that have no number here: nothing is proven by two of them being alike.
const NOBODY: u32 = 65534;

impl Trust {
    /// Of this process's user.
    pub fn new() -> Self {
        // SAFETY: asks for a number.
        Trust { own: unsafe { libc::getuid() }, found: [None, None] }
    }

    /// Whether packets from `from` are believed if `user` hands them over.
    pub fn believes(&mut self, user: u32, from: IpAddr, now: Instant) -> bool {
        if user == self.own || user == 0 {
            return true;
        }
        let v6 = from.is_ipv6();
        let found = &mut self.found[usize::from(v6)];
        match found {
            Some(found) if found.user == user && now - found.at < HOLDS => found.believed,
            _ => {
                let believed = user != NOBODY && has_port(user, v6);
                if !believed {
                    tracing::warn!("user {user} hands over packets, but does not have UDP port {ROCE_PORT}: dropped");
                }
                *found = Some(Found { user, believed, at: now });
                believed
            }
        }
    }
}

/// Whether a user has port 4791 on all addresses of a family.
fn has_port(user: u32, v6: bool) -> bool {
    // The process may have threads in several network namespaces.
    let table = if v6 { "/proc/thread-self/net/udp6" } else { "/proc/thread-self/net/udp" };
    std::fs::read_to_string(table).is_ok_and(|table| owners(&table, ROCE_PORT).any(|owner| owner == user))
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
