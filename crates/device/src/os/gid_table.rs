//! GID tables. In a process an address keeps its index for as long as the interface has it, as on adapters: a program
//! reads the table once and uses an index for ever.

use crate::os::grow::with_room;
use crate::os::locks::LeafMutex;
use crate::os::per_process::PerProcess;
use std::net::IpAddr;
use std::sync::Arc;

/// Index → address; `None` is an empty entry. The last entry is empty.
pub type GidTable = Vec<Option<IpAddr>>;

/// What a table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The kernel's number of the network namespace; 0 if it gives none (before Linux 5.14).
    pub namespace: u64,
    /// Index of the interface.
    pub ifindex: u32,
    /// Its MAC address; zeros if there is none.
    pub mac: [u8; 6],
}

/// A table that programs may have read.
type Known = (Owner, Arc<GidTable>);

/// The last tables of the interfaces that this process has seen.
static KNOWN: PerProcess<LeafMutex<Vec<Known>>> = PerProcess::new();

/// The table of an interface that now has these addresses.
pub fn update(owner: Owner, addresses: &[IpAddr]) -> GidTable {
    let place = |known: &[Known]| known.iter().position(|(other, _)| *other == owner);
    let previous = {
        let known = KNOWN.get().lock();
        place(&known).map(|at| known[at].1.clone())
    };
    let now = match &previous {
        Some(previous) => next(previous, addresses),
        None => first(addresses),
    };
    if previous.as_deref() != Some(&now) {
        let mut entry = (owner, Arc::new(now.clone()));
        // Without memory the indices are kept from the next time on.
        if let Ok(mut known) = with_room(1, || KNOWN.get().lock(), |known| known) {
            match place(&known) {
                Some(at) => std::mem::swap(&mut known[at], &mut entry),
                None => {
                    known.push(entry);
                    return now;
                }
            }
        }
        // The replaced entry is freed here, without the lock.
        drop(entry);
    }
    now
}

/// Lays out a table like adapters: the link-local IPv6 address first (on loopback, `::1`), then IPv4, then other IPv6.
/// Without a link-local address entry 0 is the same as entry 1: IPv4 begins at index 1, and programs that take index 0
/// by default find an address there.
fn first(addresses: &[IpAddr]) -> GidTable {
    let first = addresses.iter().find(|address| is_local(address)).copied();
    let v4 = addresses.iter().filter(|address| address.is_ipv4()).copied();
    let v6 = addresses.iter().filter(|address| address.is_ipv6() && Some(**address) != first).copied();
    let mut table = vec![first];
    table.extend(v4.chain(v6).map(Some));
    if first.is_none() {
        table[0] = table.get(1).copied().flatten();
    }
    table.push(None);
    table
}

/// The table after `previous`: addresses stay where they are, the places of others become empty, and new addresses
/// take the place of the usual layout if it is empty, otherwise the first empty one.
///
/// An interface gets its link-local address up to a second after it came up, and a program that already took index 0
/// for IPv4 must not find the other address there.
fn next(previous: &[Option<IpAddr>], addresses: &[IpAddr]) -> GidTable {
    let mut table: GidTable = previous.iter().map(|entry| entry.filter(|known| addresses.contains(known))).collect();
    for (usual, address) in first(addresses).into_iter().enumerate() {
        let Some(address) = address.filter(|address| !table.contains(&Some(*address))) else { continue };
        // Index 0 waits for a link-local address, which comes back after the interface was down.
        let least = if is_local(&address) { 0 } else { 1 };
        let is_empty = |at: usize| table.get(at).is_none_or(Option::is_none);
        let at = Some(usual.max(least)).filter(|at| is_empty(*at));
        let at = at.or_else(|| (least..).find(|at| is_empty(*at))).unwrap_or(table.len());
        if at >= table.len() {
            table.resize(at + 1, None);
        }
        table[at] = Some(address);
    }
    if let (None, Some(Some(before))) = (table[0], previous.first())
        && !is_local(before)
    {
        table[0] = table.get(1).copied().flatten();
    }
    while table.len() > 1 && table.ends_with(&[None, None]) {
        table.pop();
    }
    if table.last() != Some(&None) {
        table.push(None);
    }
    table
}

fn is_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses<const N: usize>(texts: [&str; N]) -> [IpAddr; N] {
        texts.map(|text| text.parse().unwrap())
    }

    #[test]
    fn ipv4_is_at_index_one() {
        let [a, b, c] = addresses(["10.0.0.1", "fe80::1", "2001:db8::1"]);
        assert_eq!(first(&[c, a, b]), [Some(b), Some(a), Some(c), None]);
        assert_eq!(first(&[a]), [Some(a), Some(a), None]);
        assert_eq!(first(&[c]), [Some(c), Some(c), None]);
    }

    #[test]
    fn an_address_keeps_its_index() {
        let [a, b, c, local] = addresses(["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"]);
        // A link-local address that comes late does not move IPv4 from index 0.
        assert_eq!(next(&first(&[a]), &[a, local]), [Some(a), Some(a), Some(local), None]);
        assert_eq!(next(&[Some(a), Some(a), Some(local), None], &[a]), [Some(a), Some(a), None]);
        assert_eq!(next(&first(&[local, c]), &[a, local, c]), [Some(local), Some(c), Some(a), None]);
        assert_eq!(next(&first(&[local, a, b]), &[b, local]), [Some(local), None, Some(b), None]);
        assert_eq!(next(&[Some(local), None, Some(b), None], &[b, local, c]), [Some(local), Some(c), Some(b), None]);
        // An address takes the place of another that is gone.
        assert_eq!(next(&first(&[local, a]), &[local, b]), [Some(local), Some(b), None]);
        assert_eq!(next(&first(&[a]), &[b]), [Some(b), Some(b), None]);
        // An interface that was down gets its link-local address again.
        let down = next(&first(&[local, a]), &[a]);
        assert_eq!(down, [None, Some(a), None]);
        assert_eq!(next(&down, &[a, b]), [None, Some(a), Some(b), None]);
        assert_eq!(next(&down, &[a, local]), [Some(local), Some(a), None]);
    }

    #[test]
    fn the_table_of_an_interface_follows_its_last_one() {
        let [a, local] = addresses(["10.0.0.1", "fe80::1"]);
        let owner = Owner { namespace: u64::MAX, ifindex: 7, mac: [2; 6] };
        assert_eq!(update(owner, &[a]), [Some(a), Some(a), None]);
        assert_eq!(update(owner, &[a, local]), [Some(a), Some(a), Some(local), None]);
        assert_eq!(update(Owner { ifindex: 8, ..owner }, &[a, local]), [Some(local), Some(a), None]);
    }
}
